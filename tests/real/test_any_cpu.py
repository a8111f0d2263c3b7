"""Every parameter moved by one unit in its last place: what is said of the model stays the same.

Another processor, vector width or number of threads rounds every product a little differently. Here
each of the demo model's 22 million parameters becomes the next float32 above or below it, which
disturbs all that is computed from them by more than that. Numbers move in their last digits; no
label, role, verdict, choice of heads may, and nothing may become "not measured".
"""

import dataclasses
import functools
from collections.abc import Mapping

import pytest
import torch

import headscope
from headscope.reports.claims.kept_roles import measure_kept_roles
from headscope.reports.claims.registry import claims, decide
from headscope.reports.claims.rule import Evidence

#: What is measured, each on as little as shows every kind of decision.
MEASURED = {
    "classify": lambda m: headscope.classify(m, limit=320, validate=False),
    "rank": lambda m: headscope.rank(m, fresh=False, control_seeds=2, validate=False),
    "spectrum": lambda m: headscope.spectrum(m, length=32, sequences=8, validate=False),
    "depth": lambda m: headscope.depth(m, length=32, sequences=8, control=False, validate=False),
    "flow": lambda m: headscope.flow(m, limit=40, control=False, validate=False),
    "linear": lambda m: headscope.linear(m, sentences=8, control=False, validate=False),
    "symmetric": lambda m: headscope.symmetric(m, sentences=8, validate=False),
}
#: Ways of choosing heads.
METHODS = ("magnitude", "surgeon", "fisher", "roles")
#: What tells one run from another and is no result.
_ASIDE = {"provenance", "validation"}


@pytest.fixture(scope="module")
def moved():
    """The demo model with every parameter at one of its neighbours."""
    loaded = headscope.load("demo")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            up = torch.randint(0, 2, parameter.shape, generator=generator) == 1
            directions = torch.where(up, torch.inf, -torch.inf)
            parameter.copy_(torch.nextafter(parameter, directions))
    return loaded


@pytest.fixture(scope="module")
def results(demo, moved):
    """Results of both models by measurement, each made once."""
    return functools.cache(lambda name: (MEASURED[name](demo), MEASURED[name](moved)))


def said(value, path=""):
    """Yield what is no number of a result: names, labels, yes and no, and what was not measured."""
    if hasattr(value, "__dataclass_fields__"):
        value = vars(value)
    if isinstance(value, Mapping):
        for key, field in value.items():
            if key not in _ASIDE:
                yield from said(field, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        yield f"{path}#", len(value)
        for i, item in enumerate(value):
            yield from said(item, f"{path}[{i}]")
    else:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        yield path, "a number" if number else value


@pytest.mark.parametrize("name", MEASURED)
def test_nothing_that_is_said_depends_on_the_last_digit(results, name):
    before, after = map(dict, map(said, results(name)))
    assert len(before) > 50
    differ = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert not differ


def test_no_choice_of_heads_depends_on_the_last_digit(demo, moved, results):
    chosen = []
    for model, roles in zip((demo, moved), results("classify"), strict=True):
        pruned = headscope.prune(
            model,
            methods=METHODS,
            repairs=["none"],
            fractions=[0.25],
            limit=4,
            calibration_limit=4,
            draws=5,
            roles=roles,
            validate=False,
        )
        removed = {}
        for curve in pruned.curves:
            for point in curve.points:
                removed[curve.method, point.fraction] = point.heads_removed
        chosen.append(removed)
    assert len(chosen[0]) >= 2 * len(METHODS)
    assert chosen[0] == chosen[1]


def test_no_verdict_depends_on_the_last_digit(demo, moved, results):
    verdicts = []
    for i, model in enumerate((demo, moved)):
        sections = {name: results(name)[i] for name in MEASURED}
        classified = sections["classify"]  # as of another text: heads are not classified again
        corpus = dataclasses.replace(classified.corpus, sha256="another")
        elsewhere = dataclasses.replace(classified, corpus=corpus)
        labelled = measure_kept_roles(model, elsewhere, draws=19, limit=8)
        evidence = Evidence(**sections, kept_roles=labelled, stacks=model.stacks)
        insights = [decide(name, evidence) for name in claims()]
        verdicts.append(
            [
                (each.number, each.verdict, [(p.name, p.verdict) for p in each.parts])
                for each in insights
            ]
        )
    assert sum(verdict in ("holds", "does not hold", "mixed") for _, verdict, _ in verdicts[0]) >= 4
    assert verdicts[0] == verdicts[1]
