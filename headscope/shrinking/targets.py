"""Whether a model reaches a target: the bad end of every interval counts."""

from __future__ import annotations

from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import MeasuredModel


def reaches(model: MeasuredModel, options: ShrinkOptions) -> bool:
    """Whether a model is confirmed to be as fast, or is as small, as was asked for."""
    if options.speed is not None:
        return model.speed.low is not None and model.speed.low >= options.speed
    if options.ms is not None:
        return model.ms.high is not None and model.ms.high <= options.ms
    return options.mb is None or model.megabytes <= options.mb


def keeps(model: MeasuredModel, options: ShrinkOptions) -> bool:
    """Whether a model is confirmed to lose at most ``max_drop``."""
    if options.max_drop is None or model.is_whole:
        return True
    return model.most_lost is not None and model.most_lost <= options.max_drop


def amount(lost: float | None) -> str:
    """Write a loss."""
    return "an unknown amount" if lost is None else f"{lost:.2f}"


def extent(model: MeasuredModel) -> str:
    """Say how fast and how large a model is."""
    times = "" if model.speed.low is None else f" (at least {model.speed.low:.2f})"
    return (
        f"{model.speed.value:.2f} times the speed{times}, {model.ms.value:.2f} ms a text, "
        f"{model.megabytes:.1f} MB"
    )


def shortfall(model: MeasuredModel, options: ShrinkOptions, metric: str) -> str:
    """Say what of a target a model misses."""
    said = []
    if not reaches(model, options) and options.target is not None:
        asked = {"speed": "{:g} times the speed", "ms": "{:g} ms a text", "mb": "{:g} MB"}
        wanted = asked[options.target.name].format(options.target.value)
        said.append(f"{wanted} was asked for, and it has {extent(model)}")
    if not keeps(model, options):
        said.append(
            f"at most {options.max_drop:g} of {metric} may be lost, and it may lose "
            f"{amount(model.most_lost)}"
        )
    return "; ".join(said) + "."
