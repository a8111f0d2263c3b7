"""classify on pairs, from the texts to the numbers, against patterns of the model's own eager run.

The slow way shares no code with the package: one pair at a time, without padding, with loops.
"""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from scipy import stats
from tiny_models import some_pairs, tiny_bert, write_pairs, write_tiny
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import headscope
from headscope.analyses.classify.known_roles import find_roles
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.stack_words import found_heads
from headscope.core.errors import CorpusError, InputError
from headscope.core.serialise import to_dict, to_json
from headscope.reports.conditions import settings_of
from headscope.reports.page_heads import section_cards
from headscope.reports.reading import Results
from headscope.reports.section_rows import rows_of
from headscope.session.resume import RunState
from tests.reference import lowest_argmax

PAIRS = some_pairs(70, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("pairs") / "bart", "bart", template="[CLS] $A [SEP]")


@pytest.fixture(scope="module")
def bart(folder: Path) -> ClassifyResult:
    return headscope.classify(str(folder), PAIRS, dtype="float64", control=True)


class Pair(NamedTuple):
    """One pair as a model reads it, and its patterns by layer (heads, queries, keys)."""

    source: list[int]
    labels: list[int]
    decoder: list[Tensor]
    cross: list[Tensor]


class Slow:
    """Reads pairs with transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.network = AutoModelForSeq2SeqLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager"
        ).eval()

    def tokens(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Source with its special tokens; target with exactly one end token."""
        labels = self.tokenizer(text_target=target)["input_ids"]
        while labels[-1] == 3:
            labels = labels[:-1]
        return self.tokenizer(source)["input_ids"], [*labels, 3]

    @torch.no_grad()
    def read(self, source: list[int], labels: list[int]) -> Pair:
        out = self.network(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([[2, *labels[:-1]]]),
            output_attentions=True,
        )
        decoder = [pattern[0] for pattern in out.decoder_attentions]
        cross = [pattern[0] for pattern in out.cross_attentions]
        return Pair(source, labels, decoder, cross)


def special(token: int) -> bool:
    return token in (0, 2, 3)


def cross_numbers(pairs: list[Pair], layer: int, head: int) -> tuple[Any, Any, int]:
    """Where every predicted content token looks: alignment, the largest weight; pairs."""
    alignment: list[float] = []
    confidence: list[float] = []
    for pair in pairs:
        keys = [j for j, token in enumerate(pair.source) if not special(token)]
        queries = [i for i, token in enumerate(pair.labels) if not special(token)]
        if min(len(keys), len(queries)) < 3:
            continue
        rows = [pair.cross[layer][head][i][keys].tolist() for i in queries]  # i predicts label i
        confidence += map(max, rows)
        places = [lowest_argmax(row, range(len(row))) for row in rows]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rho = float(stats.spearmanr(range(len(places)), places).statistic)
        alignment.append(0.0 if math.isnan(rho) else rho)
    means = (pytest.approx(sum(v) / len(v), abs=1e-9) for v in (alignment, confidence))
    return (*means, len(alignment))


def decoder_numbers(pairs: list[Pair], layer: int, head: int, marks: list[int]) -> list[Any]:
    """The largest weight, the mass on punctuation; queries."""
    top = 0.0
    mass = 0.0
    n = 0
    for pair in pairs:
        ids = [2, *pair.labels[:-1]]
        content = [j for j, token in enumerate(ids) if not special(token) and j > 0]
        for i in content:
            if i < 2:  # queries start at position 2
                continue
            row = pair.decoder[layer][head][i].tolist()
            n = n + 1
            top = top + max(row[j] for j in content if j <= i)
            mass += sum(w for w, token in zip(row, ids, strict=True) if token in marks)
    return [*(pytest.approx(x / n, abs=1e-9) for x in (top, mass)), n]


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_numbers_of_decoder_and_cross_attention(kind, folder, bart, tmp_path):
    """That rows belong to the right tokens; every number of a row: test_cross, test_causal."""
    path = folder if kind == "bart" else write_tiny(tmp_path / "t5", "t5")
    result = bart if kind == "bart" else headscope.classify(str(path), PAIRS, dtype="float64")
    slow = Slow(path)
    pairs = [slow.read(*slow.tokens(*pair)) for pair in PAIRS]
    # Each target with the nearest other source before it that has as many content tokens.
    swapped = []
    for i, pair in enumerate(pairs):
        length = sum(not special(x) for x in pair.source)
        for before in reversed(pairs[:i]):
            same = sum(not special(x) for x in before.source) == length
            if same and before.source != pair.source:
                swapped.append(slow.read(before.source, pair.labels))
                break
    assert 40 < len(swapped) < len(pairs)
    cross = result.only("cross")
    decoder = result.only("decoder")
    assert len(cross.heads) == sum(len(layer) for layer in pairs[0].cross)
    for head in cross.heads:
        alignment, confidence, n = cross_numbers(pairs, head.layer, head.head)
        assert head.alignment.pairs == n < len(PAIRS)
        assert (head.alignment.score.value, head.confidence) == (alignment, confidence)
        assert head.alignment.swapped.value == cross_numbers(swapped, head.layer, head.head)[0]
    marks = slow.tokenizer.convert_tokens_to_ids([",", "."])
    for head in decoder.heads:
        confidence, mass, queries = decoder_numbers(pairs, head.layer, head.head, marks)
        assert (head.confidence, head.punctuation_mass) == (confidence, mass)
        assert decoder.corpus.queries == queries
        assert head.punctuation_mass > 0
        assert (head.rare, head.syntactic) == (None, ())


def test_a_stack_alone_is_as_among_all(bart, folder):
    loaded = headscope.load(str(folder), dtype="float64")
    for stack in ("encoder", "cross"):
        alone = headscope.classify(loaded, PAIRS, stack=stack, control=True)
        among_all = bart.only(stack)
        assert alone.heads == among_all.heads
        assert alone.untestable == among_all.untestable
        for name in ("sentences", "skipped", "queries", "pairs"):
            assert getattr(alone.corpus, name) == getattr(among_all.corpus, name)
        known = {k: v for k, v in vars(alone.control).items() if v is not None}
        assert {k: v for k, v in vars(among_all.control).items() if v is not None} == known
    # The encoder reads the sources as sentences; a view is measured by default.
    alone = headscope.classify(loaded, [source for source, _ in PAIRS])
    assert (alone.stacks, alone.heads) == (("encoder",), bart.only("encoder").heads)
    assert alone.provenance["model"]["n_layers"] == 8  # of all stacks: it is the same model


def test_a_decoder_alone_reads_sentences(tmp_path):
    """gpt2 has one stack; no row sees a token to its right."""
    loaded = headscope.load(str(write_tiny(tmp_path / "gpt2", "gpt2")))
    lines = [source for source, _ in PAIRS[:20]]
    result = headscope.classify(loaded, lines)
    assert (result.stacks, result.heads[-1].name) == (("decoder",), "decoder:L1H3")
    assert "decoder:special" in result.untestable
    assert "trees" in result.untestable["decoder:syntactic"]
    assert "decoder:rare" not in result.untestable  # it cannot apply
    # Its heads have one name in the terminal, on the page and in the results, which --heads takes.
    heads = [dataclasses.replace(head, roles=("broad",)) for head in result.heads]
    broad = dataclasses.replace(result, heads=tuple(heads))
    assert "broad: decoder:L0H0, decoder:L0H1" in found_heads(broad)
    report = headscope.report(loaded, only=["classify"], settings={"classify": {"limit": 20}})
    assert [card.name for card in section_cards(report)] == [head.name for head in result.heads]
    assert set(report.samples[0].patterns) == {head.name for head in result.heads}
    assert {rate for offset, rate in result.heads[0].positional.rates.items() if offset > "0"} == {
        None
    }
    with pytest.raises(InputError, match="has no stack 'encoder'; it has decoder"):
        headscope.classify(loaded, lines, stack="encoder")


def test_what_does_not_fit(tmp_path, folder):
    bart = headscope.load(str(folder))
    bert = headscope.load(str(tiny_bert(tmp_path / "bert")))
    (tmp_path / "half.tsv").write_text("a cat\tsat\na dog\n")
    sentence = ["a cat sat"]
    long = ("the " * 60, "a cat sat")
    for error, model, texts, stack, words in (
        (InputError, bart, sentence, "all", "decoder and the cross-attention of .* read pairs of"),
        (InputError, bart, None, "cross", "decoder and the cross-attention of .* read pairs of"),
        (InputError, bert, sentence, "cross", "no stack 'cross'; it has encoder"),
        (InputError, bert, PAIRS, None, "is no encoder-decoder model, so it cannot read pairs"),
        (CorpusError, bart, [("a cat", "sat"), ("a dog", " ")], None, "Pair 2 in memory"),
        (
            CorpusError,
            bart,
            tmp_path / "half.tsv",
            None,
            r"half\.tsv, line 2: 1 column where the first row has 2",
        ),
        (CorpusError, bart, [long] * 2, "cross", "None of the 2 pairs of in memory could be"),
    ):
        with pytest.raises(error, match=words):
            headscope.classify(model, texts, stack=stack)
    # A pair that cannot be read whole is skipped; a table stays text for an encoder.
    result = headscope.classify(bart, [long, *PAIRS[:9], long[::-1]], stack="decoder")
    assert (result.corpus.sentences, result.corpus.skipped) == (9, 2)
    assert not headscope.classify(bert, write_pairs(tmp_path / "p.tsv", PAIRS[:9])).corpus.pairs


def test_killed_and_resumed(tmp_path, folder, monkeypatch):
    """In the second and the last of the passes that are run of all stacks, in this order."""
    passes = ["model, sources", "model, pairs", "swapped sources"]
    passes += ["control, sources", "control, pairs"]
    monkeypatch.setattr("headscope.session.texts.BATCH_TOKENS", 64)
    loaded = headscope.load(str(folder))
    note = RunState.note

    def save_always(self: RunState[Any], name: str, done: int, sums: Any, **_: Any) -> None:
        note(self, name, done, sums, final=True)

    def run(**options: Any) -> str:
        options |= {"control": True, "command": "same", "validate": False}
        document = to_dict(headscope.classify(loaded, PAIRS[:10], **options))
        del document["provenance"]["created"]
        return to_json(document)

    uninterrupted = run()
    monkeypatch.setattr(RunState, "note", save_always)
    for stop_in in passes[1::3]:
        state = tmp_path / f"{stop_in}.safetensors"
        seen: list[str] = []
        again: list[str] = []

        def stop(name: str, *_: int, stop_in: str = stop_in, seen: list[str] = seen) -> None:
            seen.append(name)
            if name == stop_in and seen.count(name) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(state=state, progress=stop)
        resumed = run(state=state, resume=True, progress=lambda name, *_, a=again: a.append(name))
        assert stop_in in again
        assert not set(again) & set(passes[: passes.index(stop_in)])
        assert resumed == uninterrupted


def test_roles_are_found_by_stack_and_compared(bart, folder):
    loaded = headscope.load(str(folder))
    known = find_roles(loaded, bart)
    assert len(known.by_place) == len(bart.heads)
    assert known.by_place[2 + 3 + 1, 2].name == "cross:L1H2"
    assert find_roles(loaded.only("cross"), bart).by_place[1, 2].name == "cross:L1H2"
    with pytest.raises(InputError, match="covers 12 of the 28 heads"):
        find_roles(loaded, bart.only("cross"))
    head = next(head for head in bart.heads if head.name == "cross:L2H3")
    rows = {(row.where, row.name): row for row in rows_of(Results("x", classify=bart))}
    alignment = rows["cross:L2H3", "alignment"]
    assert alignment.value == head.alignment.score.value
    assert alignment.interval == head.alignment.score.interval
    assert rows["random weights, cross", "monotonic heads"].value == 0
    assert ("random weights, encoder", "monotonic heads") not in rows
    assert settings_of(bart)["pairs"] == len(PAIRS)
