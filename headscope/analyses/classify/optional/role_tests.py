"""Whether heads with a role cost more when they are removed than heads without it.

Heads of one layer are similar whatever their roles, so heads are not independent: a difference
counts as a role's only if labels permuted within layers do not explain it. The same test with
labels permuted over all layers is given as well.

:func:`role_tests` runs both tests for each kind of removal and each role; :func:`dealt` is the
statistic with its permutations.

References
----------
The statistic inside layers is the sum of the layers' Mann-Whitney U (van Elteren 1960, with equal
weights); p = (1 + deals as extreme) / (1 + deals), Phipson & Smyth 2010.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headscope.analyses.classify.optional.results import CauseTest
from headscope.core.accumulator import Array
from headscope.core.rounding import tied
from headscope.stats.estimate import Estimate
from headscope.stats.metrics import RESAMPLES
from headscope.stats.statistics import adjust

FEWEST = 3  # Fewest heads with a role, and without, that are compared.
#: Fewest on either side for an interval: a bootstrap of fewer is too narrow.
FEWEST_FOR_INTERVAL = 8
DEALS = 5000  # How often labels are dealt anew.
LEVEL = 0.05  # Adjusted p below which two kinds of heads are told apart.

#: The chance that a head with the role loses more than one without; of the labels as they are, and
#: of labels dealt at random
Superiority = tuple[float, Array]
PValues = tuple[float, float]  # Two-sided p, and the same adjusted


def role_tests(
    losses: Mapping[str, Array],
    labels: Mapping[str, Array],
    layers: Array,
    *,
    size: float = 1.0,
    seed: int = 0,
) -> tuple[CauseTest, ...]:
    """Compare the losses of labelled heads with those of the others.

    ``losses`` by removal, ``labels`` by role: whether each head has it; all (heads,). ``size`` is
    that of the values whose differences losses are: differences within its rounding are ties.
    """
    compared = {
        role: has_role
        for role, has_role in labels.items()
        if min(has_role.sum(), (~has_role).sum()) >= FEWEST
    }
    everywhere = np.zeros_like(layers)
    tests = []
    for removal, losses_of_heads in losses.items():
        # Heads whose removal changes nothing are tied, though rounding tells their losses apart.
        values = tied(losses_of_heads, size=size)
        rng = np.random.default_rng(seed)
        within = {role: dealt(values, has, layers, rng) for role, has in compared.items()}
        anywhere = {role: dealt(values, has, everywhere, rng) for role, has in compared.items()}
        p_within = _p_values(within)
        p_anywhere = _p_values(anywhere)
        for role, has_role in compared.items():
            overall = anywhere[role]
            assert overall is not None  # there are heads with the role and without
            tests.append(
                _cause_test(
                    role,
                    removal,
                    with_role=values[has_role],
                    without_role=values[~has_role],
                    overall=overall,
                    p_overall=p_anywhere[role],
                    within=within[role],
                    p_within=p_within.get(role),
                    rng=rng,
                )
            )
    return tuple(tests)


def _cause_test(
    role: str,
    removal: str,
    *,
    with_role: Array,
    without_role: Array,
    overall: Superiority,
    p_overall: PValues,
    within: Superiority | None,
    p_within: PValues | None,
    rng: np.random.Generator,
) -> CauseTest:
    """Gather the numbers of one role and removal, and decide by the test within layers."""
    interval: tuple[float, ...] = ()
    if min(len(with_role), len(without_role)) >= FEWEST_FOR_INTERVAL:
        interval = _bootstrapped(with_role, without_role, rng)
    verdict = "not measured"
    if within is not None and p_within is not None:
        _, p_adjusted = p_within
        verdict = "costs more" if within[0] > 0.5 else "costs less"
        if p_adjusted >= LEVEL:
            verdict = "not told apart"
    return CauseTest(
        role=role,
        removal=removal,
        heads=len(with_role),
        others=len(without_role),
        superiority=Estimate(overall[0], *interval),
        p_value=p_overall[0],
        p_adjusted=p_overall[1],
        placebo=_middle(overall[1]),
        within=within[0] if within else None,
        within_placebo=_middle(within[1]) if within else (),
        within_p=p_within[0] if p_within else None,
        within_p_adjusted=p_within[1] if p_within else None,
        verdict=verdict,
    )


def _p_values(compared: Mapping[str, Superiority | None]) -> dict[str, PValues]:
    """Return the p-values of one removal's roles, where they could be compared."""
    p_values = {}
    for role, superiority in compared.items():
        if superiority is not None:
            observed, random = superiority
            # Permutations at least as far from one half; the observed labels count as one of them.
            beyond = np.abs(random - 0.5) >= abs(observed - 0.5) - 1e-12
            p_values[role] = float((1 + beyond.sum()) / (1 + DEALS))
    adjusted = adjust(np.array(list(p_values.values()))).tolist()
    both = zip(p_values.values(), adjusted, strict=True)
    return dict(zip(p_values, both, strict=True))


def dealt(
    values: Array, has_role: Array, groups: Array, rng: np.random.Generator
) -> Superiority | None:
    """Return the superiority over pairs of heads of one group, and that of permuted labels.

    Labels are permuted within groups. None where no group has heads of both kinds. Arrays are
    (heads,).
    """
    from scipy.stats import rankdata  # takes half a second to load

    wins = 0.0
    pairs = 0
    random = np.zeros(DEALS)
    for group in np.unique(groups):
        inside = groups == group
        ranks = rankdata(values[inside])
        labelled = has_role[inside]
        n = int(labelled.sum())
        least = n * (n + 1) / 2  # the rank sum of labelled heads that lose against all others
        wins += float(ranks[labelled].sum()) - least
        pairs += n * (len(labelled) - n)
        order = rng.random((DEALS, len(labelled))).argsort(axis=1)[:, :n]
        random += ranks[order].sum(axis=1) - least
    return (wins / pairs, random / pairs) if pairs else None


def _bootstrapped(
    with_role: Array, without_role: Array, rng: np.random.Generator
) -> tuple[float, ...]:
    """Return the bootstrap 95% interval of the superiority, over the heads of both groups."""
    difference = with_role[:, None] - without_role
    wins = np.where(difference > 0, 1.0, np.where(difference == 0, 0.5, 0.0))
    draws_with = _resampled(len(with_role), rng)
    draws_without = _resampled(len(without_role), rng)
    return _middle(((draws_with @ wins) * draws_without).sum(axis=1) / wins.size)


def _resampled(n: int, rng: np.random.Generator) -> Array:
    """Draw how often each of n heads is in every resample: (resamples, n)."""
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)


def _middle(values: Array) -> tuple[float, ...]:
    """Return the interval that holds the middle 95% of the values."""
    return tuple(np.quantile(values, (0.025, 0.975)).tolist())
