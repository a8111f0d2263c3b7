"""``headscope prune MODEL``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from headscope.cli import shared_options as options
from headscope.cli.output import command_line, print_result, progress_bar

__all__ = ["prune"]

EXAMPLES = """Examples:

`headscope prune demo`

`headscope prune demo --fraction 0.5 --save smaller`

`headscope prune demo --task similarity --data stsb-test.csv --calibration stsb-train.csv -o out/`

`headscope prune demo --step 0.1 --draws 20` (the full curve)

`headscope prune ./my-bert --heads L0H1,L3H* --save smaller`

`headscope prune demo --method fisher-joint --fraction 0.5 --repair scale --save small --benchmark`
"""


class TaskName(enum.StrEnum):
    """What the model is measured by."""

    fidelity = "fidelity"
    mlm = "mlm"
    classification = "classification"
    similarity = "similarity"


class RepairName(enum.StrEnum):
    """What is done to the heads that are left."""

    none = "none"
    scale = "scale"
    refit = "refit"


TaskOption = Annotated[
    TaskName,
    typer.Option("--task", help="What the model is measured by; fidelity needs no labels."),
]
Data = Annotated[
    Path | None,
    typer.Option(help="What curves are measured on: text, or CSV, TSV, JSONL with labels."),
]
Calibration = Annotated[
    Path | None,
    typer.Option(help="What heads are chosen on; other sentences than those of --data."),
]
MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="fisher-joint, fisher, importance-token, importance-example, gates, topk, ablation, "
        "ablation-greedy, roles, magnitude, confidence or random; repeatable. Default: "
        "fisher-joint and random.",
    ),
]
RepairOption = Annotated[
    list[RepairName] | None,
    typer.Option("--repair", help="Repeatable. Default: none and scale; none with --heads."),
]
Step = Annotated[
    float,
    typer.Option(help="Between the fractions of a curve; 0.1 takes about three times as long."),
]
Fraction = Annotated[
    list[float] | None,
    typer.Option(
        "--fraction",
        help="Remove this share of heads, no whole curve; repeatable, but once with --save.",
    ),
]
Heads = Annotated[
    str | None, typer.Option(help="Remove these by hand: L0H1,L3H* (all of layer 3).")
]
KeepRoles = Annotated[
    str | None,
    typer.Option(help="Keep only heads with one of these roles: positional,syntactic."),
]
Draws = Annotated[int, typer.Option(help="Random sets of heads at each fraction, 5 or more.")]
Normalise = Annotated[
    bool | None,
    typer.Option(
        "--normalise/--no-normalise",
        help="Divide scores by each layer's l2 norm. Default: for importance-* only.",
    ),
]
Labels = Annotated[
    bool,
    typer.Option("--labels/--no-labels", help="Let fisher, gates and topk use labels."),
]
Ablation = Annotated[
    bool | None,
    typer.Option(
        "--ablation/--no-ablation",
        help="Tables of single heads: each removed alone, each layer's best alone. Default: only "
        "for the built-in sample.",
    ),
]
Roles = Annotated[
    Path | None,
    typer.Option(help="classify.json of this model. Default: classify the built-in sample."),
]
NoRoles = Annotated[bool, typer.Option("--no-roles", help="Do not ask what the heads do.")]
Save = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the pruned model, heads removed for real; loaded again and measured. Of "
        "several methods or repairs the best on the calibration data; never random heads."
    ),
]
SaveDense = Annotated[
    Path | None,
    typer.Option(help="Folder for a plain checkpoint: same shapes, zeros where heads were."),
]
Benchmark = Annotated[
    bool, typer.Option("--benchmark", help="Time the full model against the one --save keeps.")
]
CalibrationLimit = Annotated[
    int, typer.Option(help="Calibration sentences (mlm: half as many windows), drawn at random.")
]


def prune(
    model: options.Model,
    task: TaskOption = TaskName.fidelity,
    data: Data = None,
    calibration: Calibration = None,
    method: MethodOption = None,
    repair: RepairOption = None,
    step: Step = 0.25,
    fraction: Fraction = None,
    heads: Heads = None,
    keep_roles: KeepRoles = None,
    draws: Draws = 5,
    normalise: Normalise = None,
    labels: Labels = False,
    ablation: Ablation = None,
    roles: Roles = None,
    no_roles: NoRoles = False,
    save: Save = None,
    save_dense: SaveDense = None,
    benchmark: Benchmark = False,
    no_validate: options.NoValidate = False,
    output: options.Output = None,
    limit: options.Limit = None,
    calibration_limit: CalibrationLimit = 1024,
    seed: options.Seed = 0,
    format: options.FormatOption = options.Format.human,
    dtype: options.DtypeOption = options.Dtype.float32,
    device: options.DeviceOption = options.Device.auto,
    revision: options.Revision = None,
    allow_pickle: options.AllowPickle = False,
    config: options.Config = None,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Choose heads, remove them for real, measure again, keep a model that loads.

    Several methods side by side, with intervals and random heads as the baseline.
    """
    if roles is not None and no_roles:
        raise typer.BadParameter("give --roles or --no-roles, not both")

    from headscope.pipeline.prune.options import PruneOptions
    from headscope.pipeline.prune.run import prune_with
    from headscope.show.cells import to_csv
    from headscope.show.files import write_result
    from headscope.show.folders import ready_folder
    from headscope.show.prune.tables import prune_report

    choices = PruneOptions(
        task=task.value,
        data=data,
        calibration=calibration,
        methods=method,
        repairs=[name.value for name in repair] if repair else None,
        step=step,
        fractions=fraction,
        heads=heads,
        keep_roles=_names(keep_roles),
        draws=draws,
        normalise=normalise,
        labels=labels,
        ablation=ablation,
        roles=roles or not no_roles,
        save=save,
        save_dense=save_dense,
        benchmark=benchmark,
        limit=limit,
        calibration_limit=calibration_limit,
        validate=not no_validate,
        seed=seed,
    )
    with ready_folder(output), progress_bar(quiet, "steps") as progress:
        result = prune_with(
            model,
            choices,
            progress=progress,
            command=command_line(),
            dtype=dtype.value,
            device=device.value,
            revision=revision,
            allow_pickle=allow_pickle,
        )
        if output is not None:
            write_result("prune", result, output)
    print_result(result, format, human=prune_report, csv=to_csv)


def _names(text: str | None) -> list[str] | None:
    """Read ``positional,syntactic``; an empty list is a slip, not a wish."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter("name a role, such as positional", param_hint="'--keep-roles'")
    return names
