"""Models that put out fewer pieces, scored over the whole vocabulary: against slow loops."""

import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import BY_NAME
from tiny_models import VOCABULARY, some_pairs, tiny_bert, tiny_tokenizer, write_tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

import headscope
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.data.examples import Examples
from headscope.data.token_rows import encode_rows
from headscope.models.loaded import LoadedModel
from headscope.models.vocabulary import tokens_removed
from headscope.models.whole_vocabulary import WholeVocabulary
from headscope.tasks.encoder_tasks import Fidelity, MaskedLM
from headscope.tasks.seq2seq import Seq2Seq

SHARED = Path(os.environ.get("HEADSCOPE_SHARED", "../shared"))
SEEN = ["the cat sat on the mat", "he saw a big dog", "it ran"]


def lines(seed: int, n: int) -> tuple[str, ...]:
    rng = random.Random(seed)
    words = ["the", "cat", "dogs", "houses", "walking", "sat", "red", "she", "housed", "was", "of"]
    return tuple(" ".join(rng.choices(words, k=rng.randint(4, 9))) for _ in range(n))


# --- the same, slowly -----------------------------------------------------------------------------


def slow_words(pieces: list[str], masked: set[int], tokenizer: Any) -> tuple[list[str], list[int]]:
    """Cut every stretch of one word that is read anew; where each masked piece is now."""
    out: list[str] = []
    places: list[int] = []
    vocabulary = tokenizer.get_vocab()
    i = 0
    while i < len(pieces):
        if i in masked:
            places.append(len(out))
            out.append("[MASK]")
            i += 1
            continue
        end = i + 1
        while (
            not pieces[i].startswith("[")
            and end < len(pieces)
            and end not in masked
            and pieces[end].startswith("##")
        ):
            end += 1
        part = pieces[i:end]
        if all(piece in vocabulary for piece in part):
            out += part
        elif part[0].startswith("##"):
            word = "".join(piece[2:] for piece in part)
            while word:
                size = max(n for n in range(1, len(word) + 1) if "##" + word[:n] in vocabulary)
                out.append("##" + word[:size])
                word = word[size:]
        else:
            out += tokenizer.tokenize(part[0] + "".join(piece[2:] for piece in part[1:]))
        i = end
    return out, places


def slow_logits(
    h: torch.Tensor, small: Any, whole: Any, names: list[str], own: dict
) -> list[float]:
    """Scores of all pieces of the whole vocabulary, one after the other."""
    found = []
    for old, piece in enumerate(names):
        model, row = (small, own[piece]) if piece in own else (whole, old)
        head = model.get_output_embeddings()
        score = float(head.weight[row].detach().double().dot(h.double()))
        bias = head.bias if head.bias is not None else getattr(model, "final_logits_bias", None)
        found.append(score + (0.0 if bias is None else float(bias.detach().flatten()[row])))
    return found


def slow_mlm(small_folder: Path, whole_folder: Path, rows: Any) -> tuple[float, float]:
    """Loss and accuracy of a saved masked language model, over the whole vocabulary."""
    small, whole = (
        AutoModelForMaskedLM.from_pretrained(str(f)).double().eval()
        for f in (small_folder, whole_folder)
    )
    own, old = (AutoTokenizer.from_pretrained(str(f)) for f in (small_folder, whole_folder))
    names = old.convert_ids_to_tokens(range(len(VOCABULARY)))
    nll, right, n = 0.0, 0, 0
    for row in rows:
        pieces, places = slow_words(old.convert_ids_to_tokens(row.ids), set(row.masked), own)
        ids = torch.tensor([own.convert_tokens_to_ids(pieces)])
        with torch.no_grad():
            states = small.cls.predictions.transform(small.bert(ids).last_hidden_state)[0]
        for place, gold in zip(places, row.gold, strict=True):
            scores = slow_logits(states[place], small, whole, names, own.get_vocab())
            nll += math.log(sum(math.exp(score) for score in scores)) - scores[gold]
            best = max(range(len(scores)), key=scores.__getitem__)
            right += best == gold and names[gold] in own.get_vocab()
            n += 1
    return nll / n, 100 * right / n


# --- what is put out ------------------------------------------------------------------------------


def test_a_pruned_masked_language_model_is_scored_over_the_whole_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.pruning.mix.run.COMMON_WORDS", 0)
    folder = tiny_bert(
        tmp_path / "model", task_head="mlm", initializer_range=0.3, max_position_embeddings=200
    )
    whole = headscope.load(str(folder), task_head="mlm")
    data, calibration = Examples("test", "", lines(1, 60)), Examples("c", "", (*SEEN, *SEEN) * 9)
    keep = tmp_path / "keep.txt"
    keep.write_text("walk she\n")
    found = headscope.prune(
        whole,
        task="mlm",
        **{"data": data, "calibration": calibration, "keep_vocabulary": keep},
        **{"units": ["neurons", "vocabulary"], "fractions": [0.3], "save": tmp_path / "small"},
    )
    mix = found.smaller
    assert mix is not None
    assert mix.vocabulary is not None
    rows = MaskedLM(data, whole, 0).rows
    kept = AutoTokenizer.from_pretrained(str(tmp_path / "small")).get_vocab()
    names = whole.tokenizer.convert_ids_to_tokens(range(len(VOCABULARY)))
    assert len(kept) == mix.vocabulary.after < mix.vocabulary.before
    assert any(names[gold] not in kept for row in rows for gold in row.gold)
    loss, accuracy = slow_mlm(tmp_path / "small", folder, rows)
    assert mix.mix.value == pytest.approx(loss, abs=1e-5)
    assert found.curves[0].points[0].metrics["masked_accuracy"] == pytest.approx(accuracy)
    assert found.saved[0].measured == pytest.approx(loss, abs=1e-5)
    # The vocabulary alone stands beside it, scored in the same way.
    rival = next(model for model in mix.models if model.name == "vocabulary")
    assert rival.difference > 0


@pytest.mark.parametrize(("family", "tied"), [("bart", True), ("t5", True), ("t5", False)])
def test_a_decoder_is_asked_for_every_piece_that_there_was(
    family: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.pruning.mix.run.COMMON_WORDS", 0)
    folder = write_tiny(tmp_path / "model", family)
    if family == "t5":  # transformers decodes no T5 with more layers in the decoder
        model = BY_NAME["t5"].model(
            vocab_size=len(VOCABULARY), tie_word_embeddings=tied, num_decoder_layers=2,
            decoder_start_token_id=2, eos_token_id=3,
        )  # fmt: skip
        model.save_pretrained(folder)
    whole = headscope.load(str(folder), task_head="seq2seq")
    if family == "bart":
        torch.manual_seed(1)
        whole.network.final_logits_bias.normal_()
    first, second = zip(*some_pairs(8, 5), strict=True)
    own_words = Seq2Seq(Examples("test", "", first, second), whole).decode(whole)
    short = (" ".join(text.split()[:9]) for text in own_words[:4])
    second = (*short, *second[4:])  # so that some guesses are right
    data = Examples("test", "", first, second)
    calibration = Examples("train", "", tuple(SEEN * 2), tuple(reversed(SEEN * 2)))
    found = headscope.prune(
        whole,
        task="seq2seq",
        **{"data": data, "calibration": calibration, "save": tmp_path / "small"},
        **{"units": ["heads", "neurons", "vocabulary"], "fractions": [0.2], "controls": False},
    )
    mix = found.smaller
    assert mix is not None
    assert mix.vocabulary is not None
    assert mix.vocabulary.texts_affected > 0.5
    own = AutoTokenizer.from_pretrained(str(tmp_path / "small"))
    small = headscope.load(str(tmp_path / "small"), task_head="seq2seq", dtype="float64").network
    names = whole.tokenizer.convert_ids_to_tokens(range(len(VOCABULARY)))
    right = n = unknown = 0
    for source, target in zip(first, second, strict=True):
        ids = torch.tensor([own(source).input_ids])
        pieces = [*whole.tokenizer.tokenize(target), "[SEP]"]
        read = ["[CLS]"]
        for piece in pieces:
            decoder = torch.tensor([own.convert_tokens_to_ids(read)])
            with torch.no_grad():
                out = small(input_ids=ids, decoder_input_ids=decoder, output_hidden_states=True)
            h = out.decoder_hidden_states[-1][0, -1]
            if family == "t5" and tied:
                h = h * small.config.d_model**-0.5
            scores = slow_logits(h, small, whole.network, names, own.get_vocab())
            best = names[max(range(len(scores)), key=scores.__getitem__)]
            right, n = right + (best == piece and piece in own.get_vocab()), n + 1
            unknown += piece not in own.get_vocab()
            read += slow_words([piece], set(), own)[0]
    assert unknown > 3
    assert mix.mix.value == pytest.approx(100 * right / n, abs=1e-4)
    assert 0 < right < n
    # What it writes by itself is written by transformers too, and no removed piece is among it.
    plan = headscope.plan_vocabulary(whole, calibration.first, targets=calibration.second, common=0)
    cut = headscope.cut_vocabulary(whole, plan)
    vocabulary = WholeVocabulary(whole, plan, tuple(Seq2Seq(data, whole).rows))
    task = Seq2Seq(data, whole).read_by(cut, vocabulary)
    inputs = cut.tokenizer(list(first), return_tensors="pt", padding=True)
    asked = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    ids = cut.network.generate(**asked, max_new_tokens=20, num_beams=1, do_sample=False)
    theirs = cut.tokenizer.batch_decode(ids, skip_special_tokens=True)
    for ours, text in zip(task.decode(cut), theirs, strict=True):
        assert text.startswith(ours) or ours.startswith(text)


@pytest.mark.parametrize(
    "name",
    ["bert", "roberta", "distilbert", "electra", "albert", "mobilebert", "modernbert", "mpnet",
     "deberta", "xlm", "esm"],
)  # fmt: skip
def test_heads_of_every_kind_lose_the_same_rows_and_get_them_back(name: str) -> None:
    family = BY_NAME[name]
    network = family.model(auto=AutoModelForMaskedLM, vocab_size=len(VOCABULARY))
    whole = headscope.wrap(network, tiny_tokenizer(24))
    plan = headscope.plan_vocabulary(whole, SEEN, common=0)
    cut = headscope.cut_vocabulary(whole, plan, share=True)
    ids = [plan.kept[1], *plan.kept[7:20]]
    with torch.no_grad():
        _, expected = whole.run(*whole.pad([ids]))
        _, left = cut.run(*cut.pad([[plan.new_ids[row] for row in ids]]))
        assert expected is not None
        assert left is not None
        assert left.shape[-1] == plan.rows
        torch.testing.assert_close(left, expected[..., list(plan.kept)], atol=1e-5, rtol=1e-5)
        with WholeVocabulary(whole, plan, ()).scored(cut):
            _, full = cut.run(*cut.pad([[plan.new_ids[row] for row in ids]]))
        torch.testing.assert_close(full, expected, atol=1e-5, rtol=1e-5)
        _, again = cut.run(*cut.pad([[plan.new_ids[row] for row in ids]]))
    torch.testing.assert_close(again, left)


def test_a_graph_is_scored_like_the_model_it_was_made_from(tmp_path: Path) -> None:
    whole = headscope.load(
        str(tiny_bert(tmp_path / "m", task_head="mlm", max_position_embeddings=200)),
        task_head="mlm",
    )
    plan = headscope.plan_vocabulary(whole, SEEN, common=0)
    cut = headscope.cut_vocabulary(whole, plan)
    data = Examples("test", "", lines(3, 30))
    for task in (MaskedLM(data, whole, 0, 3), Fidelity(data, whole, 0)):
        vocabulary = WholeVocabulary(whole, plan, tuple(task.rows))
        part = task.read_by(cut, vocabulary)

        def graph(*inputs: Any, select: Any = None) -> Any:
            hidden, logits = cut.run(*inputs)
            return hidden, logits if logits is None or select is None else select(logits)

        with torch.no_grad():
            ours = part.outputs(cut)
            theirs = part.outputs_of(vocabulary.run_of(graph, cut), part.batches(cut))
        for key, values in ours.items():
            np.testing.assert_allclose(theirs[key], values, atol=1e-5)
        assert task.metrics(ours) != task.metrics(task.outputs(whole))


def test_a_removed_piece_is_an_error_even_where_it_would_be_the_likeliest(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "m", task_head="mlm", max_position_embeddings=200)
    whole = headscope.load(str(folder), task_head="mlm")
    plan = headscope.plan_vocabulary(whole, SEEN, common=0)
    cut = headscope.cut_vocabulary(whole, plan)
    task = MaskedLM(Examples("test", "", lines(3, 60)), whole, 0)
    part = task.read_by(cut, WholeVocabulary(whole, plan, tuple(task.rows)))
    golds = [gold for row in task.rows for gold in row.gold]
    assert [gold for row in part.rows for gold in row.gold] == golds
    every = iter(part.batches(cut))

    def certain(*inputs: Any, **options: Any) -> Any:
        """A model that knows every answer."""
        gold = next(every).gold
        return None, torch.nn.functional.one_hot(gold, plan.rows_before)[None].double()

    outputs = part.outputs_of(certain, part.batches(cut))
    kept = sum(gold in plan.new_ids for gold in golds)
    assert 0 < kept < len(golds)
    assert part.metrics(outputs)["masked_accuracy"] == pytest.approx(100 * kept / len(golds))
    mask, new = whole.tokenizer.mask_token_id, plan.new_ids
    for row in part.rows:
        assert all(row.ids[place] == new[mask] for place in row.masked)


# --- what is read ---------------------------------------------------------------------------------


def trained(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of one kind, trained on made-up text."""
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    names = list(special.values())
    if kind == "BPE":
        backend = Tokenizer(models.BPE(unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=400, special_tokens=names, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
    else:
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=120, special_tokens=names, unk_token="<unk>", show_progress=False
        )
    backend.train_from_iterator(
        [*lines(7, 300), *(s for p in some_pairs(200, 2) for s in p)], trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram"])
def test_words_are_read_as_the_smaller_tokenizer_cuts_them(kind: str) -> None:
    tokenizer = tiny_tokenizer() if kind == "WordPiece" else trained(kind)
    network = BY_NAME["bert"].model(vocab_size=len(tokenizer), max_position_embeddings=200)
    whole = headscope.wrap(network, tokenizer)
    plan = headscope.plan_vocabulary(whole, SEEN, common=0)
    cut = headscope.cut_vocabulary(whole, plan, share=True)
    texts = [*lines(4, 40), *SEEN]
    rows = tuple(row for row in encode_rows(whole, texts, None) if row)
    read = WholeVocabulary(whole, plan, rows).read_by(cut)
    lost = tokens_removed(whole, plan, texts)
    assert lost.texts_affected > 10
    for row, text in zip(read, texts, strict=True):
        encoding = cut.tokenizer(text, return_special_tokens_mask=True)
        assert list(row.ids) == encoding.input_ids
        marks = encoding.special_tokens_mask
        assert list(row.content) == [i for i, mark in enumerate(marks) if not mark]


def test_a_vocabulary_of_characters_loses_what_is_no_character() -> None:
    ids = {piece: i for i, piece in enumerate(["<unk>", "<pad>", "no", *"abcd", "yes"])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>"
    )
    whole = headscope.wrap(BY_NAME["bert"].model(vocab_size=8), tokenizer)
    plan = headscope.plan_vocabulary(whole, ["a yes"], common=0)
    assert plan.kept == (0, 1, 3, 4, 5, 6, 7)
    cut = headscope.cut_vocabulary(whole, plan)
    assert cut.tokenizer("a no d").input_ids == [2, 0, 5]
    rows = tuple(row for row in encode_rows(whole, ["a no d", "b"], None) if row)
    assert WholeVocabulary(whole, plan, rows).read_by(cut)[0].ids == (2, 0, 5)


# --- refused --------------------------------------------------------------------------------------


def test_what_cannot_lose_rows_says_why(tmp_path: Path) -> None:
    bart = headscope.load(str(write_tiny(tmp_path / "bart", "bart")), task_head="seq2seq")
    with pytest.raises(InputError, match="there is no target to tell which; give pairs"):
        headscope.plan_vocabulary(bart, SEEN, common=0)
    text = Examples("t", "", lines(1, 30))
    with pytest.raises(InputError, match="its decoder needs the vocabulary too"):
        headscope.prune(
            bart, data=text, calibration=text, units=["vocabulary", "neurons"], fractions=[0.5]
        )
    marian = BY_NAME["marian"].model(
        vocab_size=len(VOCABULARY), share_encoder_decoder_embeddings=False,
        decoder_vocab_size=len(VOCABULARY), tie_word_embeddings=False,
    )  # fmt: skip
    two = headscope.wrap(marian, tiny_tokenizer())
    plan = headscope.plan_vocabulary(two, SEEN, targets=SEEN, common=0)
    with pytest.raises(UnsupportedModelError, match="have a vocabulary each"):
        headscope.cut_vocabulary(two, plan)


def real(name: str, task_head: str) -> LoadedModel:
    folder = SHARED / "models" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return headscope.load(str(folder), task_head=task_head)


def test_a_real_translator_without_some_characters(tmp_path: Path) -> None:
    """The transliteration model without a letter: its names count as wrong where they need it."""
    whole = real("ar-en-transliteration", "seq2seq")
    pairs = [
        line.split("\t")
        for line in (SHARED / "data" / "ar-en-test.tsv").read_text().splitlines()[:60]
    ]
    first, second = zip(*pairs, strict=True)
    task = Seq2Seq(Examples("names", "", first, second), whole)
    plan = headscope.plan_vocabulary(whole, first, targets=second, common=0)
    cut = headscope.cut_vocabulary(whole, plan)
    assert plan.rows < plan.rows_before
    part = task.read_by(cut, WholeVocabulary(whole, plan, tuple(task.rows)))
    ours, theirs = part.outputs(cut, all_metrics=True), task.outputs(whole, all_metrics=True)
    assert task.metrics(ours) == pytest.approx(task.metrics(theirs))
    folder = headscope.save(cut, tmp_path / "small")
    network = AutoModelForSeq2SeqLM.from_pretrained(str(folder)).eval()
    assert network.config.vocab_size == plan.rows
    again = headscope.load(str(folder), task_head="seq2seq")
    assert part.decode(again) == task.decode(whole)
