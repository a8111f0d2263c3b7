"""The oracle itself, checked by hand on tiny made-up patterns and against scipy."""

import itertools
from typing import Any

import numpy as np
import pytest
import reference as ref
import scipy.stats

# [CLS] The old ca ##t sat . the [SEP]: seven pieces of six words, "cat" has two.
SENTENCE = ref.Sentence(
    forms=["The", "old", "cat", "sat", ".", "the"],
    heads=[3, 3, 4, 0, 4, 3],
    relations=["det", "amod", "nsubj", "root", "punct", "det"],
)
IDS = [101, 1, 2, 3, 4, 5, 6, 1, 102]
WORD_OF = [None, 0, 1, 2, 2, 3, 4, 5, None]
ENCODED = ref.Encoded(IDS, WORD_OF, SENTENCE)
frequency = {"the": 0.05, "old": 0.01, "cat": 0.001, "sat": 0.002, ".": 0.0}.__getitem__


def one_hot(targets: list[int]) -> ref.Matrix:
    pattern = np.zeros((len(targets), len(targets)))
    pattern[range(len(targets)), targets] = 1.0
    return pattern


def summary(pattern: ref.Matrix, encoded: ref.Encoded = ENCODED) -> dict[str, Any]:
    counts = ref.HeadCounts()
    target = ref.rare_target(encoded.sentence.forms, frequency, {"the"})
    ref.count_sentence(counts, pattern, encoded, target)
    return ref.summarise(counts, ref.syntactic_trials(encoded.sentence))


def test_ties_and_what_is_usable():
    assert ref.lowest_argmax([9.0, 1.0, 2.0, 2.0], [3, 1, 2]) == 2
    assert ENCODED.is_usable(9)  # needs every word and the limit
    assert not ENCODED.is_usable(8)
    assert not ref.Encoded([101, 1, 102], [None, 1, None], SENTENCE).is_usable(9)
    assert all(map(ref.is_punctuation, [".", "...", "$", "``", "-"]))
    assert not any(map(ref.is_punctuation, ["a.", "1", ":D"]))

    def trial(*offsets: int) -> ref.Trial:
        return ref.Trial("x", ref.DOWN, 10, frozenset(10 + offset for offset in offsets))

    assert ref.best_offset([trial(3), trial(-2), trial(2)]) == -2  # small, then negative
    assert ref.best_offset([trial(3, 1), trial(3), trial(-1)]) == 3


def test_previous_token_head():
    result = summary(one_hot([0, 0, 1, 2, 3, 4, 5, 6, 7]))
    positional = result["positional"]
    assert (positional["score"], positional["offset"]) == (1.0, -1)
    # Token 1 has no non-special predecessor, but position 0 counts for the mass.
    assert positional["queries"][-1] == 6
    assert positional["mass"][-1] == 1.0
    # Row 1 is all [CLS], so its content argmax (all zero) is the lowest non-special key, itself.
    assert result["self_rate"] == pytest.approx(1 / 7)
    assert result["rare"]["rate"] == pytest.approx(1 / 5)  # only "sat" looks at "cat"


def test_word_attention_sums_over_the_attended_and_averages_the_attending():
    pattern = np.zeros((9, 9))
    pattern[1, [3, 4, 5]] = [0.2, 0.3, 0.4]  # "The": cat 0.5, sat 0.4
    pattern[3, 5], pattern[4, 5], pattern[4, 6] = 0.1, 0.3, 0.6  # "cat": sat 0.2, "." 0.3
    attention = ref.word_attention(pattern, ENCODED)
    assert attention[0].tolist() == pytest.approx([0, 0, 0.5, 0.4, 0, 0])
    assert attention[2].tolist() == pytest.approx([0, 0, 0, 0.2, 0.3, 0])
    # The token argmax would be "sat"; a row of zeros goes to the lowest word but the diagonal.
    assert ref.word_argmax(attention)[:3] == [2, 0, 4]


def test_syntactic_trials_skip_the_root_and_group_dependents():
    trials = ref.syntactic_trials(SENTENCE)
    assert ref.Trial("det", ref.UP, 5, frozenset([2])) in trials
    assert ref.Trial("det", ref.DOWN, 2, frozenset([0, 5])) in trials
    assert len(trials) == 5 + 4
    assert all(trial.relation != "root" for trial in trials)
    assert ref.syntactic_trials(ref.Sentence(["a"], [0], ["root"])) == []


def test_syntactic_hits_against_the_best_offset():
    # Pieces: The->cat, old->cat, cat->old, sat->cat, .->sat, the->The
    result = summary(one_hot([0, 3, 4, 2, 2, 3, 5, 1, 8]))["syntactic"]
    up = result["det", ref.UP]
    # Trials: The (offset +2) hits, the (offset -3) misses; the tie goes to +2, which hits "The".
    assert (up["trials"], up["hits"], up["baseline"], up["baseline_offset"]) == (2, 1, 0.5, 2)
    assert (up["both"], up["only_head"], up["only_baseline"]) == (1, 0, 0)
    down = result["det", ref.DOWN]
    # One trial for cat: it looks at "old"; the offset -2 (or +3) finds a determiner.
    assert (down["trials"], down["hits"], down["baseline_offset"]) == (1, 0, -2)
    assert (down["both"], down["only_head"], down["only_baseline"]) == (0, 0, 1)
    assert result["punct", ref.UP]["accuracy"] == 1.0


def test_rare_target_ties_and_skips():
    target = ref.rare_target(SENTENCE.forms, frequency, {"the"})
    assert target is not None
    assert target.candidates == {0, 1, 2, 3, 5}  # "." has no letter or digit
    assert target.rarest == {2}
    assert target.two_rarest == {2, 3}
    tied = ref.rare_target(["old", "old", "cat", "cat", "sat"], frequency, set())
    assert tied is not None
    assert tied.rarest == {2, 3} == tied.two_rarest  # counted with multiplicity
    assert ref.rare_target(["Cat", "old"], frequency, {"cat"}) is None
    assert ref.rare_target([".", "."], frequency, set()) is None
    assert ref.rare_target(["cat"], frequency, set()) is None
    single = ref.rare_target(["cat", "."], frequency, set())
    assert single is not None
    assert single.two_rarest == {0}


def test_rare_head():
    # The->cat, old->sat, cat->old, sat->cat, .->cat, the->The: 3 of 5 hits, 4 of 5 of two.
    rare = summary(one_hot([0, 3, 5, 2, 2, 4, 3, 1, 8]))["rare"]
    assert (rare["queries"], rare["hits"]) == (5, 3)
    assert rare["two_rarest"] == pytest.approx(4 / 5)
    assert rare["chance"] == pytest.approx(1 / 5)
    # r = 1 of c = 5: "." scores 1/5, the five candidates (all look at candidates) 1/5 * 4/4.
    assert rare["null"] == pytest.approx(6 / 5 / 5)


@pytest.mark.parametrize("drawn", [1, 2, 3])
def test_null_equals_the_enumeration_of_all_draws(drawn):
    argmax, candidates = [1, 2, 1, 4, 0, 3], [0, 1, 2, 3]
    target = ref.RareTarget(6, frozenset(candidates), frozenset(range(drawn)), frozenset())
    hits = [
        sum(argmax[q] in draw for q in range(6) if q not in draw)
        for draw in map(set, itertools.combinations(candidates, drawn))
    ]
    assert ref.expected_null_hits(target, argmax) == pytest.approx(np.mean(hits))


def test_statistics_are_scipys():
    for a, b in [(0, 0), (0, 1), (5, 0), (7, 7), (3, 12), (900, 1000)]:
        expected = scipy.stats.binomtest(a, a + b, 0.5).pvalue if a + b else 1.0
        assert ref.mcnemar(a, b) == pytest.approx(expected, rel=1e-9)
        assert ref.p_values([a, b], [b, a]) == [ref.mcnemar(a, b)] * 2
    p = np.random.default_rng(0).random(50) ** 3
    p[10:14] = p[10]
    adjusted = scipy.stats.false_discovery_control(p, method="bh")
    assert ref.benjamini_hochberg(p.tolist()) == pytest.approx(adjusted.tolist())
    assert ref.benjamini_hochberg([]) == []
    for hits, trials in [(0, 10), (10, 10), (3, 50), (740, 1000)]:
        found = scipy.stats.binomtest(hits, trials).proportion_ci(method="wilson")
        assert ref.wilson(hits, trials) == pytest.approx((found.low, found.high), abs=1e-12)
    assert ref.wilson(0, 0) == (0.0, 1.0)
