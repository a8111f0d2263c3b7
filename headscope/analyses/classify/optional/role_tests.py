"""Whether heads with a role cost more when they are removed than heads without it.

The statistic is the *superiority*: the chance that a head with the role loses more than one
without, over all pairs of such heads; 0.5 is no difference. Heads of one layer are similar whatever
their roles, so heads are not independent: a difference counts as a role's only if *dealing* the
labels anew at random within layers does not explain it. The same test with labels dealt over all
layers is given as well.

:func:`role_tests` runs both tests for each kind of removal and each role; :func:`deal` computes the
superiority, as observed and after each deal.

References
----------
The statistic inside layers is the sum of the layers' Mann-Whitney U (van Elteren 1960, with equal
weights); p = (1 + deals as extreme) / (1 + deals), Phipson & Smyth 2010.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Superiority:
    """The chance that a head with the role loses more than one without; ties count half."""

    observed: float
    random: Array  # (DEALS,): of labels dealt at random

    @property
    def p_value(self) -> float:
        """Two-sided: how many deals lie as far from one half; the observed labels are one."""
        as_far = np.abs(self.random - 0.5) >= abs(self.observed - 0.5) - 1e-12  # but for rounding
        return float((1 + as_far.sum()) / (1 + DEALS))


def role_tests(
    losses: Mapping[str, Array],
    labels: Mapping[str, Array],
    layers: Array,
    *,
    size: float = 1.0,
    seed: int = 0,
) -> tuple[CauseTest, ...]:
    """Compare the losses of labelled heads with those of the others.

    ``losses`` of the heads by kind of removal, ``labels`` by role: whether each head has it,
    ``layers``: each head's layer; all (heads,). A loss is a difference of two values of the metric,
    which are of this ``size``: losses that differ by no more than its rounding are ties.
    """
    compared = {
        role: has_role
        for role, has_role in labels.items()
        if min(has_role.sum(), (~has_role).sum()) >= FEWEST
    }
    one_group = np.zeros_like(layers)
    tests = []
    for removal, losses_of_heads in losses.items():
        # Heads whose removal changes nothing are tied, though rounding tells their losses apart.
        values = tied(losses_of_heads, size=size)
        rng = np.random.default_rng(seed)
        within = {role: deal(values, has, layers, rng) for role, has in compared.items()}
        overall = {role: deal(values, has, one_group, rng) for role, has in compared.items()}
        p_within = _adjusted_p(within)
        p_overall = _adjusted_p(overall)
        for role, has_role in compared.items():
            tests.append(
                _cause_test(
                    role,
                    removal,
                    with_role=values[has_role],
                    without_role=values[~has_role],
                    overall=overall[role],
                    p_overall=p_overall[role],
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
    overall: Superiority | None,
    p_overall: float,
    within: Superiority | None,
    p_within: float | None,
    rng: np.random.Generator,
) -> CauseTest:
    """Gather the numbers of one role and removal, and decide by the test within layers.

    ``p_overall`` and ``p_within`` are adjusted over roles.
    """
    assert overall is not None  # there are heads with the role and without
    interval: tuple[float, ...] = ()
    if min(len(with_role), len(without_role)) >= FEWEST_FOR_INTERVAL:
        interval = _bootstrapped(with_role, without_role, rng)
    verdict = "not measured"  # no layer has heads with the role and without
    if within is not None and p_within is not None:
        verdict = "costs more" if within.observed > 0.5 else "costs less"
        if p_within >= LEVEL:
            verdict = "not told apart"
    return CauseTest(
        role=role,
        removal=removal,
        heads=len(with_role),
        others=len(without_role),
        superiority=Estimate(overall.observed, *interval),
        p_value=overall.p_value,
        p_adjusted=p_overall,
        placebo=_middle(overall.random),
        within=None if within is None else within.observed,
        within_placebo=() if within is None else _middle(within.random),
        within_p=None if within is None else within.p_value,
        within_p_adjusted=p_within,
        verdict=verdict,
    )


def _adjusted_p(compared: Mapping[str, Superiority | None]) -> dict[str, float]:
    """Adjust the p-values of one removal over the roles that could be compared."""
    p_values = {role: test.p_value for role, test in compared.items() if test is not None}
    adjusted = adjust(np.array(list(p_values.values()))).tolist()
    return dict(zip(p_values, adjusted, strict=True))


def deal(
    values: Array, has_role: Array, groups: Array, rng: np.random.Generator
) -> Superiority | None:
    """Return the superiority over pairs of heads of one group, observed and after deals.

    Labels are dealt anew within groups. None where no group has heads of both kinds. Arrays are
    (heads,): values [3, 1, 2, 9], labels [True, False, True, False], groups [0, 0, 0, 1] -> 1.0,
    as 3 and 2 both exceed 1.
    """
    from scipy.stats import rankdata  # takes half a second to load

    n_wins = 0.0
    n_pairs = 0
    random_wins = np.zeros(DEALS)
    for group in np.unique(groups):
        in_group = groups == group
        ranks = rankdata(values[in_group])
        labelled = has_role[in_group]
        n_labelled = int(labelled.sum())
        # Labelled heads win as often as their rank sum exceeds that of heads that always lose.
        least = n_labelled * (n_labelled + 1) / 2
        n_wins += float(ranks[labelled].sum()) - least
        n_pairs += n_labelled * (len(labelled) - n_labelled)
        shuffled = rng.random((DEALS, len(labelled))).argsort(axis=1)
        dealt = shuffled[:, :n_labelled]  # [deals, heads that get the label]
        random_wins += ranks[dealt].sum(axis=1) - least
    if n_pairs == 0:
        return None
    return Superiority(observed=n_wins / n_pairs, random=random_wins / n_pairs)


def _bootstrapped(
    with_role: Array, without_role: Array, rng: np.random.Generator
) -> tuple[float, ...]:
    """Return the bootstrap 95% interval of the superiority, over the heads of both kinds."""
    difference = with_role[:, None] - without_role  # [heads with, heads without]
    wins = np.where(difference > 0, 1.0, np.where(difference == 0, 0.5, 0.0))
    draws_with = _resampled(len(with_role), rng)
    draws_without = _resampled(len(without_role), rng)
    # A pair counts as often as both of its heads are drawn.
    wins_over = draws_with @ wins  # [resamples, heads without]
    n_wins = (wins_over * draws_without).sum(axis=1)
    return _middle(n_wins / wins.size)


def _resampled(n: int, rng: np.random.Generator) -> Array:
    """Draw how often each of n heads is in every resample: (resamples, n)."""
    return rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)


def _middle(values: Array) -> tuple[float, ...]:
    """Return the interval that holds the middle 95% of the values."""
    return tuple(np.quantile(values, (0.025, 0.975)).tolist())
