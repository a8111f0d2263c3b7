"""Do heads with a role lose more than heads without? Labels dealt at random inside layers decide.

Heads of one layer are alike whatever their roles, so heads are not independent: only what labels
dealt inside the layers do not explain is put down to a role. Beside it stands the same with labels
dealt over all layers.

References
----------
The statistic inside layers is the sum of the layers' Mann-Whitney U (van Elteren 1960, with equal
weights); p = (1 + deals as extreme) / (1 + deals), Phipson & Smyth 2010.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from scipy import stats

from headscope.analyses.classify.result import CauseTest
from headscope.core.accumulator import Array
from headscope.core.rounding import tied
from headscope.stats.metrics import RESAMPLES
from headscope.stats.statistics import adjust

FEWEST = 3  # Fewest heads with a role, and without, that are compared.
#: Fewest on either side for an interval: a bootstrap of fewer is too narrow.
FEWEST_FOR_INTERVAL = 8
DEALS = 5000  # How often labels are dealt anew.
LEVEL = 0.05  # Adjusted p below which two kinds of heads are told apart.


def role_tests(
    losses: Mapping[str, Array],
    labels: Mapping[str, Array],
    layers: Array,
    *,
    size: float = 1.0,
    seed: int = 0,
) -> tuple[CauseTest, ...]:
    """Compare the losses of labelled heads with those of the others."""
    asked = {role: has for role, has in labels.items() if _enough(has, FEWEST)}
    return tuple(
        test
        for removal, values in losses.items()
        # Heads that change nothing lose nothing, but for rounding.
        for test in _adjusted(removal, tied(values, size=size), asked, layers, seed)
    )


def _enough(has: Array, fewest: int) -> bool:
    return min(int(has.sum()), int((~has).sum())) >= fewest


def _adjusted(
    removal: str, values: Array, asked: Mapping[str, Array], layers: Array, seed: int
) -> Iterator[CauseTest]:
    """Test every role; the p-values of one removal are one family."""
    rng = np.random.default_rng(seed)
    everywhere = np.zeros_like(layers)
    within = {role: dealt(values, has, layers, rng) for role, has in asked.items()}
    anywhere = {role: dealt(values, has, everywhere, rng) for role, has in asked.items()}
    within_p, p = _family(within), _family(anywhere)
    for role, has in asked.items():
        inside, whole = within[role], anywhere[role]
        assert whole is not None  # there are heads with the role and without
        own = within_p.get(role, (None, None))
        yield CauseTest(
            role=role,
            removal=removal,
            heads=int(has.sum()),
            others=int((~has).sum()),
            superiority=whole[0],
            interval=_interval(values[has], values[~has], rng)
            if _enough(has, FEWEST_FOR_INTERVAL)
            else (),
            p_value=p[role][0],
            p_adjusted=p[role][1],
            placebo=_middle(whole[1]),
            within=inside[0] if inside else None,
            within_placebo=_middle(inside[1]) if inside else (),
            within_p=own[0],
            within_p_adjusted=own[1],
            verdict=_verdict(inside[0] if inside else None, own[1]),
        )


def _family(found: Mapping[str, tuple[float, Array] | None]) -> dict[str, tuple[float, float]]:
    """Return p and adjusted p by role, over the roles that could be compared."""
    p = {role: _two_sided(*given) for role, given in found.items() if given is not None}
    adjusted = adjust(np.array(list(p.values()))).tolist()
    return dict(zip(p, zip(p.values(), adjusted, strict=True), strict=True))


def _verdict(within: float | None, p_adjusted: float | None) -> str:
    if within is None or p_adjusted is None:
        return "not measured"
    if p_adjusted >= LEVEL:
        return "not told apart"
    return "costs more" if within > 0.5 else "costs less"


def dealt(
    values: Array, has: Array, groups: Array, rng: np.random.Generator
) -> tuple[float, Array] | None:
    """Return the superiority inside groups, and those of labels dealt at random inside them."""
    wins, pairs, random = 0.0, 0, np.zeros(DEALS)
    for group in np.unique(groups):
        inside = groups == group
        ranks, own = stats.rankdata(values[inside]), has[inside]
        n = int(own.sum())
        least = n * (n + 1) / 2  # the rank sum of labelled heads that lose against all others
        wins += float(ranks[own].sum()) - least
        pairs += n * (len(own) - n)
        order = rng.random((DEALS, len(own))).argsort(axis=1)[:, :n]
        random += ranks[order].sum(axis=1) - least
    return (wins / pairs, random / pairs) if pairs else None


def _interval(ours: Array, theirs: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Bootstrap the superiority over the heads of both groups."""
    wins = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
    counts = [
        rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) for n in (len(ours), len(theirs))
    ]
    drawn = ((counts[0] @ wins) * counts[1]).sum(axis=1) / wins.size
    return _middle(drawn)


def _middle(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def _two_sided(found: float, random: Array) -> float:
    """Share of random labels at least as far from one half; the labels as found count as one."""
    beyond = np.abs(random - 0.5) >= abs(found - 0.5) - 1e-12
    return float((1 + beyond.sum()) / (1 + len(random)))
