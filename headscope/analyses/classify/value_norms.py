r"""Norm-weighted attention: what each key contributes to a head's output, in place of the pattern.

A head adds ``sum over keys j of P[i, j] v_j W_O`` to the residual stream. A key with a large weight
and a tiny ``v_j W_O`` adds next to nothing, so here a key counts by ``||P[i, j] v_j W_O||``, as a
share of the sum over keys: rows sum to 1 again, and thresholds keep their meaning.

References
----------
Kobayashi et al. 2020, arXiv:2004.10102, section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from headscope.analyses.classify.optional_results import RoleSurvival, ValueNorms
from headscope.analyses.classify.result import HeadResult
from headscope.core.activations import Activations
from headscope.core.roles import roles_of
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.routing import SiteObserver
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import wilson

#: Roles that are a mean weight, and where the result has it.
_MASSES = {"special": "special_mass", "punctuation": "punctuation_mass"}


class NormWeighted:
    """Shows an observer norm-weighted attention in place of the pattern."""

    def __init__(self, observer: SiteObserver, sites: Sequence[AttentionSite]) -> None:
        self._observer = observer
        self._factors = {(site.stack, site.layer): _factor(site) for site in sites}

    def observe(self, site: Activations) -> None:
        """Weigh one chunk of patterns."""
        factor = self._factors[site.stack, site.layer][site.heads]
        weighted = weigh(site.pattern, value_norms(site.v, factor))
        self._observer.observe(dataclasses.replace(site, pattern=weighted))

    def finish(self, stack: str, layer: int) -> None:
        """Pass on that a site is done."""
        self._observer.finish(stack, layer)


def _factor(site: AttentionSite) -> Tensor:
    """R (n_heads, d_head, at most d_head) of each head with ||v W_O|| = ||v R||.

    From W_O^T = Q R^T with orthonormal columns in Q, so that no vector of d_model numbers is ever
    made for a key.
    """
    W_O = site.weights().W_O.detach()
    factor: Tensor = torch.linalg.qr(W_O.mT.cpu().double(), mode="r").R.mT
    dtype = W_O.dtype if W_O.dtype.itemsize >= 4 else torch.float32
    return factor.to(W_O.device, dtype)


def value_norms(v: Tensor, factor: Tensor) -> Tensor:
    """||v W_O|| of every key, (rows, n_heads, key_pos), in float32 or wider.

    ``v`` is (rows, n_heads, key_pos, d_head), ``factor`` as above.
    """
    wide = v.float() if v.dtype.itemsize < 4 else v
    norms: Tensor = torch.linalg.vector_norm(wide @ factor.to(wide), dim=-1)
    return norms


def weigh(pattern: Tensor, norms: Tensor) -> Tensor:
    """Multiply weights by norms and divide each row by its sum; a row of zeros stays."""
    product = pattern.to(norms.dtype) * norms[..., None, :]
    total = product.sum(dim=-1, keepdim=True)
    return product / total.clamp(min=torch.finfo(product.dtype).tiny)


Heads = Sequence[HeadResult]


def compare(
    plain: Heads,
    weighted: Heads,
    control: tuple[Heads, Heads] | None = None,
    labels: Sequence[str] = (),
) -> ValueNorms:
    """Compare the labels by norms with those by the pattern; ``control``: of random weights.

    ``labels`` are those of a user's pairs.
    """

    def with_role(heads: Heads, role: str, stack: str) -> dict[str, HeadResult]:
        return {head.name: head for head in heads if head.stack == stack and role in head.roles}

    def mean_mass(role: str, names: Collection[str], heads: Heads) -> float | None:
        """Average what a role is a mean of, over the heads of these names."""
        values = [getattr(h, _MASSES[role]) for h in heads if role in _MASSES and h.name in names]
        return None if not values or None in values else float(sum(values) / len(values))

    result = []
    for stack in dict.fromkeys(head.stack for head in plain):
        for role in (role.key for role in roles_of(stack, labels=labels)):
            before, after = (with_role(heads, role, stack) for heads in (plain, weighted))
            if not (before or after):
                continue
            remaining = tuple(name for name in before if name in after)
            share = Estimate(None)
            n = len(before)
            if before:
                share = Estimate(len(remaining) / n, *map(float, wilson(len(remaining), n)))
            random = [with_role(heads, role, stack).keys() for heads in control or ()]
            result.append(
                RoleSurvival(
                    role=role,
                    stack=stack,
                    heads=n,
                    kept=remaining,
                    gained=tuple(name for name in after if name not in before),
                    share=share,
                    mass=mean_mass(role, before, plain),
                    norm_mass=mean_mass(role, before, weighted),
                    control_heads=len(random[0]) if random else None,
                    control_kept=len(random[0] & random[1]) if random else None,
                )
            )
    return ValueNorms(tuple(result))
