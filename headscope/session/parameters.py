"""Checks of the parameters that several commands have, made before a model is opened."""

from __future__ import annotations

from headscope.core.errors import InputError


def check_limit(limit: int | None, unit: str) -> None:
    """Refuse a limit that leaves no ``unit`` (sentence, line) to measure."""
    if limit is not None and limit < 1:
        raise InputError(f"The limit is {limit}; give 1 {unit} or more.")


def check_seed(seed: int) -> None:
    """Refuse a seed that torch does not take."""
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"The seed {seed} does not fit into 64 bits; give a smaller one.")
