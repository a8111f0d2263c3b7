"""The options of ``headscope shrink``.

A field's ``Usual`` or ``Option`` beside its type is its help, bounds and flags; ``--help`` shows
the ``Usual`` ones, ``--help-all`` shows all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from headscope.core.errors import WrongOptionError
from headscope.core.options import Option, OptionError, Usual
from headscope.core.progress import Budget
from headscope.core.saved_config import MANIFEST
from headscope.session.options import POOLING, TASKS, Held, RunOptions
from headscope.shrinking.result import Target

if TYPE_CHECKING:
    from headscope.data.examples import Examples

    Data = str | Path | Examples
else:
    Data = Path

RUNTIMES = ("torch", "onnxruntime", "openvino")
MINUTES = 5.0
PANEL = "Target"  # Heading in the help


def _made_of(values: Mapping[str, Any]) -> str:
    """Return the model that the folder of ``--check`` was made of, where none was named.

    ``values`` are the flags that were given.
    """
    folder = values.get("check")
    if folder is None:
        raise WrongOptionError("Name the MODEL, or with --check a folder that shrink saved.")
    try:
        source = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))["source"]
        return str(source["id"])
    except (OSError, ValueError, KeyError, TypeError):
        raise WrongOptionError(
            f"{folder} does not say which model it was made of; name that model before --check."
        ) from None


@dataclass(frozen=True, kw_only=True)
class ShrinkOptions(RunOptions):
    """Find the fastest model that loses at most what you allow, by the plainest means.

    First the whole model in other runtimes and in 8 bits, each timed and measured here. Where that
    does not reach the target, layers get narrower, then fewer, and are distilled for some minutes
    from the model's own outputs on text without labels.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.shrink("demo", runtimes=["torch"], limit=32, batch_size=1)
    >>> [model.form for model in result.models]
    ['torch float32']
    """

    default_model: ClassVar[Callable[[Mapping[str, Any]], str]] = staticmethod(_made_of)
    held: ClassVar[Held] = Held(6.0, 900.0)
    usual_seconds: ClassVar[Mapping[str, float]] = {
        "whole model": 40.0,
        "choosing a size": 4.0,
        "choosing layers": 10.0,
        "choosing neurons": 4.0,
        "smaller model": 30.0,
    }
    examples: ClassVar[tuple[str, ...]] = (
        "headscope shrink demo",
        "headscope shrink demo --data dev.txt --text train.txt --speed 6 --save small",
        "headscope shrink demo --data dev.txt --text train.txt --max-drop 0.05",
        "headscope shrink demo --data dev.txt --text train.txt --mb 20",
        "headscope shrink --check small --data dev.txt --max-drop 0.1 --min-speed 3",
    )

    task: Annotated[
        str,
        Usual(help="What the models are measured by; fidelity needs no labels.", choices=TASKS),
    ] = "fidelity"
    data: Annotated[
        Data | None,
        Usual(
            help="What they are measured on: text, or a table with labels; nothing is chosen or "
            "trained on it. Default: half of the built-in sample."
        ),
    ] = None
    text: Annotated[
        Sequence[str | Path] | None,
        Usual(
            help="Text without labels, one sentence a line, to train and to calibrate 8 bits on; "
            "repeatable. Default: the other half of the built-in sample.",
            kind=list[Path],
            metavar="<path>",
        ),
    ] = None
    other_text: Annotated[
        str | Path | None,
        Option(
            help="Text of another kind, on which every model is compared with the whole one too. "
            "Default: the built-in sample."
        ),
    ] = None
    speed: Annotated[
        float | None,
        Usual(
            help="So many times as fast as the whole model in torch.",
            above=1,
            why="2 is twice as fast",
            flags=("--speed", "--min-speed"),
            panel=PANEL,
        ),
    ] = None
    ms: Annotated[
        float | None, Option(help="At most so many milliseconds a text.", above=0, panel=PANEL)
    ] = None
    mb: Annotated[
        float | None,
        Usual(help="A file of at most so many megabytes (1e6 bytes).", above=0, panel=PANEL),
    ] = None
    max_drop: Annotated[
        float | None,
        Usual(
            help="At most this much of the metric is lost, the bad end of the 95% interval "
            "included. Alone: the fastest model that keeps to it.",
            at_least=0,
            why="in the unit of the task's metric (0.5 is half a point of accuracy)",
            panel=PANEL,
        ),
    ] = None
    minutes: Annotated[
        float,
        Option(
            help="Minutes of training for each size that is trained; 0 trains nothing.",
            at_least=0,
        ),
    ] = MINUTES
    runtimes: Annotated[
        Sequence[str] | None,
        Option(
            help="What may serve the model; repeatable. Default: all that are installed.",
            flags=("--runtime",),
            choices=RUNTIMES,
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        Option(
            help="Texts that are run together while models are timed. Default: 32, fewer of a "
            "large model.",
            at_least=1,
        ),
    ] = None
    limit: Annotated[
        int | None,
        Option(help="Only so many examples of the data, chosen at random.", at_least=2),
    ] = None
    save: Annotated[
        str | Path | None,
        Usual(help="Folder for the smaller model; opened again and measured."),
    ] = None
    check_folder: Annotated[
        str | Path | None,
        Option(
            help="Make nothing: measure this saved folder against the model, and exit with 3 where "
            "it misses a target.",
            flags=("--check",),
        ),
    ] = None
    pooling: Annotated[str | None, POOLING] = None

    @property
    def target(self) -> Target | None:
        """Which of the targets besides max_drop was given."""
        named = {"speed": self.speed, "ms": self.ms, "mb": self.mb}
        for name, value in named.items():
            if value is not None:
                return Target(name, value)
        return None

    @property
    def searches(self) -> bool:
        """Whether a smaller model was asked for."""
        return self.target is not None or self.max_drop is not None

    def check(self) -> None:
        """Refuse two targets, and a save or a check that has none."""
        targets = [name for name in ("speed", "ms", "mb") if getattr(self, name) is not None]
        if len(targets) > 1:
            named = " and ".join(f"${name}" for name in targets)
            raise OptionError(f"{named} are two targets; give one of them.")
        if self.check_folder is not None and self.save is not None:
            raise OptionError(
                "$check_folder measures a folder that is there, and $save makes one; give one."
            )
        if self.check_folder is not None and not self.searches:
            raise OptionError(
                "$check_folder needs something to hold: $speed, $ms, $mb or $max_drop."
            )
        if self.save is not None and not self.searches:
            raise OptionError(
                "Nothing says which model $save is to keep: give $max_drop, the most that may be "
                "lost, or a target ($speed, $ms, $mb)."
            )

    def step_names(self) -> tuple[str, ...]:
        """Name the steps of a run."""
        if not self.searches or self.check_folder is not None:
            return ("whole model",)
        size = ("choosing a size",) if self.target is not None else ()
        search = ("choosing layers", "choosing neurons", "distilling", "smaller model")
        return ("whole model", *size, *search)

    def step_seconds(self) -> dict[str, float]:
        """Return the steps with their usual seconds; training takes the minutes that it is given.

        That is for one size. How many are tried shows only as they miss the target.
        """
        seconds = super().step_seconds()
        if "distilling" in seconds:
            seconds["distilling"] = Budget(max(60.0 * self.minutes, 1.0))
        return seconds
