"""Vocabulary rows: which stay, the same ids and outputs on calibration texts, saved and opened."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    XLMRobertaTokenizer,
)

import headscope
from headscope.core.errors import CheckpointError, InputError
from headscope.core.saved_config import from_spans
from headscope.data.frequencies import common_words
from headscope.models.anatomy.feed_forward import feed_forwards
from headscope.models.surgery.neurons import remove_neurons
from headscope.models.surgery.tokenizer_file import TokenizerFile
from headscope.models.surgery.vocabulary import tokens_removed

TEXTS = ["the cat sat", "he saw the dogs"]
NAMES = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
FIRST = list(NAMES.values())


def model_with(tokenizer: Any, kind: str = "bert", **config: Any) -> Any:
    """A random encoder of two layers, whose embedding has three rows more than there are pieces."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    rows = {"vocab_size": len(tokenizer) + 3, "intermediate_size": 24, "initializer_range": 0.3}
    settings = AutoConfig.for_model(kind, **{**sizes, **rows, **config})
    return headscope.wrap(AutoModel.from_config(settings), tokenizer)


def pieces(loaded: Any, text: str) -> list[str]:
    """Tokens of a text as words, which do not depend on their numbers."""
    return loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer(text).input_ids)


def states(loaded: Any, texts: list[str]) -> torch.Tensor:
    ids, mask = loaded.pad(loaded.tokenizer(texts)["input_ids"])
    with torch.no_grad():
        return loaded.forward(ids, mask)[mask.bool()]


def same_as(cut: Any, whole: Any, texts: list[str]) -> None:
    assert cut.vocab_size < whole.vocab_size
    for text in texts:
        assert pieces(cut, text) == pieces(whole, text)
    assert cut.tokenizer(texts)["input_ids"] != whole.tokenizer(texts)["input_ids"]
    torch.testing.assert_close(states(cut, texts), states(whole, texts), atol=1e-6, rtol=1e-6)


# WordPiece


def test_wordpiece_keeps_what_is_used_and_every_character(tmp_path):
    whole = headscope.load(str(tiny_bert(tmp_path / "model", task_head="classification")))
    plan = headscope.plan_vocabulary(whole, TEXTS, keep=["mat"], common=0)
    used = {"the", "cat", "sat", "he", "saw", "dog", "##s", "mat"}
    gone = {"of", "and", "to", "in", "is", "was", "she", "it", "on"}
    gone |= {"house", "ran", "big", "red", "##ed", "##ing"}
    rows = {piece: row for row, piece in enumerate(VOCABULARY)}  # "a" and "##s" stand there twice
    left = [piece for piece in rows if piece not in gone]
    assert used < set(left)
    assert plan.kept == tuple(sorted(rows[piece] for piece in left))
    assert plan.rows == len(left)
    assert (plan.named, plan.texts, plan.words) == (5, 6, 1)
    assert plan.named + plan.spelling + plan.texts + plan.words == plan.rows
    cut = headscope.cut_vocabulary(whole, plan)
    same_as(cut, whole, TEXTS)
    assert whole.vocab_size == len(VOCABULARY)
    # "house" is not known any more, and is spelled; the held-out text counts.
    assert pieces(cut, "house")[1:-1] == ["h", "##o", "##u", "##s", "##e"]
    heldout = tokens_removed(whole, plan, ["a house", "the cat", "the red mat ran"])
    assert (heldout.texts, heldout.texts_affected) == (3, 2)
    assert (heldout.tokens, heldout.tokens_affected) == (8, 3)
    assert "66.7% of 3 texts (37.50% of their tokens)" in str(heldout)
    nothing = tokens_removed(whole, plan, [])
    assert nothing.share_texts is None


def test_special_tokens_at_the_end_move_everywhere():
    words = ["the", "cat", "dog", *"catdoghe", *(f"##{char}" for char in "catdoghe")]
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(words))}
    ids |= {name: len(ids) + i for i, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.Sequence(
        [processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))]
    )
    backend.enable_padding(pad_id=ids["[PAD]"], pad_token="[PAD]", length=9)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    tokenizer.add_tokens(["snow man"])
    stated = {"pad_token_id": ids["[PAD]"], "eos_token_id": [ids["[SEP]"], ids["[CLS]"]]}
    whole = model_with(tokenizer, **stated, bos_token_id=10**6, mask_token_id=-1)
    cut = headscope.cut_vocabulary(whole, headscope.plan_vocabulary(whole, ["the cat"], common=0))
    same_as(cut, whole, ["the cat", "the cat snow man"])
    new = cut.tokenizer.convert_tokens_to_ids
    config = cut.model.config
    assert config.pad_token_id == new("[PAD]") == ids["[PAD]"] - 1  # "dog" is gone
    assert config.eos_token_id == [new("[SEP]"), new("[CLS]")]
    assert (config.bos_token_id, config.mask_token_id) == (10**6, -1)  # rows that there never were
    assert config.vocab_size == cut.vocab_size == len(cut.tokenizer)
    table = cut.model.get_input_embeddings()
    assert (table.padding_idx, table.num_embeddings) == (config.pad_token_id, cut.vocab_size)
    padded = Tokenizer.from_str(cut.tokenizer.backend_tokenizer.to_str()).encode("the cat")
    file = json.loads(cut.tokenizer.backend_tokenizer.to_str())
    assert padded.ids[0] == config.eos_token_id[1]
    assert all(token["id"] == new(token["content"]) for token in file["added_tokens"])


def test_a_piece_stays_if_its_characters_are_no_pieces():
    pieces = {p: i for i, p in enumerate(["[UNK]", "a", "##a", "##b", "aö", "##öa", "ab", "a##"])}
    file = TokenizerFile(Tokenizer(models.WordPiece(pieces, unk_token="[UNK]")).to_str())
    kept = {file.pieces[row] for row in file.spelling()}
    assert kept == {"a", "##a", "##b", "aö", "##öa", "a##", "[UNK]"}


# BPE

MERGES = ["l l", "h e", "he ll", "hell o", "w o", "o r", "wo r", "l o", "lo w", "low er", "e r"]


def slow_bpe(word: str, merges: list[str]) -> tuple[list[str], set[str]]:
    """Sweep over the merges again and again; every piece that is made on the way."""
    parts = list(word)
    made = set(word)
    found = True
    while found:
        found = False
        for merge in merges:
            first, second = merge.split()
            places = [i for i in range(len(parts) - 1) if parts[i : i + 2] == [first, second]]
            if places:
                parts[places[0] : places[0] + 2] = [first + second]
                made.add(first + second)
                found = True
                break
    return parts, made


def test_bpe_keeps_every_step_of_a_word_and_its_merges_in_order():
    joined = [merge.replace(" ", "") for merge in MERGES]
    ids = {p: i for i, p in enumerate([*FIRST, *"Ġdehlorw", *joined, "<mask>"])}
    backend = Tokenizer(models.BPE(ids, [tuple(m.split()) for m in MERGES], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {**NAMES, "mask_token": "<mask>"}
    whole = model_with(PreTrainedTokenizerFast(tokenizer_object=backend, **names), "roberta")
    texts = ["hello low", "held"]
    plan = headscope.plan_vocabulary(whole, texts, common=0)
    cut = headscope.cut_vocabulary(whole, plan)
    same_as(cut, whole, texts)  # RoBERTa's positions count from the padding's id
    made = set().union(*(slow_bpe(word, MERGES)[1] for word in ("hello", "low", "held")))
    assert {"he", "ll", "hell", "hello", "lo", "low"} < made
    every = {cut.tokenizer.convert_ids_to_tokens(i) for i in range(cut.vocab_size)}
    assert every == {*FIRST, "<mask>", *"Ġdehlorw", *made}
    assert pieces(cut, "lower")[1:-1] == ["low", "e", "r"]


def test_bpe_cuts_kept_words_as_before_whatever_the_merges():
    rng = random.Random(0)
    for seed in range(8):
        alphabet = "abc"
        merges = []
        made = list(alphabet)
        for _ in range(30):
            pair = rng.choice(made), rng.choice(made)
            if len("".join(pair)) < 9 and "".join(pair) not in made:
                merges.append(" ".join(pair))
                made.append("".join(pair))
        ids = {p: i for i, p in enumerate(made)}
        backend = Tokenizer(models.BPE(ids, [tuple(m.split()) for m in merges]))
        words = ["".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(8)]
        file = TokenizerFile(backend.to_str())
        used = {row for word in words for row in backend.encode(word).ids}
        kept = file.with_steps(used) | file.spelling()
        steps = set().union(*(slow_bpe(word, merges)[1] for word in words))
        assert {made[row] for row in kept} == steps | set(alphabet), seed
        new = Tokenizer.from_str(file.renumbered({row: i for i, row in enumerate(sorted(kept))}))
        for word in words:
            assert new.encode(word).tokens == slow_bpe(word, merges)[0]


def test_bytes_of_a_byte_level_vocabulary_stay():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {p: i for i, p in enumerate([*FIRST, *alphabet, "ca", "cat", "Ġcat", "do", "Ġcats"])}
    merges = [("c", "a"), ("ca", "t"), ("Ġ", "cat"), ("d", "o"), ("Ġcat", "s")]
    backend = Tokenizer(models.BPE(ids, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole = model_with(PreTrainedTokenizerFast(tokenizer_object=backend, **NAMES))
    cut = headscope.cut_vocabulary(
        whole, headscope.plan_vocabulary(whole, ["a"], keep=["cat"], common=0)
    )
    # A word to keep stays as it is in the middle of a text, too.
    assert pieces(cut, "a cat") == pieces(whole, "a cat") == ["a", "Ġcat"]
    assert pieces(cut, "do cats ☃") == ["d", "o", "Ġcat", "s", "Ġ", "â", "ĺ", "ĥ"]


# Unigram

SCORES = [*((name, 0.0) for name in FIRST), ("▁", -3.0), ("▁cat", -2.0), ("▁dog", -2.5)]
SCORES += [("▁rare", -40.0), ("x☃", -30.0), ("▁do", -3.5), ("s", -1.5)]
SCORES += [(char, -4.0) for char in "catdogx"]


def test_unigram_keeps_scores_and_the_price_of_an_unknown_character(tmp_path):
    tokenizer = XLMRobertaTokenizer(vocab=[*SCORES, ("<mask>", 0.0)])
    whole = model_with(tokenizer, "xlm-roberta", pad_token_id=1)
    texts = ["cats x☃", "ö cat"]
    assert "x☃" in pieces(whole, texts[0])
    plan = headscope.plan_vocabulary(whole, texts, common=0)
    cut = headscope.cut_vocabulary(whole, plan)
    same_as(cut, whole, texts)
    model = json.loads(cut.tokenizer.backend_tokenizer.to_str())["model"]
    gone = {"▁dog", "▁do"}
    assert [tuple(item) for item in model["vocab"]][:-1] == [
        item for item in dict(SCORES).items() if item[0] not in gone
    ]
    assert model["unk_id"] == 3
    assert pieces(cut, "dogs")[1:-1] == ["▁", "d", "o", "g", "s"]
    # The class of transformers builds the tokenizer anew from the file.
    headscope.save(cut, tmp_path / "small")
    again = AutoTokenizer.from_pretrained(tmp_path / "small")
    assert again(texts)["input_ids"] == cut.tokenizer(texts)["input_ids"]


# The demo model

REAL = [
    "A plane is taking off.",
    "Three men are playing chess, said the committee's spokesperson.",
    "Naïve café-goers paid 12,50 € in Zürich.",
]


def embedded(loaded: Any, texts: list[str]) -> torch.Tensor:
    ids, mask = loaded.pad(loaded.tokenizer(texts)["input_ids"])
    with torch.no_grad():
        return loaded.pooling.embed(loaded.forward(ids, mask), mask)


def kept_in(folder: Path) -> tuple[int, tuple[int, ...]]:
    """How many rows the first model had and which are left, as a folder's manifest says."""
    record = json.loads((folder / "headscope.json").read_text())["vocabulary"]
    return record["rows"], from_spans(record["kept"], record["rows"])


def test_the_demo_model_reads_its_calibration_as_before_also_where_it_is_saved(demo, tmp_path):
    from sentence_transformers import SentenceTransformer

    plan = headscope.plan_vocabulary(demo, REAL, common=300)
    cut = headscope.cut_vocabulary(demo, plan, share=True)
    assert plan.rows_before == 30522 > 3000 > plan.rows > 2000
    assert plan.words > 200
    same_as(cut, demo, REAL)
    weights = [model.model.get_input_embeddings().weight for model in (demo, cut)]
    assert torch.equal(weights[1], weights[0][list(plan.kept)])
    folder = headscope.save(cut, tmp_path / "small")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == plan.rows
    assert kept_in(folder) == (30522, plan.kept)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(REAL).input_ids == cut.tokenizer(REAL).input_ids
    theirs = SentenceTransformer(str(folder), device="cpu").encode(REAL, convert_to_tensor=True)
    again = headscope.load(str(folder))
    for found in (theirs, embedded(cut, REAL), embedded(again, REAL)):
        torch.testing.assert_close(found, embedded(demo, REAL), atol=1e-6, rtol=0)


def test_what_is_cut_twice_names_the_rows_of_the_first_model_and_no_others(tmp_path):
    whole = headscope.load(str(tiny_bert(tmp_path / "model")))
    plan = headscope.plan_vocabulary(whole, TEXTS, common=0)
    once = headscope.save(headscope.cut_vocabulary(whole, plan), tmp_path / "once")
    again = headscope.load(str(once))
    twice = headscope.cut_vocabulary(again, headscope.plan_vocabulary(again, TEXTS[:1], common=0))
    left = headscope.plan_vocabulary(whole, TEXTS[:1], common=0)
    assert left.rows < plan.rows
    folder = headscope.save_dense(twice, tmp_path / "twice")
    assert kept_in(folder) == (len(VOCABULARY), left.kept)
    assert AutoModel.from_pretrained(folder).config.vocab_size == left.rows
    path = once / "headscope.json"
    manifest = json.loads(path.read_text())
    for kept in ("0-3", "0-99999999999", None):
        path.write_text(json.dumps({**manifest, "vocabulary": {"rows": 90, "kept": kept}}))
        with pytest.raises(CheckpointError, match=r"does not list the .* rows of the vocabulary"):
            headscope.load(str(once))


def test_rows_heads_and_neurons_go_in_any_order(tmp_path):
    whole = headscope.load(str(tiny_bert(tmp_path / "model")))
    plan = headscope.plan_vocabulary(whole, TEXTS, common=0)
    neurons = {feed_forwards(whole)[1].name: [0, 5, 7]}

    def rest(loaded: Any) -> Any:
        return remove_neurons(headscope.remove_heads(loaded, [(0, 1), (1, 2), (1, 3)]), neurons)

    first = rest(headscope.cut_vocabulary(whole, plan))
    last = headscope.cut_vocabulary(rest(whole), plan)
    assert first.vocab_size == last.vocab_size == plan.rows
    assert torch.equal(states(first, TEXTS), states(last, TEXTS))
    folder = headscope.save(first, tmp_path / "saved")
    assert kept_in(folder) == (whole.vocab_size, plan.kept)
    for other in (rest(whole), headscope.load(str(folder))):
        torch.testing.assert_close(states(other, TEXTS), states(first, TEXTS), atol=1e-6, rtol=0)


# Words to keep, and what is refused


def test_common_words_stay_capitalised_where_case_counts():
    words = ["the", "The", "to", "To", "and", "And"]
    assert common_words("en", 3) == words[::2]
    spelled = [*"theoandTOA", *(f"##{char}" for char in "theoandTOA")]
    ids = {p: i for i, p in enumerate(dict.fromkeys(["[UNK]", *words, *spelled]))}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    whole = model_with(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))
    plan = headscope.plan_vocabulary(whole, ["a"], common=2)
    gone = {whole.tokenizer.convert_ids_to_tokens(i) for i in range(len(ids)) if i not in plan.kept}
    assert gone == {"and", "And"}


def test_tokenizers_that_cannot_be_renumbered_are_refused():
    whole = model_with(tiny_tokenizer())

    def refused(tokenizer: Any, why: str) -> None:
        with pytest.raises(InputError, match=why):
            headscope.plan_vocabulary(dataclasses.replace(whole, tokenizer=tokenizer), ["a"])

    refused(None, "has no tokenizer, so it is not known")
    refused(object(), "is not a fast one")
    without = Tokenizer(models.WordPiece({"a": 0, "##a": 1}, unk_token="[UNK]"))
    refused(PreTrainedTokenizerFast(tokenizer_object=without), r"special token \[UNK\], for which")
    beyond = tiny_tokenizer()
    beyond.add_special_tokens({"bos_token": "<a>", "extra_special_tokens": [*"ÄÖÜß"]})
    refused(beyond, r"special token Ü, for which the vocabulary of .* rows has none")
    with pytest.raises(InputError, match="no calibration text to tell"):
        headscope.plan_vocabulary(whole, [" "])
    plan = headscope.plan_vocabulary(whole, ["a"], common=0)
    smaller = headscope.cut_vocabulary(whole, plan)
    with pytest.raises(InputError, match=r"made for a vocabulary of .* rows, and in memory"):
        headscope.cut_vocabulary(smaller, plan)
    with pytest.raises(InputError, match="plan was made for a vocabulary"):
        tokens_removed(smaller, plan, ["a"])
