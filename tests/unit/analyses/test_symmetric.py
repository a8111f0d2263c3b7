"""Changed scores against plain loops, and what must not change anything."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from headscope.analyses.symmetric.measure import (
    changed_attention,
    changed_scores,
    score_asymmetry,
    square_scores,
)
from headscope.attention import attention_pattern

N = 5
D = 3
SCALE = 0.6
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()


def draw() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 1, 2, N, D, generator=generator, dtype=torch.float64).unbind()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(9)


def by_hand(q: Tensor, k: Tensor, v: Tensor, bias, sees) -> Tensor:
    """(S + S^T) / 2 before the softmax, one number after the other."""
    z = torch.zeros_like(v)
    for h in range(q.shape[1]):
        s = np.array([[float(a @ b) * SCALE for b in k[0, h]] for a in q[0, h]])
        s += [[bias(i, j) for j in range(N)] for i in range(N)]
        for i in range(N):
            weights = [math.exp((s[i, j] + s[j, i]) / 2) if sees(i, j) else 0.0 for j in range(N)]
            for j in range(N):
                z[0, h, i] += weights[j] / sum(weights) * v[0, h, j]
    return z


@pytest.mark.parametrize("case", ["padded", "causal", "bias", "causal bias"])
def test_symmetric_scores_are_the_mean_of_both_directions(case):
    q, k, v = draw()
    padded = torch.tensor([1, 1, 1, 1, 0], dtype=torch.bool)
    bias = torch.randn(1, 1, N, N, generator=generator(), dtype=torch.float64)
    low = torch.finfo(torch.float64).min
    masks = {
        "padded": padded[None, None, None],
        "causal": CAUSAL,
        "bias": bias.masked_fill(~padded[None, None, None], low),
        "causal bias": bias.masked_fill(~CAUSAL, low),
    }
    ours = changed_attention("symmetric", q, k, v, scale=SCALE, mask=masks[case])

    def added(i: int, j: int) -> float:
        if case == "bias":
            return float(bias[0, 0, i, j])
        # What is added to a pair that is never seen is not known: the other direction's.
        return float(bias[0, 0, max(i, j), min(i, j)]) if case == "causal bias" else 0.0

    def sees(i: int, j: int) -> bool:
        return j <= i if "causal" in case else bool(padded[j])

    expected = by_hand(q, k, v, added, sees)
    rows = 4 if case in ("padded", "bias") else N  # the last query is padding there
    torch.testing.assert_close(ours[:, :, :rows], expected[:, :, :rows])


def test_tied_queries_and_keys_leave_nothing_to_change():
    q, _, v = draw()
    unchanged = attention_pattern(q, q, scale=SCALE) @ v
    for change in ("symmetric", "pairs", "noise", "shuffled"):
        changed = changed_attention(change, q, q, v, scale=SCALE, generator=generator())
        torch.testing.assert_close(changed, unchanged, rtol=0, atol=1e-9)
    scores, seen = square_scores(q, q, scale=SCALE)
    torch.testing.assert_close(score_asymmetry(scores, seen), torch.zeros(1, 2).double())
    # Even attention is the mean of what is seen.
    q, k, v = draw()
    changed = changed_attention("even", q, k, v, scale=SCALE, mask=CAUSAL)
    for i in range(N):
        torch.testing.assert_close(changed[:, :, i], v[:, :, : i + 1].mean(2))


def test_what_a_token_is_sought_for_by_all_is_no_pair():
    """Scores of a column each, a sink: symmetric pairs leave them, symmetric scores do not."""
    sink = torch.zeros(1, 1, N, N, dtype=torch.float64)
    sink[..., 0] = 4.0
    seen = torch.ones_like(sink, dtype=torch.bool)
    same = torch.softmax(changed_scores("pairs", sink, seen), -1)
    torch.testing.assert_close(same, torch.softmax(sink, -1))
    halved = torch.softmax(changed_scores("symmetric", sink, seen), -1)
    assert float(halved[0, 0, 1, 0]) < 0.7 * float(same[0, 0, 1, 0])


def visible(rows: Tensor, seen: Tensor) -> Tensor:
    """What a softmax sees of rows: all but their means over the keys that are seen."""
    return torch.stack([(row - row[s].mean()) * s for row, s in zip(rows, seen, strict=True)])


def between(table: Tensor, real: list[int]) -> Tensor:
    """The rows and columns of real positions."""
    return table[real][:, real]


MASKS = [CAUSAL, torch.tensor([1, 0, 1, 1, 0]).bool()[None]]


@pytest.mark.parametrize("change", ["noise", "shuffled"])
@pytest.mark.parametrize("mask", MASKS, ids=["causal", "padded"])
def test_random_changes_are_as_large_as_what_a_softmax_sees(mask, change):
    """Shuffled is a step to S^T with real positions renumbered, rows and columns alike."""
    q, k, _ = draw()
    scores, seen = square_scores(q, k, scale=SCALE, mask=mask)
    odd = scores - changed_scores("symmetric", scores, seen)
    step = changed_scores(change, scores, seen, generator()) - scores
    assert float((odd - step).abs().max()) > 0.1
    real = [i for i in range(N) if bool(seen[0, 0, i, i])]  # no padding
    for h in range(2):
        sees = between(seen[0, h], real)
        head_step = between(step[0, h], real)
        size = float(visible(between(odd[0, h], real), sees).norm())
        assert float(visible(head_step, sees).norm()) == pytest.approx(size)
        if change == "noise":
            continue
        head_scores = between(scores[0, h], real)
        matches = 0
        for order in map(list, permutations(range(len(real)))):
            renumbered = visible(head_scores.T[order][:, order] - head_scores, sees)
            direction = renumbered / renumbered.norm()
            matches += torch.allclose(head_step / head_step.norm(), direction, atol=1e-9)
        assert matches == 1


def test_asymmetry_counts_real_positions_only():
    q, k, _ = draw()
    real = torch.tensor([1, 1, 1, 0, 0], dtype=torch.bool)
    scores, seen = square_scores(q, k, scale=SCALE, mask=real[None, None, None])
    inner = scores[0, 1, :3, :3]
    difference = inner - inner.T
    difference_norm = (difference - difference.mean(1, keepdim=True)).norm()
    norm = (inner - inner.mean(1, keepdim=True)).norm()
    asymmetry = float(score_asymmetry(scores, seen)[0, 1])
    assert asymmetry == pytest.approx(float(difference_norm / norm))
