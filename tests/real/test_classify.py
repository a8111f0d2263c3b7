"""Classification of real models: known numbers, and every number against the slow oracle."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference
import reference_labels
import wordfreq
from frozen import frozen

import headscope
from headscope.analyses.classify.result import ClassifyResult, SwappedControl
from headscope.data.corpus import SAMPLE
from headscope.models.load.source import demo_folder

TOLERANCE = 1e-6
ORACLE = (reference, reference_labels)
MODEL, PAIRS = "models/ar-en-transliteration", "data/ar-en-test.tsv"
Measured = Callable[..., Any]


@pytest.fixture(scope="module")
def english(measured, ewt):
    """All of UD English-EWT test."""
    result = measured("classify", corpus=ewt, language="en")
    assert isinstance(result, ClassifyResult)
    return result


@pytest.fixture(scope="module")
def parallel(measured, shared):
    """All of UD English-PUD, with the control."""
    path = shared / "data" / "en_pud-ud-test.conllu"
    result = measured("classify", corpus=path, language="en", control=True)
    assert isinstance(result, ClassifyResult)
    return result


def labels_of(result):
    return {
        (h.name, s.relation, s.direction) for h in result.heads for s in h.syntactic if s.labelled
    }


def test_known_numbers_of_the_demo_model(english):
    """Published and earlier-measured facts; the counts are those of an independent script."""
    assert (english.corpus.sentences, english.corpus.skipped) == (2077, 0)
    heads = {head.name: head for head in english.heads}
    for name, offset, score in (("L0H2", -1, 0.998), ("L1H8", 1, 0.988)):
        assert heads[name].positional.offset == offset
        assert heads[name].positional.score.value == pytest.approx(score, abs=0.001)
    assert {h.name for h in english.heads if "positional" in h.roles} == {"L0H2", "L1H8"}

    objects = {
        head.name: score
        for head in english.heads
        for score in head.syntactic
        if (score.relation, score.direction) == ("obj", "dep->head")
    }
    name = max(objects, key=lambda name: objects[name].accuracy.value)
    best, confirmed = objects[name], objects[name].confirmed
    assert confirmed is not None
    assert (name, best.labelled, confirmed.strongest) == ("L2H0", True, "offset")
    assert best.accuracy.value == pytest.approx(0.740, abs=0.0005)
    assert best.baseline == pytest.approx(0.350, abs=0.0005)
    assert confirmed.accuracy.value == pytest.approx(0.738, abs=0.0005)
    assert confirmed.baselines["offset"] == pytest.approx(0.358, abs=0.0005)

    labels = labels_of(english)
    assert sum(s.selected for h in english.heads for s in h.syntactic) == 49
    assert (len(labels), len({name for name, *_ in labels})) == (30, 10)
    assert len({n for n, relation, _ in labels if relation in reference_labels.VOITA}) == 8


def test_what_other_treebanks_random_weights_and_swapped_trees_earn(english, parallel):
    """Untrained heads spread evenly: broad is no sign of learning, and the control says so."""
    labels = labels_of(english)
    assert len(labels & labels_of(parallel)) >= 0.7 * len(labels)
    control = parallel.control
    assert english.control.swapped == control.swapped == SwappedControl(labels=0, heads=0)
    assert [control.roles[key] for key in ("syntactic", "rare", "positional")] == [0, 0, 0]
    assert control.roles["broad"] == control.heads == 72


def test_every_label_carries_what_a_reader_needs(english):
    labels = [label for head in english.heads for label in head.labels]
    assert len(labels) > 50
    for label in labels:
        assert label.score.low <= label.score.value <= label.score.high
        assert label.score.value > label.baseline
        assert label.against
        assert 0 <= label.p_adjusted <= english.thresholds["q"]
    # URLs and numbers make `list` easy for heads that spread evenly: no label from that.
    lists = [s for h in english.heads for s in h.syntactic if s.relation == "list"]
    assert any(s.accuracy.value - s.baseline > 0.1 for s in lists)
    assert all(s.accuracy.value - s.uniform >= 0.1 for s in lists if s.labelled)


def _frequency(word):
    return float(wordfreq.word_frequency(word, "en"))


def _plain(value: Any) -> Any:
    """What an oracle says as JSON: keys like "0 2" and "obj dep->head", floats of nine digits."""
    if isinstance(value, dict):
        return {
            " ".join(map(str, key)) if isinstance(key, tuple) else str(key): _plain(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _measured_slowly(treebank: Path, limit: int) -> Any:
    """The raw numbers; what is the same for all heads stands once."""
    frequent = set(wordfreq.top_n_list("en", 500))
    sentences = reference.read_treebank(treebank)[:limit]
    result = reference.measure(demo_folder(), sentences, _frequency, frequent)
    shared = ("trials", "baseline", "baseline_offset")
    first = next(iter(result["heads"].values()))["syntactic"]
    result["trials"] = {key: [entry[name] for name in shared] for key, entry in first.items()}
    for head in result["heads"].values():
        assert all(head["syntactic"][k][n] == first[k][n] for k in first for n in shared)
        head["syntactic"] = {key: entry["accuracy"] for key, entry in head["syntactic"].items()}
    return _plain(result)


def test_every_number_is_the_oracles(demo):
    """Of 100 sentences of the built-in sample."""
    slow = frozen(
        "classify-sample",
        lambda: _measured_slowly(SAMPLE, 100),
        code=[reference, _measured_slowly, _plain],
        inputs=[demo_folder(), SAMPLE],
    )
    fast = headscope.classify(demo, SAMPLE, limit=100, language="en")
    for name in ("sentences", "skipped", "queries"):
        assert getattr(fast.corpus, name) == slow[name]
    assert len(fast.heads) == len(slow["heads"]) == 72
    for head in fast.heads:
        _compare_head(head, slow["heads"][f"{head.layer} {head.head}"], slow)


def _compare_head(head, slow, everything):
    near = 1.5 / everything["queries"]  # of thousands of rows one has two keys as near as rounding
    theirs, rare = slow["positional"], slow["rare"]
    assert head.positional.rates == pytest.approx(theirs["rates"], abs=near)
    assert head.positional.mass == pytest.approx(theirs["mass"], abs=TOLERANCE)
    assert head.positional.score.value == pytest.approx(theirs["score"], abs=near)
    assert head.positional.offset == theirs["offset"]
    assert {f"{s.relation} {s.direction}" for s in head.syntactic} == set(slow["syntactic"])
    for score in head.syntactic:
        key = f"{score.relation} {score.direction}"
        trials, baseline, offset = everything["trials"][key]
        assert (score.trials, score.baseline_offset) == (trials, offset)
        assert score.accuracy.value == pytest.approx(slow["syntactic"][key], abs=1.5 / trials), key
        assert score.baseline == pytest.approx(baseline, abs=TOLERANCE)
    assert head.rare.queries == rare["queries"]
    one = 1.5 / rare["queries"]
    for ours, other, tolerance in (
        (head.rare.rate.value, rare["rate"], one),
        (head.rare.two_rarest, rare["two_rarest"], one),
        (head.rare.chance, rare["chance"], TOLERANCE),
        (head.self_rate, slow["self_rate"], near),
        (head.duplicate_rate, slow["duplicate"], near),
        (head.confidence, slow["confidence"], TOLERANCE),
        (head.entropy, slow["entropy"], TOLERANCE),
        (head.special_mass, slow["special_mass"], TOLERANCE),
        (head.first_special_mass, slow["cls_mass"], TOLERANCE),
        (head.last_special_mass, slow["sep_mass"], TOLERANCE),
        (head.punctuation_mass, slow["punctuation_mass"], TOLERANCE),
    ):
        assert ours == pytest.approx(other, abs=tolerance), head.name


def _labelled_slowly(treebank: Path) -> Any:
    frequent = set(wordfreq.top_n_list("en", 500))
    sentences = reference.read_treebank(treebank)
    result = reference_labels.classify(demo_folder(), sentences, _frequency, frequent)
    return _compact(_plain(result))


def _compact(result: dict[str, Any]) -> dict[str, Any]:
    """What is the same for all heads once; of the two halves what a result holds."""
    swapped = [entry for head in result["swapped"].values() for entry in head.values()]
    heads, shared = {}, ("offset", "first", "last", "uniform")
    for place, entries in result["syntactic"].items():
        heads[place] = {
            key: [
                *(round(e[name], 7) for name in ("accuracy", "accuracy_mean")),
                round(e["baselines"]["kernel"], 7),
                *(int(e[name]) for name in ("selected", "labelled")),
            ]
            for key, e in entries.items()
        }
    first = next(iter(result["syntactic"].values()))
    names = ("trials", "accuracy", "strongest", "baselines", "interval", "p_adjusted")
    return {
        "syntactic": heads,
        "trials": {key: e["trials"] for key, e in first.items()},
        "baselines": {key: {n: e["baselines"][n] for n in shared} for key, e in first.items()},
        "confirmed": {
            f"{place} {key}": {name: e["confirmed"][name] for name in names}
            for place, entries in result["syntactic"].items()
            for key, e in entries.items()
            if e["confirmed"] is not None
        },
        "swapped_labels": sum(entry["labelled"] for entry in swapped),
        "rare": result["rare"],
        "broad": result["broad"],
    }


def test_labels_agree_with_the_oracle(parallel, shared):
    """Every number of the two halves, on a treebank large enough to label."""
    treebank = shared / "data" / "en_pud-ud-test.conllu"
    slow = frozen(
        "classify-labels",
        lambda: _labelled_slowly(treebank),
        code=[*ORACLE, _labelled_slowly, _compact, _plain],
        inputs=[demo_folder(), treebank],
    )
    labels = 0
    for head in parallel.heads:
        place = f"{head.layer} {head.head}"
        for score in head.syntactic:
            key = f"{score.relation} {score.direction}"
            accuracy, accuracy_mean, kernel, *decided = slow["syntactic"][place][key]
            near = 1.5 / score.trials  # of thousands of rows one has two words as near as rounding
            assert score.trials == slow["trials"][key], key
            assert score.accuracy.value == pytest.approx(accuracy, abs=near), key
            assert score.accuracy_mean == pytest.approx(accuracy_mean, abs=near), key
            baselines = {**slow["baselines"][key], "kernel": kernel}
            assert score.baselines == pytest.approx(baselines, abs=near), key
            assert [score.selected, score.labelled] == decided, key
            if score.confirmed is not None:
                _compare_confirmed(score.confirmed, slow["confirmed"][f"{place} {key}"])
            labels += score.labelled
        _compare_roles(head, slow["rare"][place], slow["broad"][place])
    assert labels > 20
    assert parallel.control is not None
    assert parallel.control.swapped is not None
    assert parallel.control.swapped.labels == slow["swapped_labels"]


def _compare_confirmed(ours, held_out):
    near = 1.5 / ours.trials
    assert (ours.trials, ours.strongest) == (held_out["trials"], held_out["strongest"])
    assert ours.accuracy.value == pytest.approx(held_out["accuracy"], abs=near)
    assert ours.baselines == pytest.approx(held_out["baselines"], abs=near)
    assert ours.accuracy.interval == pytest.approx(held_out["interval"], abs=near)
    assert ours.p_adjusted == pytest.approx(held_out["p_adjusted"], rel=0.2, abs=1e-9)


def _compare_roles(head, rare, broad):
    assert (head.rare.sentences, head.rare.queries) == (rare["sentences"], rare["queries"])
    assert head.rare.rate.value == pytest.approx(rare["rate"], abs=2e-4)
    assert head.rare.uniform == pytest.approx(rare["uniform"], abs=TOLERANCE)
    assert head.rare.rate.interval == pytest.approx(rare["interval"], abs=5e-4)
    assert head.rare.p_adjusted == pytest.approx(rare["p_adjusted"], rel=0.05, abs=1e-9)
    assert ("rare" in head.roles) == rare["labelled"]
    assert head.long_entropy == pytest.approx(broad["mean"], abs=1e-5)
    assert ("broad" in head.roles) == broad["broad"]


def test_heads_of_a_transliteration_model(measured, shared):
    """Pairs of names, Arabic and Latin; names are short, and both scripts write in one order."""
    path = str(shared / MODEL)
    result = measured("classify", model=path, corpus=shared / PAIRS, control=True)
    read = {item.stack: (item.sentences, item.skipped) for item in result.corpus.by_stack}
    assert read == {"encoder": (1590, 0), "decoder": (1590, 0), "cross": (1586, 4)}
    assert set(result.untestable) >= {"cross:special", "cross:broad", "decoder:broad", "syntactic"}
    roles = Counter((head.stack, role) for head in result.heads for role in head.roles)
    assert roles == {("cross", "monotonic"): 42, ("cross", "sharp"): 13}
    assert result.control.heads == 144
    counts = [counts.values() for counts in result.control.by_stack.values()]
    assert [sorted(values)[-2:] for values in counts] == [[0, 48]] * 3
    gains = dict.fromkeys(range(6), 0.0)  # position explains most of the alignment
    for head in result.only("cross").heads:
        gains[head.layer] += (head.alignment.score.value - head.alignment.swapped.value) / 8
    assert max(gains[0], gains[1]) < 0.01
    assert gains[5] > 0.08
