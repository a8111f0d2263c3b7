r"""Linear forms of attention: a feature map in place of the softmax.

With phi a feature map and s the scale of the model's scores::

    y_i = sum_j v_j (phi(k_j sqrt(s)) . phi(q_i sqrt(s)))          over the keys that i may see
    y_i / (sum_j phi(k_j sqrt(s)) . phi(q_i sqrt(s)))              normalised

so that with phi(x) = x the weights are the model's own scores. What is summed over j does not
depend on the query, so a head could keep ``sum_j phi(k_j) v_j^T``, d_head x d_head numbers however
long the text is: its fast weights. A bias that a model adds to its scores has no place in such a
sum and is left out.

====================  ==========================================================================
``linear``            phi(x) = x: the softmax removed; weights may be negative, so not normalised
``first-order``       phi(x) = (1, x), normalised: weights 1 + s k_j . q_i, which is what a
                      softmax of small scores is; they may be negative, and their sum as well
``elu``               phi(x) = elu(x) + 1
``relu``              phi(x) = max(x, 0)
``exp``               phi(x) = exp(x), entry by entry
``elu-normalised``    these last three divided by the sum of the weights, as a softmax is
====================  ==========================================================================

References
----------
Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174, sections 3 and 4; Katharopoulos et al. 2020,
arXiv:2006.16236, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.attention import Mask
from headscope.measures.pooling import wide
from headscope.measures.rounding import EPS
from headscope.measures.visible import visible

#: The form that is normalised though its weights may be negative.
FIRST_ORDER = "first-order"
#: Feature maps by name.
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
    *(f"{name}{end}" for name in ("elu", "relu", "exp") for end in ("", _NORMALISED)),
)
#: What is measured beside them: the mean of the values that a query may see.
EVEN = "even"


def linear_attention(
    form: str, q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Mask = None
) -> Tensor:
    """Compute z of a linear form.

    Parameters
    ----------
    form : str
        One of :data:`FORMS`, or :data:`EVEN`.
    q : Tensor, (..., query_pos, d_head)
        Queries, not yet scaled.
    k, v : Tensor, (..., key_pos, d_head)
        Keys and values.
    scale : float
        Of the model's scores, above 0.
    mask : Tensor, optional
        Which keys may be seen; what it adds to scores is left out.

    Returns
    -------
    Tensor, (..., query_pos, d_head)
        In the dtype of v; a query that sees no key, or only keys of weight zero, gets zeros.
    """
    weights = _weights(form, q, k, scale)
    if mask is not None:
        weights = weights * visible(mask).to(weights)
    if form in (EVEN, FIRST_ORDER) or form.endswith(_NORMALISED):
        total = weights.sum(-1, keepdim=True)
        # Weights of both signs may cancel: a sum that is their rounding divides nothing.
        none = total.abs() <= 16 * EPS * weights.abs().sum(-1, keepdim=True)
        weights = torch.where(none, 0.0, weights / torch.where(none, 1.0, total))
    return (weights @ v.to(weights)).to(v)


def _weights(form: str, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Weights before any mask, (..., query_pos, key_pos); in single precision at least."""
    q, k = wide(q), wide(k)
    if form == EVEN:
        return q.new_ones(*q.shape[:-1], k.shape[-2])
    feature, root = FEATURES[form.removesuffix(_NORMALISED)], math.sqrt(scale)
    return feature(q * root) @ feature(k * root).transpose(-2, -1)
