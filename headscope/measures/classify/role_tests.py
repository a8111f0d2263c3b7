"""Do heads with a role lose more than heads without? Ranks, and labels dealt at random.

References
----------
Mann & Whitney 1947, Annals of Mathematical Statistics 18; the test within layers is a permutation
test of the sum of the layers' U (van Elteren 1960, with equal weights).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from scipy import stats

from headscope.measures.accumulator import Array
from headscope.measures.metrics import RESAMPLES
from headscope.measures.rounding import tied
from headscope.measures.statistics import adjust
from headscope.results.causes import CauseTest

#: Fewest heads with a role, and without, that are compared.
FEWEST = 3
#: How often labels are dealt anew.
DEALS = 5000


def role_tests(
    losses: Mapping[str, Array], labels: Mapping[str, Array], layers: Array, *, seed: int = 0
) -> tuple[CauseTest, ...]:
    """Compare the losses of labelled heads with those of the others.

    Parameters
    ----------
    losses : mapping of str to array, (heads,)
        By removal.
    labels : mapping of str to array of bool, (heads,)
        By role: which heads have it.
    layers : array of int, (heads,)
        The layer of each head: heads of different layers differ whatever their roles.
    seed : int
        Of resamples and random labels.
    """
    asked = {role: has for role, has in labels.items() if _enough(has)}
    return tuple(
        test
        for removal, values in losses.items()
        # Heads that change nothing lose nothing, but for rounding; metrics are of size 1 and more.
        for test in _adjusted(removal, tied(values, size=1.0), asked, layers, seed)
    )


def _enough(has: Array) -> bool:
    return min(int(has.sum()), int((~has).sum())) >= FEWEST


def _adjusted(
    removal: str, values: Array, asked: Mapping[str, Array], layers: Array, seed: int
) -> Iterator[CauseTest]:
    """Test every role; the p-values of one removal are one family."""
    p = np.array(
        [
            stats.mannwhitneyu(values[has], values[~has], alternative="two-sided").pvalue
            for has in asked.values()
        ]
    )
    for (role, has), p_value, p_adjusted in zip(
        asked.items(), p.tolist(), adjust(p).tolist(), strict=True
    ):
        rng = np.random.default_rng(seed)
        within = dealt(values, has, layers, rng)
        anywhere = dealt(values, has, np.zeros_like(layers), rng)
        assert anywhere is not None  # there are heads with the role and without
        yield CauseTest(
            role=role,
            removal=removal,
            heads=int(has.sum()),
            others=int((~has).sum()),
            superiority=anywhere[0],
            interval=_interval(values[has], values[~has], rng),
            p_value=p_value,
            p_adjusted=p_adjusted,
            placebo=_middle(anywhere[1]),
            within=within[0] if within else None,
            within_placebo=_middle(within[1]) if within else (),
            within_p=_two_sided(*within) if within else None,
        )


def dealt(
    values: Array, has: Array, groups: Array, rng: np.random.Generator
) -> tuple[float, Array] | None:
    """Return the superiority inside groups, and those of labels dealt at random inside them.

    Parameters
    ----------
    values : array, (heads,)
        What is compared.
    has : array of bool, (heads,)
        Which heads are labelled.
    groups : array of int, (heads,)
        Only heads of one group are compared, and only inside groups are labels dealt.
    rng : numpy Generator
        Deals the labels.

    Returns
    -------
    (float, array (DEALS,)) or None
        None where no group has labelled and other heads.
    """
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
