"""What ``headscope prune`` can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from headscope.core.options import Option, names
from headscope.session.options import POOLING, STACK, TASKS, ResumableOptions

if TYPE_CHECKING:
    from headscope.analyses.classify.result import ClassifyResult
    from headscope.data.examples import Examples

    Data = str | Path | Examples
    Roles = bool | str | Path | ClassifyResult
else:
    Data = Roles = Path


def _role_names(text: str) -> list[str]:
    """Read ``positional,syntactic``; an empty list is a slip, not a wish."""
    if chosen := names(text):
        return chosen
    raise ValueError("name a role, such as positional")


@dataclass(frozen=True)
class RolesFlags:
    """A classification, or none."""

    roles: Annotated[
        Path | None,
        Option(help="classify.json of this model. Default: classify the built-in sample."),
    ] = None
    no_roles: Annotated[
        bool, Option(help="Do not ask what the heads do.", flags=("--no-roles",))
    ] = False

    def value(self) -> Any:
        """Return the file that was named, or False for none."""
        return self.roles or False


@dataclass(frozen=True, kw_only=True)
class PruneOptions(ResumableOptions):
    """Choose heads, remove them for real, measure again, keep a model that loads.

    Several methods side by side, with intervals and random heads as the baseline.

    Examples
    --------
    >>> import headscope
    >>> found = headscope.prune("demo", heads="L0H1,L3H*", calibration_limit=64, ablation=False)
    >>> found.curves[0].method, len(found.curves[0].points[0].heads_removed)
    ('manual', 13)
    """

    unit: ClassVar[str | None] = "steps"
    examples: ClassVar[tuple[str, ...]] = (
        "headscope prune demo",
        "headscope prune demo --fraction 0.5 --save smaller",
        "headscope prune demo --task similarity --data test.csv --calibration train.csv",
        "headscope prune demo --step 0.1 --draws 20",
        "headscope prune ./my-bert --heads 'L0H1,L3H*' --save smaller",
        "headscope prune ./my-marian --task seq2seq --data a.tsv --calibration b.tsv",
        "headscope prune demo --fraction 0.5 --repair scale --save small --benchmark",
    )

    task: Annotated[
        str,
        Option(
            help="What the model is measured by; fidelity needs no labels.",
            choices=TASKS,
        ),
    ] = "fidelity"
    data: Annotated[
        Data | None,
        Option(
            help="What curves are measured on: text, or CSV, TSV, JSONL with labels or targets."
        ),
    ] = None
    calibration: Annotated[
        Data | None,
        Option(help="What heads are chosen on; other sentences than those of the data."),
    ] = None
    stack: Annotated[str | None, STACK] = None
    methods: Annotated[
        Sequence[str] | None,
        Option(
            help="fisher-joint, fisher-relinearised, fisher-mean, fisher, importance-token, "
            "importance-example, gates, topk, ablation, ablation-greedy, roles, magnitude, "
            "confidence or random; repeatable. Default: fisher-joint and random.",
            flags=("--method",),
        ),
    ] = None
    repairs: Annotated[
        Sequence[str] | None,
        Option(
            help="Repeatable. Default: none and scale, with a largest drop also mean; none for "
            "heads by hand.",
            flags=("--repair",),
            choices=("none", "scale", "mean", "refit"),
        ),
    ] = None
    step: Annotated[
        float, Option(help="Between the fractions of a curve; 0.1 takes about three times as long.")
    ] = 0.25
    fractions: Annotated[
        Sequence[float] | None,
        Option(
            help="Remove this share of heads, no whole curve; repeatable, but once where a model "
            "is saved.",
            flags=("--fraction",),
        ),
    ] = None
    heads: Annotated[
        str | None, Option(help="Remove these by hand: L0H1,L3H* (all of layer 3).")
    ] = None
    keep_roles: Annotated[
        Sequence[str] | None,
        Option(
            help="Keep only heads with one of these roles: positional,syntactic.",
            metavar="<str>",
            read=_role_names,
        ),
    ] = None
    draws: Annotated[
        int,
        Option(help="Random sets of heads at each fraction.", at_least=5, why="fewer say nothing"),
    ] = 5
    normalise: Annotated[
        bool | None,
        Option(help="Divide scores by each layer's l2 norm. Default: for importance-* only."),
    ] = None
    labels: Annotated[bool, Option(help="Let fisher, gates and topk use labels.")] = False
    ablation: Annotated[
        bool | None,
        Option(
            help="Tables of single heads: each removed alone, each layer's best alone. Default: "
            "only for the built-in sample."
        ),
    ] = None
    roles: Annotated[
        Roles,
        Option(
            help="A result of classify for this model, or False; True classifies the built-in "
            "sample.",
            spelled=RolesFlags,
        ),
    ] = True
    save: Annotated[
        str | Path | None,
        Option(
            help="Folder for the pruned model, heads removed for real; loaded again and measured. "
            "Of several methods or repairs the best on the calibration data; never random heads."
        ),
    ] = None
    save_dense: Annotated[
        str | Path | None,
        Option(help="Folder for a plain checkpoint: same shapes, zeros where heads were."),
    ] = None
    benchmark: Annotated[
        bool,
        Option(help="Time the full model against the one that is kept.", flags=("--benchmark",)),
    ] = False
    max_drop: Annotated[
        float | None,
        Option(
            help="Instead of fractions: find a number of heads that is confirmed to cost at most "
            "this much of the metric, the bad end of the 95% interval included."
        ),
    ] = None
    even: Annotated[
        bool, Option(help="Remove the same number of heads in every layer.", flags=("--even",))
    ] = False
    standalone: Annotated[
        bool,
        Option(
            help="Write a modelling file beside the saved weights: transformers then opens it "
            "without headscope (trust_remote_code).",
            flags=("--standalone",),
        ),
    ] = False
    export: Annotated[
        tuple[str, str | Path] | None,
        Option(
            help="onnx and a folder: the pruned model as one ONNX graph, compared and measured.",
            kind=tuple[str, Path],
        ),
    ] = None
    quantize: Annotated[
        str | None,
        Option(help="Also export 8-bit weights, measured again.", choices=("int8",)),
    ] = None
    limit: Annotated[int | None, Option(help="Only the first examples of the data.")] = None
    calibration_limit: Annotated[
        int, Option(help="Calibration sentences (mlm: half as many windows), drawn at random.")
    ] = 1024
    pooling: Annotated[str | None, POOLING] = None
