"""Texts are read as tokenizer.json says, in the run and by whoever opens a saved folder.

The oracle is ``tokenizers.Tokenizer.from_file`` on the file itself.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_models import VOCABULARY, framed_tokenizer, tiny_bert
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoTokenizer, EsmTokenizer, PreTrainedTokenizerFast

import headscope
from headscope.artefacts.sentence_outputs import compare_embeddings
from headscope.artefacts.tokenizer_files import name_tokenizer_class, write_tokenizer
from headscope.core.errors import CheckpointError
from headscope.models.load.source import Source
from headscope.models.load.tokenizer import OpenedTokenizer, open_tokenizer

TEXTS = (
    "Foxes, x-ray",
    " THE  cat doesn't sit (yet).",
    "Zürich naïve Ångström",
    "3.50 EUR \U0001f600",
    "東京 Москва",
)
_ASCII = [chr(code) for code in range(33, 127)]
_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def word_pieces() -> Tokenizer:
    """WordPiece that writes ks for x, splits at spaces alone and starts with two [CLS]."""
    pieces = [*_BERT, "the", "cat", "Foks", *_ASCII, *(f"##{char}" for char in _ASCII)]
    model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("x", "ks")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*_BERT])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] [CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def _starts_with_s(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens([*_ROBERTA])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return tokenizer


def byte_level() -> Tokenizer:
    """Byte-level BPE of lower case, with a space before the text."""
    pieces = [
        *_ROBERTA,
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        "th",
        "the",
        "Ġt",
        "Ġth",
        "ĠT",
    ]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "t"), ("Ġt", "h"), ("Ġ", "T")]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return _starts_with_s(tokenizer)


def unigram() -> Tokenizer:
    """Unigram of lower case, with no space before the text."""
    scores = {**dict.fromkeys(_ROBERTA, 0.0), "▁": -2.0, "▁the": -3.0, "en_XX": 0.0, "fr_XX": 0.0}
    scores |= dict.fromkeys(_ASCII, -5.0)
    tokenizer = Tokenizer(models.Unigram([*scores.items()], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return _starts_with_s(tokenizer)


def written(folder: Path, tokenizer: Tokenizer, family: str, **settings: Any) -> Path:
    """Write tokenizer.json, its settings and the config of a family."""
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    AutoConfig.for_model(family).save_pretrained(folder)
    stated = json.dumps({"model_max_length": 64, **settings})
    (folder / "tokenizer_config.json").write_text(stated)
    return folder


def opened(folder: Path, *, lower: bool = False) -> OpenedTokenizer:
    return open_tokenizer(Source("m", folder), lower=lower)


def ids_of_file(folder: Path, *texts: Any, **options: Any) -> list[list[int]]:
    """Read texts by the file itself."""
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [encoding.ids for encoding in file.encode_batch([*texts], **options)]


@dataclass(frozen=True)
class Row:
    """A family, and the class that the folder names (None: it names none)."""

    family: str
    named: str | None
    file: Callable[[], Tokenizer]
    #: Whether transformers builds another tokenizer than the file's.
    rebuilt: bool = True


TABLE = (
    Row("bert", None, word_pieces),
    Row("distilbert", "DistilBertTokenizerFast", word_pieces),
    Row("electra", "ElectraTokenizer", word_pieces),
    Row("mobilebert", "MobileBertTokenizer", word_pieces),
    Row("funnel", "FunnelTokenizerFast", word_pieces),
    Row("layoutlm", "LayoutLMTokenizer", word_pieces),
    Row("mpnet", "MPNetTokenizer", word_pieces),
    Row("convbert", "ConvBertTokenizer", word_pieces),
    Row("splinter", "SplinterTokenizer", word_pieces),
    Row("esm", "EsmTokenizer", word_pieces),  # slow, and its own files are not there
    Row("roberta", "RobertaTokenizer", byte_level),
    Row("bart", "BartTokenizerFast", byte_level),
    Row("gpt2", "GPT2Tokenizer", byte_level),
    Row("deberta", "DebertaTokenizer", byte_level),
    Row("longformer", "LongformerTokenizer", byte_level),
    Row("bert", "BertTokenizer", byte_level),  # a class that does not fit the file at all
    Row("llama", "LlamaTokenizerFast", byte_level, rebuilt=False),
    Row("modernbert", "PreTrainedTokenizerFast", byte_level, rebuilt=False),
    Row("xlm-roberta", "XLMRobertaTokenizerFast", unigram),
    Row("albert", "AlbertTokenizer", unigram),
    Row("camembert", "CamembertTokenizer", unigram),
    Row("deberta-v2", "DebertaV2Tokenizer", unigram),
    Row("t5", "T5Tokenizer", unigram),
    Row("rembert", "RemBertTokenizer", unigram),
    Row("pegasus", "PegasusTokenizer", unigram),
    Row("xlnet", "XLNetTokenizer", unigram),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.family} {row.named}")
def test_the_file_is_followed_in_the_run_and_in_what_is_saved(row, tmp_path):
    settings = {} if row.named is None else {"tokenizer_class": row.named}
    folder = written(tmp_path / "m", row.file(), row.family, **settings)
    tokenizer, differs, remarks = opened(folder)
    assert differs == row.rebuilt
    assert (
        sum(remark.startswith("Texts are read by the tokenizer") for remark in remarks) == differs
    )
    words = [text.split() for text in TEXTS]
    pairs = [*zip(TEXTS, reversed(TEXTS), strict=True)]
    expected = ids_of_file(folder, *TEXTS)
    assert tokenizer([*TEXTS])["input_ids"] == expected
    assert tokenizer(text_target=[*TEXTS])["input_ids"] == expected
    assert tokenizer(*map(list, zip(*pairs, strict=True)))["input_ids"] == ids_of_file(
        folder, *pairs
    )
    bare = tokenizer([*TEXTS], add_special_tokens=False)["input_ids"]
    assert bare == ids_of_file(folder, *TEXTS, add_special_tokens=False)
    in_words = tokenizer(words, is_split_into_words=True)["input_ids"]
    assert in_words == ids_of_file(folder, *words, is_pretokenized=True)
    assert all(i < len(tokenizer) for i in tokenizer.all_special_ids)
    assert len(tokenizer) == row.file().get_vocab_size()

    saved = written(tmp_path / "saved", row.file(), row.family)
    write_tokenizer(tokenizer, saved)
    name_tokenizer_class(tokenizer, saved)
    again = AutoTokenizer.from_pretrained(saved)
    assert again([*TEXTS])["input_ids"] == expected
    assert again.model_input_names == tokenizer.model_input_names
    assert ids_of_file(saved, *TEXTS) == expected
    assert not opened(saved).class_differs


def test_what_the_class_would_have_read_is_said(tmp_path):
    folder = written(tmp_path / "m", word_pieces(), "bert", tokenizer_class="BertTokenizer")
    (remark,) = opened(folder).remarks
    by_class = AutoTokenizer.from_pretrained(folder).tokenize("Foxes")
    assert "'Foxes' is read as Foks ##e ##s; BertTokenizer of" in remark
    assert remark.endswith(f"would read {' '.join(by_class)}.")


def _same_as_bert(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )


_ROW_OF_TYPES = processors.TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B [SEP]",
    special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
)
_SHARP_S = normalizers.Sequence(
    [normalizers.BertNormalizer(lowercase=True), normalizers.Replace("ß", "q")]
)


@pytest.mark.parametrize(
    ("component", "value", "says"),
    [
        ("normalizer", _SHARP_S, "'ß ẞ' is read as q q; BertTokenizer"),
        ("normalizer", normalizers.BertNormalizer(lowercase=False), "is read as F ##o ##x ##e ##s"),
        ("pre_tokenizer", pre_tokenizers.WhitespaceSplit(), "'x-ray' is read as x ##- ##r ##a ##y"),
        ("post_processor", processors.BertProcessing(("[SEP]", 3), ("[MASK]", 4)), "[MASK] f ##o"),
        ("post_processor", _ROW_OF_TYPES, "read as token types 0 0 0 0 0 0 0 0"),
        ("post_processor", None, None),
    ],
    ids=["normaliser", "case", "pre-tokenizer", "frame", "token types", "nothing"],
)
def test_each_part_is_compared(tmp_path, component, value, says):
    """A file that says what BertTokenizer builds, but for one part."""
    tokenizer = word_pieces()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    if value is not None:
        setattr(tokenizer, component, value)
    folder = written(tmp_path / "m", tokenizer, "bert", tokenizer_class="BertTokenizer")
    remarks = [remark for remark in opened(folder).remarks if remark.startswith("Texts are")]
    assert bool(remarks) == (says is not None)
    assert all(str(says) in remark for remark in remarks)


def test_a_file_that_cuts_and_pads_is_read_whole_and_saved_so(tmp_path):
    tokenizer = word_pieces()
    uncut = [encoding.ids for encoding in tokenizer.encode_batch([*TEXTS])]
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    folder = written(tmp_path / "m", tokenizer, "bert", tokenizer_class="BertTokenizer")
    reading_tokenizer = opened(folder).tokenizer
    assert reading_tokenizer([*TEXTS], truncation=False, padding=False)["input_ids"] == uncut
    assert reading_tokenizer([*TEXTS], truncation=True, max_length=6)["input_ids"] != uncut
    saved = written(tmp_path / "saved", tokenizer, "bert")
    write_tokenizer(reading_tokenizer, saved)
    assert ids_of_file(saved, *TEXTS) == uncut


def test_languages_go_on_switching(tmp_path):
    """A translator puts its language around a text, and reads the text as the file says."""
    stated = {"tokenizer_class": "MBartTokenizer", "src_lang": "en_XX", "tgt_lang": "fr_XX"}
    folder = written(tmp_path / "m", unigram(), "mbart", **stated)
    tokenizer, differs, _ = opened(folder)
    bare = ids_of_file(folder, "THE x", add_special_tokens=False)[0]
    end_id, english, french = map(tokenizer.convert_tokens_to_ids, ("</s>", "en_XX", "fr_XX"))
    assert differs
    for _ in range(2):
        assert tokenizer("THE x")["input_ids"] == [*bare, end_id, english]
        assert tokenizer(text_target="THE x")["input_ids"] == [*bare, end_id, french]
    # Without a token for its language there is nothing to switch.
    plain = written(tmp_path / "p", unigram(), "mbart", **stated | {"src_lang": "de_DE"})
    assert opened(plain).tokenizer(text_target="x")["input_ids"] == ids_of_file(plain, "x")[0]


def test_lower_case_of_sentence_transformers_comes_on_top(tmp_path):
    folder = written(tmp_path / "m", word_pieces(), "bert", tokenizer_class="BertTokenizer")
    result = opened(folder, lower=True)
    assert result.tokenizer("THE Fox")["input_ids"] == ids_of_file(folder, "the fox")[0]
    (remark, _) = result.remarks  # both are read in lower case, so the case is no difference
    assert "'Foxes' is read as f ##o ##k ##s ##e ##s; BertTokenizer of" in remark


def test_merges_are_never_dropped_at_random(tmp_path):
    tokenizer = byte_level()
    expected = tokenizer.encode("the " * 50).ids
    tokenizer.model.dropout = 0.5
    for named in ("PreTrainedTokenizerFast", "RobertaTokenizer"):
        folder = written(tmp_path / named, tokenizer, "roberta", tokenizer_class=named)
        result = opened(folder)
        assert result.tokenizer("the " * 50)["input_ids"] == expected
        assert any("dropout 0.5" in remark for remark in result.remarks)


@pytest.mark.parametrize(
    ("file", "lowered", "lost"),
    [
        (word_pieces, True, 1 + 26 + 26),  # Foks, and each letter alone and inside of words
        (word_pieces, False, 0),
        (byte_level, True, 1),  # a T after a space: single characters stand for all bytes
        (unigram, True, 2 + 26),  # two languages, and each letter
    ],
)
def test_pieces_with_capitals_behind_a_lower_casing_tokenizer_are_counted(
    tmp_path, file, lowered, lost
):
    tokenizer = file()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowered)
    folder = written(tmp_path / "m", tokenizer, "bert", tokenizer_class="PreTrainedTokenizerFast")
    said = [remark for remark in opened(folder).remarks if "because of capitals" in remark]
    assert len(said) == lowered
    total = tokenizer.get_vocab_size()
    assert all(f"{lost} of {total} pieces can never be given" in remark for remark in said)


def test_a_slow_tokenizer_is_named_with_what_can_be_done(tmp_path):
    letters = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC", "<mask>"]
    AutoConfig.for_model("esm").save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(letters))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    says = r"no fast class and no converter for its EsmTokenizer: build tokenizer\.json"
    with pytest.raises(CheckpointError, match=says):
        opened(tmp_path)
    # What the message asks for is then read, with the special tokens of the slow class.
    fast = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>", special_tokens=[("<cls>", 0), ("<eos>", 2)]
    )
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = opened(tmp_path).tokenizer
    slow = EsmTokenizer.from_pretrained(tmp_path)
    for protein in ("MKTL", "MK<mask>LW"):
        assert tokenizer(protein)["input_ids"] == slow(protein)["input_ids"]
    assert (tokenizer.mask_token, tokenizer.cls_token) == ("<mask>", "<cls>")
    assert isinstance(tokenizer, PreTrainedTokenizerFast)


def test_a_saved_model_is_read_alike_by_sentence_transformers(tmp_path):
    """What SentenceTransformer made of the source is said, and no longer true of what is saved."""
    from sentence_transformers import SentenceTransformer

    folder = tiny_bert(tmp_path / "m")
    framed_tokenizer("[CLS] [CLS] $A").save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "BertTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 32}')
    loaded = headscope.load(str(folder))
    check = compare_embeddings(loaded)
    assert check is not None
    assert "otherwise than its tokenizer.json" in str(check.not_compared)
    text = "the cat sat"
    expected = [2, 2, *map(VOCABULARY.index, text.split())]
    assert loaded.tokenizer(text)["input_ids"] == expected
    ids_of_class = SentenceTransformer(str(folder), device="cpu").tokenizer(text)["input_ids"]
    assert ids_of_class != expected

    saved = headscope.save(headscope.remove_heads(loaded, [(0, 0), (1, 1)]), tmp_path / "saved")
    model = SentenceTransformer(str(saved), device="cpu", trust_remote_code=True)
    assert model.tokenizer(text)["input_ids"] == expected
    assert (
        AutoTokenizer.from_pretrained(saved, trust_remote_code=True)(text)["input_ids"] == expected
    )
    assert ids_of_file(saved, text) == [expected]
    again = compare_embeddings(headscope.load(str(saved)))
    assert again is not None
    assert again.max_abs is not None
    assert again.max_abs < 1e-5
