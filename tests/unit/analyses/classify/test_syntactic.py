"""Syntactic labels: reductions to words against loops, and the rule on attention made by hand."""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hand_made import activations, encode
from scipy import stats

from headscope.analyses.classify.kernel import Kernel, kernel_argmax, kernel_hits
from headscope.analyses.classify.rows import WORD_OFFSETS, RowReducer, RowSummary
from headscope.analyses.classify.syntactic import Syntactic
from headscope.analyses.classify.two_halves import SyntacticTest, judge_relations
from headscope.core.roles import Thresholds
from headscope.data.batches import Batch
from headscope.data.sentences import Sentence


class Keep:
    """Remembers the summary of a layer."""

    def update(self, rows: RowSummary, batch: Batch) -> None:
        self.rows = rows


def naive(batch: Batch, pattern: torch.Tensor, row: int, head: int) -> np.ndarray:
    """Mean over the query's pieces, sum over the key's pieces, (words, words)."""
    first = torch.nonzero(batch.first_piece[row])[:, 0].tolist()
    spans = [range(p, p + int(batch.pieces[row, p])) for p in first]
    return np.array(
        [
            [np.mean([sum(float(pattern[row, head, a, b]) for b in k) for a in q]) for k in spans]
            for q in spans
        ]
    )


@pytest.mark.parametrize("rows_at_once", [1, 4])
def test_word_level_reductions(rows_at_once):
    corpus = [Sentence(tuple("w" * n)) for n in (1, 2, 5, 24, 47, 3)]
    batch = encode(corpus, pieces=lambda i: 1 + (i * 5) % 4)
    torch.manual_seed(0)
    scores = torch.randn(batch.size[0], 3, batch.size[1], batch.size[1], dtype=torch.float64)
    scores = scores.masked_fill(batch.attention_mask[:, None, None, :] == 0, -1e30)
    pattern = torch.softmax(scores, dim=-1)
    keep = Keep()
    kernel = Kernel(1, 3)
    reducer = RowReducer(1, 3, lambda *summed: (keep.update(*summed), kernel.update(*summed)))
    reducer.start(batch)
    for start in range(0, batch.size[0], rows_at_once):
        rows = slice(start, min(start + rows_at_once, batch.size[0]))
        for heads in (slice(0, 1), slice(1, 3)):
            reducer.observe(
                activations(pattern[rows, heads], examples=rows, heads=heads, n_heads=3)
            )
    reducer.finish("encoder", 0)
    sums: dict[tuple[int, int], list[float]] = {key: [] for key in product(range(3), WORD_OFFSETS)}
    for row in range(batch.size[0]):
        first = torch.nonzero(batch.first_piece[row])[:, 0].tolist()
        pieces = np.array([int(batch.pieces[row, p]) for p in first])
        for head in range(3):
            words = naive(batch, pattern, row, head)
            for i in range(len(words) if len(words) > 1 else 0):
                keys = [j for j in range(len(words)) if j != i]
                by_sum = max(keys, key=lambda j: words[i, j])
                by_mean = max(keys, key=lambda j: words[i, j] / pieces[j])
                assert int(keep.rows.word_argmax[row, head, first[i]]) == first[by_sum]
                assert int(keep.rows.word_argmax_mean[row, head, first[i]]) == first[by_mean]
                if row % 2 == 0:
                    for j in keys:
                        r = max(-20, min(20, j - i))
                        sums[head, r].append(words[i, j] / pieces[j])
    for (head, r), values in sums.items():
        index = WORD_OFFSETS.index(r)
        assert int(kernel.pairs[index]) == len(values)
        expected = np.mean(values) if values else 0.0
        assert kernel.means()[0, head, index] == pytest.approx(expected, rel=1e-6)


def test_kernel_argmax_equals_its_definition():
    rng = np.random.default_rng(3)
    corpus = [Sentence(tuple("w" * n)) for n in (1, 2, 3, 25, 50)]
    batch = encode(corpus, pieces=lambda i: 1 + (i * 7) % 3)
    kernel = rng.integers(1, 4, (3, len(WORD_OFFSETS))).astype(float)  # ties
    looks_at = kernel_argmax(torch.from_numpy(kernel), batch)
    for row, sentence in enumerate(corpus):
        first = torch.nonzero(batch.first_piece[row])[:, 0].tolist()
        n = len(sentence.words)
        pieces = [int(batch.pieces[row, p]) for p in first]
        assert pieces == [1 + (i * 7) % 3 for i in range(n)]
        for head in range(3):
            for i in range(n if n > 1 else 0):
                k = {
                    j: kernel[head, WORD_OFFSETS.index(max(-20, min(20, j - i)))] * pieces[j]
                    for j in range(n)
                    if j != i
                }
                best = max(k.values())
                expected = min(j for j in k if k[j] == best)
                assert int(looks_at[row, head, first[i]]) == first[expected]


#: What a head attends to: from a sentence and a query word to a word.
Habit = Callable[[Sentence, int], int]


def sentences(relation: str = "obj") -> list[Sentence]:
    """Sentences of 6 to 12 words in which every word but the root hangs on a random other one."""
    rng = np.random.default_rng(0)
    corpus = []
    for _ in range(240):
        n = int(rng.integers(6, 13))
        heads = [int(rng.choice([j for j in range(n) if j != i])) for i in range(n)]
        relations = [relation] * n
        heads[n // 2] = -1
        relations[n // 2] = "root"
        corpus.append(Sentence(tuple(f"w{i}" for i in range(n)), tuple(heads), tuple(relations)))
    return corpus


def attend(corpus: Sequence[Sentence], batch: Batch, habit: Habit) -> torch.Tensor:
    """Word-level argmax of one head with that habit, (batch, 1, pos)."""
    argmax = torch.zeros(batch.size[0], 1, batch.size[1], dtype=torch.int64)
    for row, sentence in enumerate(corpus):
        first = torch.nonzero(batch.first_piece[row])[:, 0]
        for query in range(len(sentence.words)):
            argmax[row, 0, first[query]] = first[habit(sentence, query)]
    return argmax


def judged(
    corpus: Sequence[Sentence],
    habit: Habit,
    *,
    by_mean: Habit | None = None,
    kernel: Sequence[float] | None = None,
    swapped: bool = False,
    **thresholds: float,
) -> dict[tuple[str, str], SyntacticTest]:
    batch = encode(corpus)
    argmax = attend(corpus, batch, habit)
    mean = argmax if by_mean is None else attend(corpus, batch, by_mean)
    sums = Syntactic(1, 1, swapped=swapped)
    nothing = torch.zeros(0)
    sums.update(RowSummary(*[nothing] * 5, argmax, mean), batch)
    by_offset = np.array(kernel or [0.0] * len(WORD_OFFSETS)).reshape(1, 1, -1)
    (hits,) = kernel_hits(by_offset, [sums], [batch] if kernel is not None else [])
    tests = judge_relations(sums, hits, np.ones((1, 1), bool), Thresholds.parse(thresholds))
    return {(test.relation, test.direction): test for test in tests}


def to_head(sentence: Sentence, query: int) -> int:
    assert sentence.heads is not None
    if sentence.heads[query] >= 0:
        return sentence.heads[query]
    return 1 if query == 0 else 0


def to_last(sentence: Sentence, query: int) -> int:
    last = len(sentence.words) - 1
    return last if query != last else 0


OBJ = ("obj", "dep->head")


def one(test: SyntacticTest) -> tuple[bool, bool]:
    return bool(test.selected[0, 0]), bool(test.confirmed[0, 0])


def test_a_head_that_follows_the_tree_is_labelled():
    test = judged(sentences(), to_head)[OBJ]
    assert one(test) == (True, True)
    score = test.score((0, 0))
    assert score.accuracy.value == score.accuracy_mean == score.confirmed.accuracy.value == 1.0
    a = sum(len(sentence.words) - 1 for sentence in sentences()[0::2])
    b = sum(len(sentence.words) - 1 for sentence in sentences()[1::2])
    assert (score.trials, score.confirmed.trials) == (a + b, b)
    wilson = stats.binomtest(b, b).proportion_ci(method="wilson")
    assert score.confirmed.accuracy.interval == pytest.approx(tuple(wilson))
    # Both halves need trials.
    assert one(judged(sentences(), to_head, min_trials=min(a, b))[OBJ]) == (True, True)
    assert one(judged(sentences(), to_head, min_trials=min(a, b) + 1)[OBJ]) == (False, False)
    # Trees of other sentences are random to it.
    for test in judged(sentences(), to_head, swapped=True).values():
        assert one(test) == (False, False)
        assert test.overall.trials > 0


@pytest.mark.parametrize("baseline", ["first", "last"])
def test_always_the_same_word_is_no_syntax(baseline):
    """Every word hangs on it: no offset explains that, but no content does either."""
    corpus = []
    for s in sentences():
        n = len(s.words) - 1
        target = 0 if baseline == "first" else n
        heads = [target] * (n + 1)
        relations = ["obj"] * (n + 1)
        heads[target] = -1
        relations[target] = "root"
        corpus.append(dataclasses.replace(s, heads=tuple(heads), relations=tuple(relations)))
    habit = to_last if baseline == "last" else lambda s, q: 0 if q else 1
    test = judged(corpus, habit)[OBJ]
    score = test.score((0, 0))
    assert score.accuracy.value == score.baselines[baseline] == 1.0
    # The best offset alone would have let the last word pass.
    assert score.accuracy.value - score.baseline > 0.5 or baseline == "first"
    assert one(test) == (False, False)


def test_what_the_distance_kernel_explains_is_no_syntax():
    """Head to the right except at the end, where it is to the left: two offsets, one kernel."""

    def near(sentence: Sentence, query: int) -> int:
        return query + 1 if query + 1 < len(sentence.words) else query - 1

    corpus = []
    for words in [("a", "b")] * 120 + [("a", "b", "c")] * 120:
        heads = tuple(near(Sentence(words), i) for i in range(len(words)))
        corpus.append(Sentence(words, heads, ("obj",) * len(words)))
    kernel = [0.0] * len(WORD_OFFSETS)
    kernel[WORD_OFFSETS.index(1)] = 0.6
    kernel[WORD_OFFSETS.index(-1)] = 0.4
    test = judged(corpus, near, kernel=kernel)[OBJ]
    score = test.score((0, 0))
    assert score.baselines["kernel"] == 1.0
    assert max(v for k, v in score.baselines.items() if k != "kernel") < 0.9
    assert one(test) == (False, False)
    assert one(judged(corpus, near)[OBJ])[0]  # it is the kernel that stops it


def test_punctuation_never_makes_a_label_and_piece_means_must_agree():
    for relation in ("punct", "root"):
        test = judged(sentences(relation), to_head)[relation, "dep->head"]
        assert test.score((0, 0)).accuracy.value == 1.0
        assert one(test) == (False, False)
    test = judged(sentences(), to_head, by_mean=to_last)[OBJ]
    assert one(test) == (True, False)
    score = test.score((0, 0))
    assert not score.labelled
    assert score.confirmed.accuracy_mean < 0.5


def test_what_holds_on_one_half_alone_is_not_confirmed():
    corpus = sentences()
    even = {id(s) for s in corpus[::2]}

    def habit(sentence: Sentence, query: int) -> int:
        return to_head(sentence, query) if id(sentence) in even else to_last(sentence, query)

    assert one(judged(corpus, habit)[OBJ]) == (True, False)
    odd_only = judged(corpus, lambda s, q: to_last(s, q) if id(s) in even else to_head(s, q))[OBJ]
    assert one(odd_only) == (False, False)
    assert odd_only.score((0, 0)).confirmed is None
