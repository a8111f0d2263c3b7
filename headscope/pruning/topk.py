r"""``topk``: train head logits so that the k heads kept do best (Li, Cotterell & Sachan).

The kept heads are a sample without replacement: the k largest of ``w + g`` with Gumbel noise g.
Forward exactly k gates are 1; backward the relaxed sample takes their place, k softmaxes of which
each lowers what the one before has taken::

    a_1 = w + g     p_i = softmax(a_i / temperature)     a_(i+1) = a_i + ln(1 - p_i)
    m = p_1 + ... + p_k                                  sums to k

References
----------
Li, Cotterell & Sachan 2021, arXiv:2108.04657, section 3; Xie & Ermon 2019, arXiv:1901.10517.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.pruning.method import Given, Ranking
from headscope.pruning.training import train_logits

TEMPERATURE = 0.5


def topk(given: Given) -> Ranking:
    """Rank heads by logits trained for ``given.budget`` removed heads; other budgets share them.

    The budget is exact: in training, too, every example sees that number of heads.
    """
    n = len(given.units)
    kept = n - given.budget
    if not 0 < kept < n:
        kept = n - n // 2

    def draw(logits: Tensor, size: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(size, n, generator=generator).clamp(1e-9, 1 - 1e-7)
        return hard_sample(logits + -(-u.log()).log(), kept)

    def largest(logits: Tensor) -> Tensor:
        return torch.zeros(n, dtype=torch.bool).index_fill(0, logits.topk(kept).indices, True)

    logits, passes = train_logits(
        given,
        "topk",
        torch.zeros(n),
        draw=draw,
        chosen=largest,
        penalty=lambda logits: logits.new_zeros(()),
    )
    return Ranking(logits, passes={"forward": passes, "backward": passes})


def relaxed_sample(scores: Tensor, k: int, temperature: float = TEMPERATURE) -> Tensor:
    """Relax the indicator of the k largest scores: (..., n) in [0, 1], summing to k."""
    total = torch.zeros_like(scores)
    for _ in range(k):
        p = torch.softmax(scores / temperature, dim=-1)
        total = total + p
        scores = scores + torch.log1p(-p.clamp(max=1 - 1e-6))
    return total


def hard_sample(scores: Tensor, k: int) -> Tensor:
    """Indicator of the k largest scores, with the gradient of :func:`relaxed_sample`."""
    soft = relaxed_sample(scores, k)
    hard = torch.zeros_like(soft).scatter(-1, scores.topk(k, dim=-1).indices, 1.0)
    return hard + soft - soft.detach()
