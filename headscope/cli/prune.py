"""``headscope prune MODEL``."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Annotated

from typer import Option

from headscope.cli import shared_options as shared
from headscope.cli.command import Call, model_command

EXAMPLES = """Examples:

`headscope prune demo`

`headscope prune demo --fraction 0.5 --save smaller`

`headscope prune demo --task similarity --data test.csv --calibration train.csv`

`headscope prune demo --step 0.1 --draws 20`

`headscope prune ./my-bert --heads 'L0H1,L3H*' --save smaller`

`headscope prune ./my-marian --task seq2seq --data a.tsv --calibration b.tsv`

`headscope prune demo --fraction 0.5 --repair scale --save small --benchmark`
"""


#: What is done to the heads that are left.
RepairName = enum.StrEnum("RepairName", ["none", "scale", "mean", "refit"])
#: What the weights of an exported graph become.
QuantizeName = enum.StrEnum("QuantizeName", ["int8"])


@model_command("steps")
def prune(
    call: Call,
    task: Annotated[
        shared.TaskName, Option(help="What the model is measured by; fidelity needs no labels.")
    ] = shared.TaskName.fidelity,
    data: Annotated[
        Path | None,
        Option(
            help="What curves are measured on: text, or CSV, TSV, JSONL with labels or targets."
        ),
    ] = None,
    calibration: Annotated[
        Path | None, Option(help="What heads are chosen on; other sentences than those of --data.")
    ] = None,
    stack: shared.Stack = None,
    method: Annotated[
        list[str] | None,
        Option(
            help="fisher-joint, fisher-relinearised, fisher-mean, fisher, importance-token, "
            "importance-example, gates, topk, ablation, ablation-greedy, roles, magnitude, "
            "confidence or random; repeatable. Default: fisher-joint and random."
        ),
    ] = None,
    repair: Annotated[
        list[RepairName] | None,
        Option(
            help="Repeatable. Default: none and scale, with --max-drop also mean; none with "
            "--heads."
        ),
    ] = None,
    step: Annotated[
        float, Option(help="Between the fractions of a curve; 0.1 takes about three times as long.")
    ] = 0.25,
    fraction: Annotated[
        list[float] | None,
        Option(
            help="Remove this share of heads, no whole curve; repeatable, but once with --save."
        ),
    ] = None,
    heads: Annotated[
        str | None, Option(help="Remove these by hand: L0H1,L3H* (all of layer 3).")
    ] = None,
    keep_roles: Annotated[
        str | None, Option(help="Keep only heads with one of these roles: positional,syntactic.")
    ] = None,
    draws: Annotated[int, Option(help="Random sets of heads at each fraction, 5 or more.")] = 5,
    normalise: Annotated[
        bool | None,
        Option(help="Divide scores by each layer's l2 norm. Default: for importance-* only."),
    ] = None,
    labels: Annotated[bool, Option(help="Let fisher, gates and topk use labels.")] = False,
    ablation: Annotated[
        bool | None,
        Option(
            help="Tables of single heads: each removed alone, each layer's best alone. Default: "
            "only for the built-in sample."
        ),
    ] = None,
    roles: Annotated[
        Path | None,
        Option(help="classify.json of this model. Default: classify the built-in sample."),
    ] = None,
    no_roles: Annotated[bool, Option("--no-roles", help="Do not ask what the heads do.")] = False,
    save: Annotated[
        Path | None,
        Option(
            help="Folder for the pruned model, heads removed for real; loaded again and measured. "
            "Of several methods or repairs the best on the calibration data; never random heads."
        ),
    ] = None,
    save_dense: Annotated[
        Path | None,
        Option(help="Folder for a plain checkpoint: same shapes, zeros where heads were."),
    ] = None,
    benchmark: Annotated[
        bool, Option("--benchmark", help="Time the full model against the one --save keeps.")
    ] = False,
    max_drop: Annotated[
        float | None,
        Option(
            help="Instead of --fraction: find a number of heads that is confirmed to cost at most "
            "this much of the metric, the bad end of the 95% interval included."
        ),
    ] = None,
    even: Annotated[
        bool, Option("--even", help="Remove the same number of heads in every layer.")
    ] = False,
    standalone: Annotated[
        bool,
        Option(
            "--standalone",
            help="Write a modelling file beside the weights of --save: transformers then opens it "
            "without headscope (trust_remote_code).",
        ),
    ] = False,
    export: Annotated[
        tuple[str, Path] | None,
        Option(
            help="onnx and a folder: the pruned model as one ONNX graph, compared and measured."
        ),
    ] = None,
    quantize: Annotated[
        QuantizeName | None, Option(help="Also export 8-bit weights, measured again.")
    ] = None,
    pooling: shared.Pooling = None,
    no_validate: shared.NoValidate = False,
    output: shared.Output = None,
    resume: shared.Resume = False,
    limit: shared.Limit = None,
    calibration_limit: Annotated[
        int, Option(help="Calibration sentences (mlm: half as many windows), drawn at random.")
    ] = 1024,
    seed: shared.Seed = 0,
) -> None:
    """Choose heads, remove them for real, measure again, keep a model that loads.

    Several methods side by side, with intervals and random heads as the baseline.
    """
    arguments = call.arguments()

    from headscope.pruning.options import PruneOptions
    from headscope.pruning.run import run

    names = {field.name for field in dataclasses.fields(PruneOptions)} & arguments.keys()
    options = PruneOptions(**{name: arguments.pop(name) for name in names})
    call.run({"options": options, **arguments}, function=run)
