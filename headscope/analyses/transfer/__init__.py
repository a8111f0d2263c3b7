"""``headscope transfer``: a classifier, and some of a model's parameters, are fine-tuned.

:mod:`~headscope.analyses.transfer.plan` says which runs there are,
:mod:`~headscope.analyses.transfer.runner` does them one after the other,
:mod:`~headscope.analyses.transfer.fine_tuning` does a single one, and
:mod:`~headscope.analyses.transfer.summary` sums up runs that differ in their seed. Below are the
command's options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar

from headscope.analyses.transfer.result import TransferResult
from headscope.core.options import Option, Usual, names, numbers
from headscope.core.progress import Budget
from headscope.session.entry import entry
from headscope.session.options import POOLING, Held, RunOptions

__all__ = ["TransferOptions", "TransferResult", "transfer"]

#: What can be trained, in the order of the tables.
TRAINED = ("head", "layernorm", "biases", "weights", "lora", "all_biases", "attention", "all")
#: What is trained from random weights: those that claims or the papers compare.
RANDOM = ("head", "layernorm", "attention", "all")


@dataclass(frozen=True)
class TransferOptions(RunOptions):
    """Fine-tune LayerNorm only, attention only, everything, or equally many other parameters.

    From pretrained and random weights, with several seeds; the model itself is not changed.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.transfer("demo", variants=["head"], random=[], sizes=[64], seeds=2)
    >>> result.cells[0].variant, result.cells[0].parameters, result.cells[0].seeds
    ('head', 0, 2)
    """

    held: ClassVar[Held] = Held(4.0, 400.0)
    examples: ClassVar[tuple[str, ...]] = (
        "headscope transfer demo",
        "headscope transfer ./my-bert --train train.tsv --test test.tsv --sizes 64,256",
        "headscope transfer demo --variants head,layernorm --seeds 5 --budget 120",
    )
    #: A few minutes' worth.
    in_report: ClassVar[dict[str, Any]] = {
        "budget": 240.0,
        "sizes": (128,),
        "variants": ("head", "layernorm", "biases", "weights", "lora", "attention", "all"),
        "random": ("head", "layernorm"),
        "steps": 25,
        "test_limit": 128,
    }

    train: Annotated[
        str | Path | None,
        Usual(help="Labelled sentences or pairs to train on. Default: a built-in task."),
    ] = None
    test: Annotated[
        str | Path | None, Usual(help="Labelled examples that accuracy is measured on.")
    ] = None
    _: KW_ONLY
    sizes: Annotated[
        Sequence[int] | None,
        Usual(
            help="Training examples. Default: 64 and all there are.",
            metavar="N,N,...",
            read=numbers("sizes", "64,256"),
        ),
    ] = None
    seeds: Annotated[int, Usual(help="Runs of each variant, start and size.")] = 3
    spread_seeds: Annotated[
        int,
        Option(
            help="Runs of attention and layernorm at the smallest size, and at 3 and 10 times "
            "their best rates."
        ),
    ] = 5
    variants: Annotated[
        Sequence[str],
        Usual(
            help=f"What to train: {', '.join(TRAINED)}. Default: all eight.",
            metavar="NAME,NAME,...",
            read=names,
        ),
    ] = TRAINED
    random: Annotated[
        Sequence[str],
        Option(
            help=f"What to train from random weights too. Default: {','.join(RANDOM)}.",
            metavar="NAME,NAME,...",
            read=names,
        ),
    ] = RANDOM
    steps: Annotated[int, Option(help="Most steps of a run.", at_least=1)] = 64
    batch: Annotated[int, Option(help="Examples of a step.", at_least=1)] = 16
    patience: Annotated[
        int, Option(help="Validations without gain before a run stops.", at_least=1)
    ] = 3
    rates: Annotated[
        Mapping[str, Sequence[float]] | None,
        Option(
            help="Learning rates that the search for a variant's best one starts from; a single "
            "one is taken as it is.",
            python_only=True,
        ),
    ] = None
    search: Annotated[
        bool,
        Option(
            help="Choose learning rates on validation data, from grids that grow while the best "
            "one lies at an edge; else the middle of the grid."
        ),
    ] = True
    #: With what comes before the runs it is ten minutes on two cores.
    budget: Annotated[
        float, Usual(help="Seconds for all runs; what is not reached is said.", above=0, below=inf)
    ] = 540.0
    train_limit: Annotated[int, Option(help="Examples drawn of the training file; 0 for all.")] = (
        512
    )
    test_limit: Annotated[int, Option(help="Examples drawn of the test file; 0 for all.")] = 400
    pooling: Annotated[str | None, POOLING] = None

    def step_names(self) -> tuple[str, ...]:
        """Name the only step: fine-tuning, run after run."""
        return ("runs",)

    def step_seconds(self) -> dict[str, float]:
        """Return that step with the seconds that it is given."""
        return {"runs": Budget(self.budget)}


transfer = entry(TransferOptions, TransferResult, "headscope.analyses.transfer.run")
