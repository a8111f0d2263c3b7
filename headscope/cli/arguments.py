"""From the tables of a config file to the arguments of a report's sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from headscope.cli import settings as config
from headscope.errors import InputError

__all__ = ["section_settings", "thresholds_from"]

#: Options of commands that a report decides for itself, or that concern presentation.
_OWN = {
    "output",
    "format",
    "dtype",
    "device",
    "revision",
    "allow_pickle",
    "quiet",
    "debug",
    "resume",
    "no_validate",
    "save",
    "save_dense",
    "benchmark",
    "log",
    "config",
    "model",
}
_SECTIONS = ("classify", "rank", "spectrum", "depth", "prune")
#: Options whose arguments have other names.
_NAMES = {"method": "methods", "repair": "repairs", "fraction": "fractions"}


def section_settings(
    context: typer.Context,
    *,
    treebank: Path | None = None,
    text: Path | None = None,
    limit: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Return each section's arguments: what its table in the config file sets, then the flags.

    Parameters
    ----------
    context : typer.Context
    treebank : Path, optional
        What heads are classified on.
    text : Path, optional
        What everything else is measured on (classify too, without a treebank).
    limit : int, optional
        Sentences of classify, lines of rank's text.
    """
    found = {name: _arguments(name, config.given(context, name)) for name in _SECTIONS}
    if treebank is not None or text is not None:
        found["classify"]["corpus"] = _corpus(treebank, text if treebank is None else None)
    if text is not None:
        for name in ("rank", "spectrum", "depth"):
            found[name]["text"] = text
    if limit is not None:
        for name in ("classify", "rank"):
            found[name]["limit"] = limit
    return found


def _arguments(section: str, given: dict[str, Any]) -> dict[str, Any]:
    """Turn a command's options into its function's arguments."""
    values = {_NAMES.get(k, k): v for k, v in given.items() if k not in _OWN or _wanted(section, k)}
    if section == "classify":
        _classify(values)
    if section == "rank":
        if "biases" in values:
            values["biases"] = values["biases"] == "include"
        if "share_projections" in values:
            values["share_projections"] = _widths(values["share_projections"])
    if section == "prune":
        if isinstance(values.get("keep_roles"), str):
            names = values["keep_roles"].split(",")
            values["keep_roles"] = [name.strip() for name in names if name.strip()]
        if values.pop("no_roles", False):
            values["roles"] = False
    return values


def _wanted(section: str, option: str) -> bool:
    return section == "depth" and option == "dtype"


def _classify(values: dict[str, Any]) -> None:
    from headscope.measures.classify.thresholds import Thresholds

    thresholds = dict(values.pop("thresholds", {}))
    for item in values.pop("threshold", None) or []:
        name, _, value = item.partition("=")
        thresholds[name.strip()] = value.strip()
    if thresholds:
        values["thresholds"] = Thresholds.parse(thresholds)
    treebank, text = values.pop("treebank", None), values.pop("text", None)
    if treebank is not None and text is not None:
        raise InputError("[classify] sets treebank and text; give one of them.")
    if treebank is not None or text is not None:
        values["corpus"] = _corpus(treebank, text)


def _corpus(treebank: Path | None, text: Path | None) -> Any:
    from headscope.data.corpus import open_text, open_treebank

    if treebank is not None:
        return open_treebank(treebank)
    return open_text(text) if text is not None else None


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"[rank] share_projections is {text!r}; write widths such as 48,96,192."
        ) from None


def thresholds_from(context: typer.Context, flags: list[str] | None) -> Any:
    """Build the thresholds of the claims from [insights.thresholds] and the flags; flags win."""
    from headscope.verdicts.insights.thresholds import InsightThresholds

    values = dict(config.given(context, "insights").get("thresholds", {}))
    for item in flags or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"--threshold {item!r}: write NAME=VALUE, such as most=0.6.")
        values[name.strip()] = value.strip()
    return InsightThresholds.parse(values)
