"""What a result says, as facts that can be compared one by one with another result's.

``SECTION.py`` has ``collect`` and ``settings`` for the results of one section.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from headscope.results.validate import certificate_of
from headscope.verdicts.diff.facts.fact import Facts
from headscope.verdicts.reading import Results

__all__ = ["Collector", "collector_of", "facts_of"]


class Collector(Protocol):
    """What the module of a section has; each result is of that section's class."""

    def collect(self, result: Any, facts: Facts) -> None:
        """Add what the result says to the facts."""

    def settings(self, result: Any) -> Mapping[str, object]:
        """Return by name what the result was measured with, beyond its provenance."""


def collector_of(section: str) -> Collector:
    """Return the collector of a section: the module ``headscope.verdicts.diff.facts.SECTION``."""
    return cast("Collector", importlib.import_module(f"{__name__}.{section}"))


def facts_of(results: Results, sections: Iterable[str]) -> Facts:
    """Collect the facts of some sections."""
    facts = Facts()
    words = {True: "passed", False: "FAILED", None: "not asked for"}
    for section in sections:
        result, here = results.sections[section], facts.of(section)
        certificate = certificate_of(result)
        if certificate is not None:
            here.text("", "certificate", words[certificate.passed])
        collector_of(section).collect(result, here)
    return facts
