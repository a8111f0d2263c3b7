"""Checks of the parameters that several commands have, made before a model is opened."""

from __future__ import annotations

from headscope.errors import InputError

__all__ = ["check_limit", "check_seed"]


def check_limit(limit: int | None, unit: str) -> None:
    """Refuse a limit that leaves nothing to measure.

    Parameters
    ----------
    limit : int or None
        Sentences or lines to read; None for all of them.
    unit : str
        What is counted, in the singular.

    Raises
    ------
    InputError
        If it is below 1.
    """
    if limit is not None and limit < 1:
        raise InputError(f"The limit is {limit}; give 1 {unit} or more.")


def check_seed(seed: int) -> None:
    """Refuse a seed that torch does not take.

    Raises
    ------
    InputError
        If it does not fit into 64 bits.
    """
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"The seed {seed} does not fit into 64 bits; give a smaller one.")
