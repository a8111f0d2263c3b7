"""``gates``: learned hard-concrete gates under a penalty on their number (Voita et al.).

The penalty is ``strength`` times the plain sum over heads of P(open); the lambda of other codebases
is not comparable (some average over layers).

References
----------
Voita et al. 2019, arXiv:1905.09418, section 6; Louizos et al. 2018, arXiv:1712.01312.
"""

from __future__ import annotations

import torch

from headscope.pruning.hard_concrete import draw_gates, open_probability
from headscope.pruning.method import Given, Ranking
from headscope.pruning.training import train_logits

#: Cost of one open gate in units of the loss: about what removing a middling head of the demo model
#: alone takes from the cosine.
STRENGTH = 0.002
#: Where logits start: P(open) = 0.94.
START = 2.0


def gates(given: Given, *, strength: float = STRENGTH) -> Ranking:
    """Rank heads by the logits that training leaves; only gates are trained, never weights.

    ``strength`` is the weight of the sum over heads of P(open).
    """
    logits, passes = train_logits(
        given,
        "gates",
        torch.full((len(given.units),), START),
        draw=draw_gates,
        penalty=lambda log_a: strength * open_probability(log_a).sum(),
        chosen=lambda log_a: open_probability(log_a) > 0.5,
    )
    return Ranking(logits, passes={"forward": passes, "backward": passes})
