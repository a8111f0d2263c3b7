"""Words do not change the pieces: ids are those of ``tokenizer(line)``, words are found by offsets.

The tokenizers are trained here, on the lines below, so that they have pieces of every script.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from tiny_models import TextOnly, tiny_tokenizer
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from headscope.core.errors import CorpusError
from headscope.data.corpus import open_text
from headscope.data.frequencies import Frequencies
from headscope.data.pieces import encode_lines
from headscope.data.readable_pieces import readable_pieces
from headscope.data.sentences import NO_HEAD, ROOT, Sentence, Written, sentence_of
from headscope.data.token_rows import encode_rows
from headscope.data.treebanks import read_treebank
from headscope.data.word_pieces import EncodedSentence, encode_words, placed

# ruff: noqa: RUF001  (letters that look like Latin ones are what is tested)
LINES = [
    # English, with marks that byte-level vocabularies join, and runs of spaces
    "The cat sat on the mat... didn't it? \"Yes,\" she said, 'of course.'",
    "  two  spaces\tand a tab, 3.14 and 1,000; see https://a.b/c?d=1 (now). ",
    "snake_case well-known ﬁne ① Ａｂｃ Ⅳ e\u0301te\u0301 20\u00a0000 U.S.A. -- ((a))",
    # German, with hyphens that are seen only where a line ends
    "Der Donau\u00addampf\u00adschiffs\u00adkapitän fährt zum Bahnhof, größer als früher.",
    # Thai and Khmer, spaces of no width included; Lao, Myanmar, Tibetan
    "ฉันรักกรุงเทพมหานคร และ\u200bเชียงใหม่ ๆ มาก",
    "ខ្ញុំ\u200bស្រឡាញ់\u200bភ្នំពេញ។ ຂ້ອຍຮັກວຽງຈັນ ကျွန်တော် བོད་ཡིག",
    # Chinese and Japanese
    "我爱北京天安门，他说：“你好！”iPhone很好用。",
    "私は東京タワーが好きです。カタカナ、ﾊﾝｶｸ・々",
    # Hindi and Sinhala, conjuncts with joiners and without
    "क्षत्रिय है, क्\u200dष और क्\u200cष; हिन्दी में लिखा। ක්\u200dරි",
    # Persian with non-joiners; Arabic with vowels, a tatweel and marks of direction
    "می\u200cروم به خانه‌ام، کتاب\u200cها را می\u200cخوانم.",
    "\u200fالْعَرَبِيَّةُ لُغَةٌ جميـــلة، abc\u200edef؟",
    # Emoji: joined, with shades, forms, flags and keys
    "I \u2764\ufe0f it 👨\u200d👩\u200d👧 x 👍🏽👍🏿 🇩🇪🇫🇷 1\ufe0f\u20e3 🏳\ufe0f\u200d🌈 :-) ok☺",
    "a\u2060b new\u200bline \ufeffbom wo\u034frd",
]


def trained(
    model: Any,
    trainer: Any,
    before: Any,
    normalizer: Any = None,
    decoder: Any = None,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on the lines, which it can spell."""
    backend = Tokenizer(model)
    backend.pre_tokenizer = before
    backend.decoder = decoder
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.train_from_iterator(LINES * 3, trainer)
    number = backend.token_to_id
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[(name, number(name)) for name in ("<s>", "</s>")],
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>", **names)


SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level(*, space: bool, trim: bool = True) -> PreTrainedTokenizerFast:
    before = pre_tokenizers.ByteLevel(add_prefix_space=space, trim_offsets=trim)
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=before.alphabet()
    )
    tokenizer = trained(models.BPE(), trainer, before, decoder=decoders.ByteLevel())
    framed = tokenizer.backend_tokenizer.post_processor
    cut = processors.ByteLevel(add_prefix_space=space, trim_offsets=trim)
    tokenizer.backend_tokenizer.post_processor = processors.Sequence([cut, framed])
    return tokenizer


def unigram(scheme: str, *, cased: bool = True) -> PreTrainedTokenizerFast:
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    steps = [normalizers.NFKC(), normalizers.Replace("\u200d", "")]
    steps += [] if cased else [normalizers.Lowercase()]
    before = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return trained(models.Unigram(), trainer, before, normalizers.Sequence(steps))


def llama_like() -> PreTrainedTokenizerFast:
    """BPE over ``▁`` with bytes for what it cannot spell, and no pre-tokenizer, as Llama 2 has."""
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, limit_alphabet=60)
    marked = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    model = models.BPE(unk_token="<unk>", fuse_unk=True)
    tokenizer = trained(model, trainer, None, marked)
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = document["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    document["model"]["byte_fallback"] = True
    backend = Tokenizer.from_str(json.dumps(document))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>", **names)


def word_piece() -> PreTrainedTokenizerFast:
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL)
    before = pre_tokenizers.BertPreTokenizer()
    normalizer = normalizers.BertNormalizer()
    return trained(models.WordPiece(unk_token="<unk>"), trainer, before, normalizer)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "WordPiece": word_piece,
    "WordPiece that knows little": lambda: tiny_tokenizer(512),
    "Unigram, Metaspace always": functools.partial(unigram, "always"),
    "Unigram, Metaspace first, lower case": functools.partial(unigram, "first", cased=False),
    "Unigram, Metaspace never": functools.partial(unigram, "never"),
    "byte-level BPE": functools.partial(byte_level, space=False),
    "byte-level BPE with a space before": functools.partial(byte_level, space=True),
    "byte-level BPE, offsets with spaces": functools.partial(byte_level, space=False, trim=False),
    "Llama-like": llama_like,
}


@functools.cache
def model_of(kind: str) -> TextOnly:
    tokenizer = KINDS[kind]()
    return TextOnly(tokenizer, 4096, len(tokenizer))


def read(model: TextOnly, sentences: Iterable[Sentence]) -> list[EncodedSentence]:
    encoded_sentences = list(encode_words(model, placed(sentences), check=False))
    assert None not in encoded_sentences
    return [item for item in encoded_sentences if item is not None]


def check_words(model: TextOnly, item: EncodedSentence, line: str) -> None:
    """Hold the words of a line of plain text against the tokenizer's own offsets."""
    encoding = model.tokenizer(line, return_offsets_mapping=True)
    spans = item.sentence.spans
    word_of = item.word_of.tolist()
    assert [line[begin:stop] for begin, stop in spans] == list(item.sentence.words)
    assert all(stop <= begin for (_, stop), (begin, _) in itertools.pairwise(spans)), "apart"
    special = {model.tokenizer.bos_token_id, model.tokenizer.eos_token_id}
    special |= {model.tokenizer.cls_token_id, model.tokenizer.sep_token_id} - {None}
    for token, span, word in zip(item.ids, encoding["offset_mapping"], word_of, strict=True):
        assert (word < 0) == (int(token) in special)
        if word >= 0:
            later = [index for index, (_, stop) in enumerate(spans) if stop > span[0]]
            assert word == min([*later, len(spans) - 1]), "the word that it begins in or before"
            assert all(span[1] <= begin for begin, _ in spans[word + 1 :]), "it reaches no other"
    content = [word for word in word_of if word >= 0]
    assert content == sorted(content), "the pieces of a word stand together"
    assert set(content) == set(range(len(spans))), "every word has a piece"
    assert [word_of[first] for first in item.first] == list(range(len(spans)))


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_line(kind, tmp_path):
    """What classify, flow and patching feed, what spectrum and depth feed, and what tasks feed."""
    model = model_of(kind)
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    corpus = open_text(path)
    expected = [model.tokenizer(line)["input_ids"] for line in LINES]
    items = read(model, corpus)
    assert [item.ids.tolist() for item in items] == expected
    assert list(encode_lines(model, corpus.lines())) == expected
    assert [list(row.ids) for row in encode_rows(model, LINES, None) if row] == expected
    for item, line in zip(items, LINES, strict=True):
        check_words(model, item, line)


@pytest.mark.parametrize("kind", ["demo", "Unigram, Metaspace always", "byte-level BPE"])
def test_ids_of_real_text(kind, demo, shared):
    """2,000 lines of UD English-EWT, and 500 of German PUD; the first as trees, too."""
    name, most = ("en_ewt-ud-test", 2000) if kind == "demo" else ("de_pud-ud-test", 500)
    model = demo if kind == "demo" else model_of(kind)
    path = shared / f"data/{name}.conllu"
    rows = path.read_text(encoding="utf-8").splitlines()
    texts = [row[9:] for row in rows if row.startswith("# text = ")][:most]
    expected = model.tokenizer(texts, verbose=False)["input_ids"]
    for sentences in (map(sentence_of, texts), itertools.islice(read_treebank(path), 200)):
        encoded = encode_words(model, placed(sentences), check=False)
        for item, ids in zip(encoded, expected, strict=False):
            assert item is None or item.ids.tolist() == ids


def words_of(model: TextOnly, sentence: Sentence) -> dict[str, list[str]]:
    """Each word with its pieces, as the tokenizer has them."""
    (item,) = read(model, [sentence])
    tokens = model.tokenizer.convert_ids_to_tokens(item.ids.tolist())
    pieces: dict[str, list[str]] = {word: [] for word in item.sentence.words}
    for word, token in zip(item.word_of.tolist(), tokens, strict=True):
        if word >= 0:
            pieces[item.sentence.words[word]].append(token)
    return pieces


SMALL = TextOnly()


def test_words_of_a_treebank_share_the_text():
    """A piece belongs to the word in which it begins; a word without one is left out alone."""
    text = "the houses cannot go"
    spans = ((0, 3), (4, 9), (9, 10), (11, 14), (14, 17), (18, 20))
    words = ("the", "house", "s", "can", "not", "go")
    heads = (1, 5, 1, 5, 3, ROOT)
    names = ("det", "nsubj", "case", "aux", "advmod", "root")
    sentence = Sentence(words, heads, names, written=Written(text, spans))
    assert words_of(SMALL, sentence) == {
        **{"the": ["the"], "house": ["house"], "s": ["##s"]},
        **{"can": ["c", "##a", "##n", "##n", "##o", "##t"][:3], "not": ["##n", "##o", "##t"]},
        "go": ["g", "##o"],
    }
    other_words = ("the", "mat", "s", "can", "not", "go")
    other = Sentence(other_words, (ROOT, 0, 4, 4, 0, 4), names)
    model = TextOnly(tiny_tokenizer())
    model.tokenizer.add_tokens(["cannot"])
    model.vocab_size += 1
    first, second = read(model, [other, sentence])
    assert first.left_out == 0, "joined by spaces, can and not are two"
    assert second.sentence.words == ("the", "house", "s", "can", "go")
    assert (second.with_piece.tolist(), second.left_out) == ([0, 1, 2, 3, 5], 1)
    assert second.sentence.edges == (
        (0, 1, "det"),
        (1, 4, "nsubj"),
        (2, 1, "case"),
        (3, 4, "aux"),
    )
    # The other tree loses the same word, and every edge to and from it.
    assert second.swapped is not None
    assert second.swapped.heads == (ROOT, 0, NO_HEAD, NO_HEAD, NO_HEAD)
    assert second.swapped.edges == ((1, 0, "nsubj"),)


def test_plain_text_is_split_where_its_pieces_allow():
    known = TextOnly(tiny_tokenizer())
    known.tokenizer.add_tokens(["...", "t."])
    known.vocab_size += 2
    assert words_of(known, sentence_of("the mat ... cat. it")) == {
        **{"the": ["the"], "mat": ["mat"], "...": ["..."]},
        **{"cat.": ["c", "##a", "t."], "it": ["it"]},
    }
    pieces = words_of(SMALL, sentence_of("the cats\u200bsat a\u2060b ."))
    assert pieces == {
        **{"the": ["the"], "cats\u200bsat": ["cat", "##s", "##s", "##a", "##t"]},
        **{"a\u2060b": ["a", "##b"], ".": ["."]},
    }
    (none,) = encode_words(SMALL, placed([Sentence(("\u200b", "\u200d"))]), check=False)
    assert none is None, "no word is left"


def test_rare_words_are_looked_up_without_what_pieces_join_to_them():
    model = TextOnly(tiny_tokenizer())
    model.tokenizer.add_tokens(["(zoo", "cat-dog"])
    model.vocab_size += 2
    counts = {"the": 9.0, "cat": 3.0, "dog": 2.0, "zoo": 5.0, "on": 7.0}
    frequencies = Frequencies("by hand", lambda word: counts.get(word, 0.0), frozenset({"the"}))
    line = "the (zoo on the cat-dog on zoo)"
    (item,) = encode_words(model, placed([sentence_of(line)]), frequencies)
    assert item is not None
    assert item.sentence.words == ("the", "(zoo", "on", "the", "cat-dog", "on", "zoo", ")")
    assert item.rarity == ((4,), (1, 4, 6))
    (unseen,) = encode_words(model, placed([sentence_of("the mat on (zoo")]), frequencies)
    assert unseen is not None
    assert unseen.rarity is not None
    assert unseen.rarity.rarest == (1,)


def test_special_tokens_that_are_written_out_are_special():
    line = "the cat [SEP] a [MASK] [CLS]"
    (item,) = read(SMALL, [sentence_of(line)])
    assert item.ids.tolist() == SMALL.tokenizer(line)["input_ids"]
    assert item.sentence.words == ("the", "cat", "a", "[MASK]")
    assert item.word_of.tolist() == [-1, 0, 1, -1, 2, 3, -1, -1]
    (gold,) = read(SMALL, [Sentence(("the", "[SEP]", "cat"))])
    assert (gold.word_of.tolist(), gold.left_out) == ([-1, 0, -1, 1, -1], 1)
    (inside,) = read(SMALL, [Sentence(("the[SEP]cat", "on"))])
    assert inside.word_of.tolist() == [-1, 0, 0, 0, 1, -1], "part of what a user calls a word"
    bytes_ = model_of("byte-level BPE")
    (item,) = read(bytes_, [sentence_of("a b  </s>  c")])
    assert item.sentence.words == ("a", "b", "c")
    assert item.ids[item.first].tolist()[0] == bytes_.tokenizer("a")["input_ids"][1]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_can_be_read(kind):
    """All that is written can be read off the pieces, in order, and no byte alphabet is."""
    tokenizer = model_of(kind).tokenizer
    for line in ("Zürich 你好 world", LINES[6], LINES[9]):
        ids = tokenizer(line, add_special_tokens=False)["input_ids"]
        shown = readable_pieces(tokenizer, ids)
        assert len(shown) == len(ids)
        joined = "".join(shown).replace("…", "").replace("##", "")
        if "byte" in kind:
            spaced = line.replace(" ", "␣")
            assert joined in (spaced, f"␣{spaced}")
        elif kind == "Llama-like":
            assert joined.replace("▁", " ").strip() == line
        else:
            assert list(shown) == tokenizer.convert_ids_to_tokens(ids)


def test_characters_of_several_tokens_are_told_from_broken_ones():
    tokenizer = model_of("byte-level BPE").tokenizer
    one = {char: tokenizer.convert_tokens_to_ids(char) for char in "äĢģa"}
    assert readable_pieces(tokenizer, [one[char] for char in "äĢģ"]) == ("䀁", "…", "…")
    assert readable_pieces(tokenizer, [one["ä"], one["Ģ"]]) == ("<0xE4>", "<0x80>")
    assert readable_pieces(tokenizer, [one["ä"], one["a"]]) == ("<0xE4>", "a")
    assert readable_pieces(tokenizer, [0, one["Ģ"], 2]) == ("<s>", "<0x80>", "</s>")
    assert readable_pieces(tokenizer, []) == ()


def test_sentences_without_any_piece_are_no_reason_to_stop():
    with pytest.raises(CorpusError, match="knows no piece"):
        list(encode_words(SMALL, placed([sentence_of("你好 好")])))


def ids_of(model: TextOnly, texts: Sequence[str]) -> list[list[int]]:
    return [model.tokenizer(text)["input_ids"] for text in texts]


def test_words_that_are_joined_by_a_space_are_read_as_such_a_text():
    """Words in the middle of a line keep the space that byte-level vocabularies spell with them."""
    words = ("She", "don't", "sextants", ".")
    for kind in KINDS:
        model = model_of(kind)
        (item,) = read(model, [Sentence(words)])
        assert [item.ids.tolist()] == ids_of(model, [" ".join(words)])
        assert (item.sentence.words, item.left_out) == (words, 0)
