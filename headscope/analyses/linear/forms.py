r"""Linear forms of attention: a feature map in place of the softmax.

With phi a feature map, and q and k multiplied by the root of the scale of the model's scores, query
i gives key j a weight, and puts out a weighted sum of the values, over the keys that i may see::

    w_ij = phi(q_i) . phi(k_j)
    y_i  = sum_j w_ij v_j            normalised: y_i = sum_j w_ij v_j / sum_j w_ij

With phi(x) = x the weights are the model's own scores. What is summed over j does not depend on
the query, so a head could keep ``sum_j phi(k_j) v_j^T``, d_head x d_head numbers however long the
text is: its fast weights. A bias that a model adds to its scores, and a soft cap that bounds them,
have no place in such a sum and are left out.

====================  ==========================================================================
``linear``            phi(x) = x: the softmax removed; weights may be negative, so not normalised
``first-order``       phi(x) = (1, x), normalised: weights 1 + q_i . k_j, which is what a softmax
                      of small scores is; they may be negative, and their sum as well
``elu``               phi(x) = elu(x) + 1
``relu``              phi(x) = max(x, 0)
``exp``               phi(x) = exp(x), entry by entry
``...-normalised``    elu, relu or exp divided by the sum of the weights, as a softmax is
``even``              no form but the baseline: the mean of the values that a query may see
====================  ==========================================================================

References
----------
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, section 3; Katharopoulos et al. 2020,
arXiv:2006.16236, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.attention import Mask
from headscope.core.activations import visible
from headscope.core.rounding import EPS
from headscope.core.widest import wide

FIRST_ORDER = "first-order"  # The only form that is normalised though its weights may be negative.
#: phi by the name of the form.
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    FIRST_ORDER: lambda x: torch.cat([torch.ones_like(x[..., :1]), x], -1),
    "elu": lambda x: F.elu(x) + 1,
    "relu": torch.relu,
    "exp": torch.exp,
}
_NORMALISED = "-normalised"
#: Every form: the softmax removed, its first order, each other map without and with normalisation.
FORMS = (
    "linear",
    FIRST_ORDER,
    "elu",
    "elu-normalised",
    "relu",
    "relu-normalised",
    "exp",
    "exp-normalised",
)
EVEN = "even"
FORMS_AND_EVEN = (*FORMS, EVEN)
#: Forms whose output is an average of values. The sums of the others grow with the sentence, or are
#: divided by weights that may cancel, so that a few long lines decide their errors.
AVERAGES = (*(form for form in FORMS if form.endswith(_NORMALISED)), EVEN)


def linear_attention(
    form: str, q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Mask = None
) -> Tensor:
    """Compute what a head puts out in a linear form, in single precision at least.

    ``scale`` is that of the model's scores. ``mask`` is boolean or additive, as for a softmax; only
    which keys it hides counts.

    Shapes: ``q`` (..., query_pos, d_head), ``k``, ``v`` (..., key_pos, d_head); returns (...,
    query_pos, d_head).
    """
    # The weight of every key for every query, [..., query_pos, key_pos].
    if form == EVEN:
        weights = wide(q).new_ones(*q.shape[:-1], k.shape[-2])
    else:
        feature = FEATURES[form.removesuffix(_NORMALISED)]
        root = math.sqrt(scale)
        weights = feature(wide(q) * root) @ feature(wide(k) * root).transpose(-2, -1)
    if mask is not None:
        weights = weights * visible(mask).to(weights)

    # Their sum is 1 where the form is normalised. Weights of both signs may cancel: where the sum
    # is only rounding they become 0, as nothing can be divided by it.
    if form in (EVEN, FIRST_ORDER) or form.endswith(_NORMALISED):
        total = weights.sum(-1, keepdim=True)
        cancelled = total.abs() <= 16 * EPS * weights.abs().sum(-1, keepdim=True)
        divisor = torch.where(cancelled, 1.0, total)
        weights = torch.where(cancelled, 0.0, weights / divisor)
    return weights @ v.to(weights)
