"""The table of families and the list of those refused, made from what is tested.

``PYTHONPATH=tests python -m family_table`` writes both anew.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from families import COVERED, Family
from torch import Tensor

import headscope
from headscope.analyses.depth.measure import VARIANTS
from headscope.core.errors import UnsupportedModelError
from headscope.models.anatomy import take_apart
from headscope.models.blocks import own_run, run_variant
from headscope.models.families import REFUSED, relative_terms, rotary
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router

ROOT = Path(__file__).parents[1]
COMMAND = "PYTHONPATH=tests python -m family_table"
#: Where each table stands: the page, and the word in its markers.
PLACES = dict.fromkeys(("families", "refused"), ROOT / "docs" / "families.md")


def covered_table() -> str:
    """One row for all families of one layout that are covered alike."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for family in COVERED:
        loaded = headscope.wrap(family.model())
        row = (family.layout, ", ".join(family.stacks), _depth(loaded), _rank(loaded))
        rows.setdefault(row, []).append(_shown(family))
    header = ("families", "layout", "stacks", "`depth`", "`rank`")
    return _markdown(
        header, ((", ".join(dict.fromkeys(names)), *row) for row, names in rows.items())
    )


def refused_table() -> str:
    """One row for each reason."""
    rows: dict[str, list[str]] = {}
    for family, reason in REFUSED.items():
        rows.setdefault(reason, []).append(family)
    return _markdown(
        ("families", "why"), ((", ".join(names), reason) for reason, names in rows.items())
    )


TABLES = {"families": covered_table, "refused": refused_table}


def _shown(family: Family) -> str:
    return f"{family.kind} ({family.variant})" if family.variant else family.kind


def _depth(loaded: LoadedModel) -> str:
    """Whether the layers, taken apart and put together again, give the model's own states."""
    ids = torch.arange(5, 17)[None]
    full = next(variant for variant in VARIANTS if variant.name == "full")
    try:
        loaded = loaded.only("encoder") if loaded.encoder_decoder else loaded
        blocks = take_apart(loaded).layers
        own = own_run(loaded, blocks, ids)
        router = Router(loaded.sites, others=loaded.others)
        with torch.no_grad():
            ours = list(run_variant(blocks, router, own, full))
    except UnsupportedModelError:
        return "no"
    same = len(ours) == len(own.states) and all(map(_equal, ours, own.states))
    return "yes" if same else "no"


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-4)


def _rank(loaded: LoadedModel) -> str:
    if rotary(loaded.model):
        return "no: rotary"
    terms = relative_terms(loaded.model.config)
    return "yes" if terms is None else f"without {terms}"


def _markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = tuple(header)
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines).replace("| --- ", "|---")


def markers(name: str) -> tuple[str, str]:
    """Return what stands before and after a table."""
    return f"<!-- {name}: {COMMAND} -->\n", f"<!-- /{name} -->\n"


def standing(name: str) -> str:
    """Return the table as its page has it."""
    start, end = markers(name)
    text = PLACES[name].read_text(encoding="utf-8")
    return text.partition(start)[2].partition(end)[0]


def write(name: str) -> None:
    """Put the table between its markers."""
    start, end = markers(name)
    before, _, rest = PLACES[name].read_text(encoding="utf-8").partition(start)
    text = f"{before}{start}{TABLES[name]()}{end}{rest.partition(end)[2]}"
    PLACES[name].write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in TABLES:
        write(name)
