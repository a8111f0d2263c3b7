r"""First-order importance of heads, by token and by example (Michel et al.).

With gates ``z_h -> xi_h z_h`` the derivative of an example's loss splits into its tokens::

    dL/dxi_h = sum over tokens t of z_h[t] . dL/dz_h[t]

``importance-token`` takes the absolute value before the sum over tokens, ``importance-example``
after it. Papers and scripts disagree on which is meant, and the two rank heads differently.

Notes
-----
Every example has gates of its own, so no gradient is ever added to another example's before the
absolute value. One forward and one backward pass over the calibration data.

References
----------
Michel et al. 2019, arXiv:1905.10650, equation 2 (example) and the published code (token).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.core.processes import share, summed
from headscope.core.widest import exact, widest
from headscope.pruning.method import Given, GradientBatch, Ranking
from headscope.pruning.normalise import per_layer


def importance_token(given: Given, *, normalise: bool = True) -> Ranking:
    """Mean over real tokens of ``abs(z . dL/dz)``, divided by each layer's l2 norm by default.

    Tokens are those that queries are made from: of the source for the encoder, of the target for
    the decoder and for cross-attention.
    """
    return _mean(given, "importance-token", "token", normalise)


def importance_example(given: Given, *, normalise: bool = True) -> Ranking:
    """Mean over examples of ``abs(dL/dxi)``, normalised as :func:`importance_token` is."""
    return _mean(given, "importance-example", "example", normalise)


def _mean(given: Given, name: str, kind: str, normalise: bool) -> Ranking:
    given.need_labels(name)
    total = torch.zeros(len(given.units), dtype=torch.float64)
    count = torch.zeros_like(total)
    for batch in share(given.calibration.batches(labels=True)):
        sizes, real = _sizes(batch, kind, given)
        total += (sizes * real).sum(dim=0)
        count += real.sum(dim=0)
    total, count = summed(name, total, count)
    values = total / count
    if normalise:
        values = per_layer(values, given.units.layers)
    return Ranking(values, passes={"forward": 1, "backward": 1})


def _sizes(batch: GradientBatch, kind: str, given: Given) -> tuple[Tensor, Tensor]:
    """Absolute derivatives of a batch, and 1 where they count.

    Both are (examples or tokens, n_units). A stack's tokens are those that its queries are made
    from, so units of different stacks count different ones.
    """
    gates = batch.gates(kind)
    (gradient,) = torch.autograd.grad(batch.loss(gates).sum(), gates)
    if kind == "token":  # (rows, n_layers, n_heads, pos) -> (rows, pos, n_layers, n_heads)
        gradient = gradient.permute(0, 3, 1, 2)
    sizes = given.units.contract(exact(gradient)).abs().cpu()
    if kind != "token":
        return sizes, torch.ones_like(sizes)
    real = batch.query_mask.cpu()[:, given.units.layers].transpose(1, 2)  # (rows, pos, n_units)
    return sizes.flatten(0, 1), widest(real.flatten(0, 1))
