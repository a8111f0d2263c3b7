"""Classification of real models: known numbers, and every number against the slow oracle."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import reference
import reference_labels
import wordfreq
from frozen import frozen

import headscope
from headscope.analyses.classify.result import SwappedControl
from headscope.data.corpus import SAMPLE
from headscope.models.load.source import demo_folder

TOLERANCE = 1e-6
ORACLE = (reference, reference_labels)
TRANSLITERATION = "models/ar-en-transliteration"
NAMES = "data/ar-en-test.tsv"
PUD = "data/en_pud-ud-test.conllu"
SENTENCES = 600


@pytest.fixture(scope="module")
def english(demo, ewt):
    """The first 700 of 2,077 sentences of UD English-EWT test."""
    return headscope.classify(demo, ewt, limit=700, language="en")


@pytest.fixture(scope="module")
def parallel(demo, shared):
    """The first 600 of 1,000 sentences of UD English-PUD."""
    return headscope.classify(demo, shared / PUD, limit=SENTENCES, language="en")


def labels_of(result):
    labels = set()
    for head in result.heads:
        labels |= {(head.name, s.relation, s.direction) for s in head.syntactic if s.labelled}
    return labels


def test_known_numbers_of_the_demo_model(english):
    """Near what all of EWT gives, by an independent script and by what others published."""
    heads = {head.name: head for head in english.heads}
    for name, offset, score in (("L0H2", -1, 0.998), ("L1H8", 1, 0.988)):
        assert heads[name].positional.offset == offset
        assert heads[name].positional.score.value == pytest.approx(score, abs=0.004)
    assert {h.name for h in english.heads if "positional" in h.roles} == {"L0H2", "L1H8"}

    objects = {}
    for head in english.heads:
        for score in head.syntactic:
            if (score.relation, score.direction) == ("obj", "dep->head"):
                objects[head.name] = score
    name = max(objects, key=lambda name: objects[name].accuracy.value)
    best = objects[name]
    confirmed = objects[name].confirmed
    assert confirmed is not None
    assert (name, best.labelled, confirmed.strongest) == ("L2H0", True, "offset")
    assert best.accuracy.value == pytest.approx(0.740, abs=0.04)
    assert best.baseline == pytest.approx(0.350, abs=0.04)

    labels = labels_of(english)
    assert 20 <= len(labels) <= 34
    assert len({n for n, relation, _ in labels if relation in reference_labels.VOITA}) >= 7
    # URLs and numbers make `list` easy for heads that spread evenly: no label from that.
    scores = chain.from_iterable(head.syntactic for head in english.heads)
    lists = [score for score in scores if score.relation == "list"]
    assert any(s.accuracy.value - s.baseline > 0.1 for s in lists)
    assert all(s.accuracy.value - s.uniform >= 0.1 for s in lists if s.labelled)


def test_what_other_treebanks_random_weights_and_swapped_trees_earn(
    english, parallel, demo, shared
):
    """Untrained heads spread evenly: broad is no sign of learning, and the control says so."""
    labels = labels_of(english)
    # Of all sentences of both 70% are alike; with fewer, more lie near a threshold.
    assert len(labels & labels_of(parallel)) >= 0.55 * len(labels)
    nothing = SwappedControl(labels=0, heads=0)
    assert english.control.swapped == parallel.control.swapped == nothing
    few = headscope.classify(demo, shared / PUD, limit=150, language="en", control=True)
    control = few.control
    assert [control.roles[key] for key in ("syntactic", "rare", "positional")] == [0, 0, 0]
    assert control.roles["broad"] == control.heads == 72


def _frequency(word):
    return float(wordfreq.word_frequency(word, "en"))


def _plain(value: Any) -> Any:
    """What an oracle says as JSON: keys like "0 2" and "obj dep->head", floats of nine digits."""
    if isinstance(value, dict):
        return {
            " ".join(map(str, key)) if isinstance(key, tuple) else str(key): _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _measured_slowly() -> Any:
    return _plain(reference.measure(demo_folder(), reference.read_treebank(SAMPLE)[:100]))


def test_every_number_is_the_oracles(demo):
    """Of 100 sentences of the built-in sample, what needs no words."""
    slow = frozen(
        "classify-sample",
        _measured_slowly,
        code=[reference, _measured_slowly, _plain],
        inputs=[demo_folder(), SAMPLE],
    )
    fast = headscope.classify(demo, SAMPLE, limit=100, language="en")
    for name in ("sentences", "skipped", "queries"):
        assert getattr(fast.corpus, name) == slow[name]
    assert len(fast.heads) == len(slow["heads"]) == 72
    near = 1.5 / slow["queries"]  # of thousands of rows one has two keys as near as rounding
    for head in fast.heads:
        expected = slow["heads"][f"{head.layer} {head.head}"]
        positional = expected["positional"]
        assert head.positional.rates == pytest.approx(positional["rates"], abs=near)
        assert head.positional.mass == pytest.approx(positional["mass"], abs=TOLERANCE)
        assert head.positional.score.value == pytest.approx(positional["score"], abs=near)
        assert head.positional.offset == positional["offset"]
        for ours, number, tolerance in (
            (head.self_rate, expected["self_rate"], near),
            (head.duplicate_rate, expected["duplicate"], near),
            (head.confidence, expected["confidence"], TOLERANCE),
            (head.entropy, expected["entropy"], TOLERANCE),
            (head.special_mass, expected["special_mass"], TOLERANCE),
            (head.first_special_mass, expected["cls_mass"], TOLERANCE),
            (head.last_special_mass, expected["sep_mass"], TOLERANCE),
            (head.punctuation_mass, expected["punctuation_mass"], TOLERANCE),
        ):
            assert ours == pytest.approx(number, abs=tolerance), head.name


def _labelled_slowly(treebank: Path, limit: int) -> Any:
    frequent = set(wordfreq.top_n_list("en", 500))
    sentences = reference.read_treebank(treebank)[:limit]
    result = reference_labels.classify(demo_folder(), sentences, _frequency, frequent)
    return _compact(_plain(result))


def _compact(result: dict[str, Any]) -> dict[str, Any]:
    """What is the same for all heads once; of the two halves what a result holds."""
    swapped = chain.from_iterable(entries.values() for entries in result["swapped"].values())
    heads = {}
    confirmed = {}
    shared = ("offset", "first", "last", "uniform")
    names = ("trials", "accuracy", "strongest", "baselines", "interval", "p_adjusted")
    for layer_and_head, entries in result["syntactic"].items():
        heads[layer_and_head] = {
            key: [
                *(round(e[name], 7) for name in ("accuracy", "accuracy_mean")),
                round(e["baselines"]["kernel"], 7),
                *(int(e[name]) for name in ("selected", "labelled")),
            ]
            for key, e in entries.items()
        }
        for key, e in entries.items():
            if e["confirmed"] is not None:
                numbers = {name: e["confirmed"][name] for name in names}
                confirmed[f"{layer_and_head} {key}"] = numbers
    first = next(iter(result["syntactic"].values()))
    return {
        "syntactic": heads,
        "trials": {key: [e["trials"], e["offset"]] for key, e in first.items()},
        "baselines": {key: {n: e["baselines"][n] for n in shared} for key, e in first.items()},
        "confirmed": confirmed,
        "swapped_labels": sum(entry["labelled"] for entry in swapped),
        "rare": result["rare"],
        "broad": result["broad"],
    }


def test_labels_agree_with_the_oracle(parallel, shared):
    """Every number of the two halves, on a treebank large enough to label."""
    treebank = shared / PUD
    slow = frozen(
        "classify-labels",
        lambda: _labelled_slowly(treebank, SENTENCES),
        code=[*ORACLE, _labelled_slowly, _compact, _plain],
        inputs=[demo_folder(), treebank, str(SENTENCES)],
    )
    labels = 0
    for head in parallel.heads:
        layer_and_head = f"{head.layer} {head.head}"
        for score in head.syntactic:
            key = f"{score.relation} {score.direction}"
            accuracy, accuracy_mean, kernel, *decided = slow["syntactic"][layer_and_head][key]
            near = 1.5 / score.trials  # of thousands of rows one has two words as near as rounding
            assert [score.trials, score.baseline_offset] == slow["trials"][key], key
            assert score.accuracy.value == pytest.approx(accuracy, abs=near), key
            assert score.accuracy_mean == pytest.approx(accuracy_mean, abs=near), key
            baselines = {**slow["baselines"][key], "kernel": kernel}
            assert score.baselines == pytest.approx(baselines, abs=near), key
            assert [score.selected, score.labelled] == decided, key
            if score.confirmed is not None:
                _compare_confirmed(score.confirmed, slow["confirmed"][f"{layer_and_head} {key}"])
            labels += score.labelled
        _compare_roles(head, slow["rare"][layer_and_head], slow["broad"][layer_and_head])
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
    assert head.rare.two_rarest == pytest.approx(rare["two_rarest"], abs=2e-4)
    assert head.rare.chance == pytest.approx(rare["chance"], abs=TOLERANCE)
    assert head.rare.uniform == pytest.approx(rare["uniform"], abs=TOLERANCE)
    assert head.rare.rate.interval == pytest.approx(rare["interval"], abs=5e-4)
    assert head.rare.p_adjusted == pytest.approx(rare["p_adjusted"], rel=0.05, abs=1e-9)
    assert ("rare" in head.roles) == rare["labelled"]
    assert head.long_entropy == pytest.approx(broad["mean"], abs=1e-5)
    assert ("broad" in head.roles) == broad["broad"]


def test_heads_of_a_transliteration_model(shared):
    """Pairs of names, Arabic and Latin; names are short, and both scripts write in one order."""
    path = str(shared / TRANSLITERATION)
    pairs = shared / NAMES
    result = headscope.classify(path, pairs, limit=600, control=True, validate=False)
    read = {item.stack: item.sentences + item.skipped for item in result.corpus.by_stack}
    assert read == {"encoder": 600, "decoder": 600, "cross": 600}
    assert set(result.untestable) >= {"cross:special", "cross:broad", "decoder:broad", "syntactic"}
    roles: Counter[tuple[str, str]] = Counter()
    for head in result.heads:
        roles.update((head.stack, role) for role in head.roles)
    # Of all 1,590 pairs 42 and 13
    assert roles.keys() == {("cross", "monotonic"), ("cross", "sharp")}
    assert 36 <= roles["cross", "monotonic"] <= 48
    assert 10 <= roles["cross", "sharp"] <= 16
    assert result.control.heads == 144
    counts = [counts.values() for counts in result.control.by_stack.values()]
    assert [sorted(values)[-2:] for values in counts] == [[0, 48]] * 3
    gains = dict.fromkeys(range(6), 0.0)  # position explains most of the alignment
    for head in result.only("cross").heads:
        gains[head.layer] += (head.alignment.score.value - head.alignment.swapped.value) / 8
    assert max(gains[0], gains[1]) < 0.01
    assert gains[5] > 0.08
