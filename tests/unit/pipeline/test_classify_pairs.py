"""classify on pairs, from the texts to the numbers, against patterns of the model's own eager run.

The slow way shares no code with the package: one pair at a time, without padding, with loops.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from tiny_models import some_pairs, tiny_bert, write_pairs, write_tiny
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import headscope
from headscope.errors import CorpusError, InputError
from headscope.pipeline.known_roles import find_roles
from headscope.pipeline.resume import RunState
from headscope.results import ClassifyResult, from_dict, to_dict, to_json
from headscope.verdicts.diff.facts.classify import collect, settings
from headscope.verdicts.diff.facts.fact import Facts, Number
from tests.reference import lowest_argmax

PAIRS = some_pairs(70, seed=5)
#: What is run of all stacks, in this order.
PASSES = (
    *("model, sources", "model, pairs", "swapped sources"),
    *("control, sources", "control, pairs"),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("pairs")
    return {
        "bart": write_tiny(base / "bart", "bart"),
        "bart, framed": write_tiny(base / "framed", "bart", template="[CLS] $A [SEP]"),
        "t5": write_tiny(base / "t5", "t5"),
    }


@pytest.fixture(scope="module")
def bart(folders: dict[str, Path]) -> ClassifyResult:
    return headscope.classify(str(folders["bart"]), PAIRS, dtype="float64", control=True)


# --- the slow way -------------------------------------------------------------------------------


@dataclass
class Read:
    """One pair as a model reads it, and its patterns by layer (heads, queries, keys)."""

    source: list[int]
    labels: list[int]
    decoder: list[torch.Tensor]
    cross: list[torch.Tensor]


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

    def read(self, source: list[int], labels: list[int]) -> Read:
        with torch.no_grad():
            out = self.network(
                input_ids=torch.tensor([source]),
                decoder_input_ids=torch.tensor([[2, *labels[:-1]]]),
                output_attentions=True,
            )
        decoder, cross = ([p[0] for p in x] for x in (out.decoder_attentions, out.cross_attentions))
        return Read(source, labels, decoder, cross)


def special(token: int) -> bool:
    return token in (0, 2, 3)


def looked_at(pair: Read, pattern: torch.Tensor) -> tuple[list[int], list[float], list[float]]:
    """For every predicted content token: place of the key it looks at, its weight, special mass."""
    keys = [j for j, token in enumerate(pair.source) if not special(token)]
    places, weights, masses = [], [], []
    for i, token in enumerate(pair.labels):  # row i predicts label i
        if special(token):
            continue
        row = [float(pattern[i, j]) for j in keys]
        places.append(lowest_argmax(row, range(len(row))))
        weights.append(max(row))
        masses.append(sum(float(w) for j, w in enumerate(pattern[i]) if j not in keys))
    return places, weights, masses


def spearman(places: list[int]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = stats.spearmanr(range(len(places)), places).statistic
    return 0.0 if math.isnan(found) else float(found)


def long_enough(pair: Read) -> bool:
    return all(sum(not special(x) for x in side) >= 3 for side in (pair.source, pair.labels))


def cross_numbers(pairs: list[Read], layer: int, head: int) -> dict[str, float]:
    alignments, weights, masses, uniform = [], [], [], []
    for pair in filter(long_enough, pairs):
        places, top, mass = looked_at(pair, pair.cross[layer][head])
        alignments.append(spearman(places))
        weights += top
        masses += mass
        uniform += [1 / len(pair.source)] * len(top)
    return {
        "pairs": len(alignments),
        "alignment": sum(alignments) / len(alignments),
        "confidence": sum(weights) / len(weights),
        "uniform": sum(uniform) / len(uniform),
        "special_mass": sum(masses) / len(masses),
    }


def decoder_numbers(pairs: list[Read], layer: int, head: int) -> dict[str, float]:
    hits, tries, top, itself, mass, n, chance = [0] * 6, [0] * 6, 0.0, 0, 0.0, 0, 0.0
    for pair in pairs:
        ids = [2, *pair.labels[:-1]]
        content = [j for j, token in enumerate(ids) if not special(token)]
        for i in content:
            row = pair.decoder[layer][head][i]
            seen = [j for j in content if j <= i]
            best = lowest_argmax(row.tolist(), seen)
            n, top, itself = n + 1, top + max(float(row[j]) for j in seen), itself + (best == i)
            mass += sum(float(row[j]) for j in range(len(ids)) if j not in content)
            chance += 1 / len(seen)
            for back in range(1, 6):
                if i - back in content:
                    tries[back] += 1
                    hits[back] += best == i - back
    rates = {str(-back): hits[back] / tries[back] for back in range(1, 6)}
    return {
        "confidence": top / n,
        "self_rate": itself / n,
        "special_mass": mass / n,
        "chance": chance / n,
        "queries": n,
        **rates,
    }


@pytest.fixture(scope="module", params=["bart", "bart, framed", "t5"])
def both(
    request: pytest.FixtureRequest, folders: dict[str, Path]
) -> tuple[ClassifyResult, Slow, list[Read]]:
    folder = folders[request.param]
    slow = Slow(folder)
    read = [slow.read(*slow.tokens(*pair)) for pair in PAIRS]
    return headscope.classify(str(folder), PAIRS, dtype="float64"), slow, read


def test_cross_attention(both: tuple[ClassifyResult, Slow, list[Read]]) -> None:
    result, _, read = both
    heads = result.only("cross").heads
    assert len(heads) == sum(len(layer) for layer in read[0].cross)
    for head in heads:
        expected = cross_numbers(read, head.layer, head.head)
        assert head.alignment is not None
        assert head.sharpness is not None
        assert head.alignment.pairs == expected["pairs"] < len(PAIRS)
        assert head.alignment.score == pytest.approx(expected["alignment"], abs=1e-9)
        assert head.confidence == pytest.approx(expected["confidence"], abs=1e-9)
        assert head.sharpness.uniform == pytest.approx(expected["uniform"], abs=1e-9)
        assert head.special_mass == pytest.approx(expected["special_mass"], abs=1e-9)


def test_decoder(both: tuple[ClassifyResult, Slow, list[Read]]) -> None:
    result, _, read = both
    part = result.only("decoder")
    for head in part.heads:
        expected = decoder_numbers(read, head.layer, head.head)
        assert head.positional is not None
        rates = {k: v for k, v in head.positional.rates.items() if k.startswith("-")}
        assert rates == pytest.approx({k: expected[k] for k in rates}, abs=1e-9)
        assert head.positional.chance == pytest.approx(expected["chance"], abs=1e-9)
        for name in ("confidence", "self_rate", "special_mass"):
            assert getattr(head, name) == pytest.approx(expected[name], abs=1e-9)
        assert part.corpus.queries == expected["queries"]
        assert head.rare is None
        assert head.syntactic == ()


def test_swapped_sources(both: tuple[ClassifyResult, Slow, list[Read]]) -> None:
    """Each target with the nearest other source before it that has as many content tokens."""
    result, slow, read = both
    swapped = []
    for i, pair in enumerate(read):
        length = sum(not special(x) for x in pair.source)
        for before in reversed(read[:i]):
            same = sum(not special(x) for x in before.source) == length
            if same and before.source != pair.source:
                swapped.append(slow.read(before.source, pair.labels))
                break
    assert 40 < len(swapped) < len(read)
    for head in result.only("cross").heads:
        expected = cross_numbers(swapped, head.layer, head.head)["alignment"]
        assert head.alignment is not None
        assert head.alignment.swapped == pytest.approx(expected, abs=1e-9)


def test_punctuation_of_the_decoder(bart: ClassifyResult, folders: dict[str, Path]) -> None:
    slow = Slow(folders["bart"])
    comma, stop = slow.tokenizer.convert_tokens_to_ids([",", "."])
    mass, n = 0.0, 0
    for pair in (slow.read(*slow.tokens(*pair)) for pair in PAIRS):
        ids = [2, *pair.labels[:-1]]
        marks = [j for j, token in enumerate(ids) if token in (comma, stop)]
        for i in range(1, len(ids)):
            mass += float(pair.decoder[1][2][i][marks].sum())
            n += 1
    (head,) = (head for head in bart.heads if head.name == "decoder:L1H2")
    assert head.punctuation_mass == pytest.approx(mass / n, abs=1e-9)
    assert mass > 0


# --- what is read by whom -----------------------------------------------------------------------


def test_the_encoder_reads_the_sources_as_sentences(
    bart: ClassifyResult, folders: dict[str, Path]
) -> None:
    alone = headscope.classify(
        str(folders["bart"]), [source for source, _ in PAIRS], dtype="float64"
    )
    assert alone.stacks == ("encoder",)
    assert bart.only("encoder").heads == alone.heads
    assert alone.provenance["model"]["n_layers"] == 8  # of all stacks: it is the same model


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_a_stack_alone_is_what_it_is_among_all(
    stack: str, bart: ClassifyResult, folders: dict[str, Path]
) -> None:
    alone = headscope.classify(
        str(folders["bart"]), PAIRS, stack=stack, dtype="float64", control=True
    )
    part = bart.only(stack)
    assert alone.heads == part.heads
    assert alone.untestable == part.untestable
    for name in ("sentences", "skipped", "queries", "pairs"):
        assert getattr(alone.corpus, name) == getattr(part.corpus, name)
    assert alone.control is not None
    assert part.control is not None
    known = {k: v for k, v in vars(alone.control).items() if v is not None}
    assert {k: v for k, v in vars(part.control).items() if v is not None} == known


def test_all_stacks_are_counted_apart(bart: ClassifyResult) -> None:
    stacks = [head.stack for head in bart.heads]
    assert stacks == ["encoder"] * 4 + ["decoder"] * 12 + ["cross"] * 12
    assert len({head.name for head in bart.heads}) == 28
    assert bart.corpus.pairs
    assert [item.stack for item in bart.corpus.by_stack] == ["encoder", "decoder", "cross"]
    assert "syntactic" in bart.untestable
    assert "cross:broad" in bart.untestable
    assert "cross:syntactic" not in bart.untestable
    assert bart.control is not None
    assert {stack: n["heads"] for stack, n in bart.control.by_stack.items()} == {
        "encoder": 4,
        "decoder": 12,
        "cross": 12,
    }
    assert "monotonic" not in bart.control.by_stack["encoder"]


def test_pairs_come_from_tables_and_from_memory(tmp_path: Path, folders: dict[str, Path]) -> None:
    model = headscope.load(str(folders["bart"]))
    wanted = headscope.classify(model, PAIRS, stack="cross", limit=30).heads
    table = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    assert headscope.classify(model, table, stack="cross", limit=30).heads == wanted
    headed = tmp_path / "headed.tsv"
    headed.write_text("target\tsource\n" + "".join(f"{b}\t{a}\n" for a, b in PAIRS))
    assert headscope.classify(model, headed, stack="cross", limit=30).heads == wanted
    lines = tmp_path / "pairs.jsonl"
    lines.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS))
    assert headscope.classify(model, lines, stack="cross", limit=30).heads == wanted


def test_a_view_is_measured_by_default(bart: ClassifyResult, folders: dict[str, Path]) -> None:
    view = headscope.load(str(folders["bart"]), dtype="float64").only("cross")
    assert headscope.classify(view, PAIRS).heads == bart.only("cross").heads


def test_a_pair_that_cannot_be_read_whole_is_skipped(folders: dict[str, Path]) -> None:
    long = ("the " * 60, "a cat sat")
    result = headscope.classify(str(folders["bart"]), [long, *PAIRS, long[::-1]], stack="decoder")
    assert (result.corpus.sentences, result.corpus.skipped) == (len(PAIRS), 2)
    with pytest.raises(CorpusError, match="None of the 1 pairs of in memory could be measured"):
        headscope.classify(str(folders["bart"]), [long], stack="cross")


def test_a_table_stays_text_for_an_encoder(tmp_path: Path) -> None:
    model = headscope.load(str(tiny_bert(tmp_path / "bert")))
    table = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    plain = tmp_path / "pairs.txt"
    plain.write_bytes(table.read_bytes())
    found = headscope.classify(model, table)
    assert found.heads == headscope.classify(model, plain).heads
    assert not found.corpus.pairs


def test_a_decoder_alone_reads_sentences(tmp_path: Path) -> None:
    """gpt2 has one stack; no row sees a token to its right."""
    folder = write_tiny(tmp_path / "gpt2", "gpt2")
    lines = [source for source, _ in PAIRS]
    found = headscope.classify(str(folder), lines, dtype="float64")
    assert found.stacks == ("decoder",)
    assert "decoder:special" in found.untestable
    assert not any(name.endswith(("syntactic", "rare")) for name in found.untestable)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    top, n = 0.0, 0
    for line in lines:
        ids = tokenizer(line)["input_ids"]
        with torch.no_grad():
            out = network(input_ids=torch.tensor([ids]), output_attentions=True)
        for i, token in enumerate(ids):
            if not special(token):
                row = out.attentions[1][0, 3, i]
                top += max(float(row[j]) for j, key in enumerate(ids) if not special(key))
                n += 1
    head = found.heads[-1]
    assert head.name == "decoder:L1H3"
    assert head.confidence == pytest.approx(top / n, abs=1e-9)
    assert headscope.classify(str(folder), lines, stack="all", dtype="float64").heads == found.heads
    with pytest.raises(InputError, match="has no stack 'encoder'; it has decoder"):
        headscope.classify(str(folder), lines, stack="encoder")


# --- refused ------------------------------------------------------------------------------------


def test_what_does_not_fit(tmp_path: Path, folders: dict[str, Path]) -> None:
    bart, bert = str(folders["bart"]), str(tiny_bert(tmp_path / "bert"))
    with pytest.raises(InputError, match=r"stacks decoder and cross of .* read pairs of source"):
        headscope.classify(bart, ["a cat sat"], stack="all")
    with pytest.raises(InputError, match=r"stack cross of .* reads pairs of source and target"):
        headscope.classify(bart, stack="cross")
    with pytest.raises(InputError, match="no stack 'cross'; it has encoder"):
        headscope.classify(bert, ["a cat sat"], stack="cross")
    with pytest.raises(InputError, match="is no encoder-decoder model, so it cannot read pairs"):
        headscope.classify(bert, PAIRS)
    with pytest.raises(CorpusError, match="Pair 1 "):
        headscope.classify(bart, [("a cat", "sat"), ("a dog", " ")])
    half = tmp_path / "half.tsv"
    half.write_text("a cat\tsat\na dog\n")
    with pytest.raises(CorpusError, match=r"half\.tsv, line 2: 1 column where 2 are expected"):
        headscope.classify(bart, half)


# --- kept, resumed, reused ----------------------------------------------------------------------


def without_time(result: ClassifyResult) -> str:
    document = to_dict(result)
    del document["provenance"]["created"]
    return to_json(document)


@pytest.mark.parametrize("stop_in", PASSES)
def test_killed_and_resumed(
    stop_in: str, tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.pipeline.texts.BATCH_TOKENS", 128)
    note = RunState.note

    def save_always(self: RunState[Any], name: str, done: int, sums: Any, **_: Any) -> None:
        note(self, name, done, sums, final=True)

    monkeypatch.setattr(RunState, "note", save_always)
    state, seen = tmp_path / "state.safetensors", []

    def stop(name: str, done: int, total: int) -> None:
        seen.append(name)
        if name == stop_in and seen.count(name) == 2:
            raise KeyboardInterrupt

    def run(**options: Any) -> ClassifyResult:
        return headscope.classify(
            str(folders["bart"]), PAIRS, control=True, command="same", **options
        )

    with pytest.raises(KeyboardInterrupt):
        run(state=state, progress=stop)
    again: list[str] = []
    resumed = run(state=state, resume=True, progress=lambda name, *_: again.append(name))
    assert stop_in in again
    assert not set(again) & set(PASSES[: PASSES.index(stop_in)])
    assert without_time(resumed) == without_time(run())


def test_results_of_earlier_versions_are_read(bart: ClassifyResult) -> None:
    document = json.loads(to_json(bart))
    assert from_dict(ClassifyResult, document) == bart
    old = json.loads(to_json(bart.only("encoder")))
    for name in ("pairs", "by_stack"):
        del old["corpus"][name]
    del old["control"]["by_stack"]
    for head in old["heads"]:
        del head["stack"], head["alignment"], head["sharpness"]
    read = from_dict(ClassifyResult, old)
    assert read.heads == bart.only("encoder").heads
    assert read.only("encoder") is read


def test_roles_are_found_by_stack(bart: ClassifyResult, folders: dict[str, Path]) -> None:
    whole = headscope.load(str(folders["bart"]))
    known = find_roles(whole, bart)
    assert len(known.by_place) == len(bart.heads)
    assert known.by_place[2 + 3 + 1, 2].name == "cross:L1H2"
    view = whole.only("cross")
    for result in (bart, bart.only("cross")):
        assert find_roles(view, result).by_place[1, 2].name == "cross:L1H2"
    with pytest.raises(InputError, match="covers 12 of the 28 heads"):
        find_roles(whole, bart.only("cross"))


def test_frames(bart: ClassifyResult) -> None:
    frame = bart.to_frame()
    assert len(frame) == len(bart.heads)
    assert list(frame.columns[:3]) == ["stack", "layer", "head"]
    cross = frame[frame["stack"] == "cross"]
    assert cross.alignment.notna().all()
    assert cross.alignment_swapped.notna().all()
    assert frame[frame["stack"] != "cross"].alignment.isna().all()
    assert "stack" not in bart.only("encoder").to_frame().columns


def test_what_diff_compares(bart: ClassifyResult) -> None:
    facts = Facts("classify")
    collect(bart, facts)
    (head,) = (head for head in bart.heads if head.name == "cross:L2H3")
    assert head.alignment is not None
    assert head.sharpness is not None
    found = {key[1:]: number for key, number in facts.numbers.items()}
    low, high = head.alignment.interval
    assert found["cross:L2H3", "alignment"] == Number(head.alignment.score, (low, high))
    swapped = found["cross:L2H3", "alignment, swapped sources"]
    assert swapped.value == head.alignment.swapped
    assert found["cross:L2H3", "confidence"].interval == head.sharpness.interval
    assert found["random weights, cross", "monotonic heads"].value == 0
    assert ("random weights, encoder", "monotonic heads") not in found
    assert settings(bart)["pairs"] == len(PAIRS)
