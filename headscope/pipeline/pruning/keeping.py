"""Keeping the pruned model: saved compact, saved dense, timed against the full one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import InputError
from headscope.models.compact import remove_heads
from headscope.models.loading import LoadedModel
from headscope.models.output_maps import make_permanent
from headscope.models.saving import check_target, save, save_dense
from headscope.pipeline.pruning.options import PruneOptions
from headscope.pipeline.pruning.repairing import Repaired
from headscope.pipeline.pruning.run import Outcome, Run
from headscope.pipeline.speed import benchmark
from headscope.results import to_dict
from headscope.results.prune import PruneResult, SavedModel

__all__ = ["Keep", "compact_model"]


@dataclass(frozen=True)
class Keep:
    """What to do with the pruned model when everything is measured."""

    save: Path | None
    save_dense: Path | None
    benchmark: bool

    @classmethod
    def checked(
        cls,
        compact: str | Path | None,
        dense: str | Path | None,
        timed: bool,
        options: PruneOptions,
    ) -> Keep:
        """Refuse what cannot be done, before a long run.

        Raises
        ------
        InputError
            If it is not clear which model is meant, or a folder holds something else.
        """
        keep = cls(Path(compact) if compact else None, Path(dense) if dense else None, timed)
        if not (keep.save or keep.save_dense or timed):
            return keep
        chosen = [name for name in options.methods if name != "random"] or list(options.methods)
        single = options.single is not None and len(chosen) == 1
        if not options.manual and not single:
            raise InputError(
                "--save, --save-dense and --benchmark need one model: give --heads, --keep-roles, "
                "or one --method with one --fraction such as 0.5."
            )
        if options.single in (0.0, 1.0):
            raise InputError(
                f"--fraction {options.single:g} leaves no pruned model to keep: it removes "
                f"{'everything' if options.single else 'nothing'}."
            )
        for folder in (keep.save, keep.save_dense):
            if folder is not None:
                check_target(folder)
        if keep.save is not None and keep.save == keep.save_dense:
            raise InputError("--save and --save-dense name the same folder; give two.")
        return keep

    def finish(self, result: PruneResult, run: Run, outcome: Outcome) -> PruneResult:
        """Save and time; returns the result with what was done."""
        if not (self.save or self.save_dense or self.benchmark):
            return result
        if outcome.last is None:
            raise InputError("The fraction is so small that no head is removed; give a larger one.")
        method, kind, made = outcome.last
        compact = compact_model(run.loaded, run, made)
        saved = []
        for folder, write, form in (
            (self.save, save, "compact"), (self.save_dense, save_dense, "dense"),
        ):  # fmt: skip
            if folder is not None:
                write(compact, folder, repair=kind.value, provenance=result.provenance)
                names = run.measure.names(run.units.heads(made.removed))
                saved.append(SavedModel(str(folder), form, method, kind.value, names))
        speed = None
        if self.benchmark:
            speed = to_dict(benchmark(run.loaded, compact, seed=run.options.seed,
                                      progress=run.progress))  # fmt: skip
        return dataclasses.replace(result, saved=tuple(saved), speed=speed)


def compact_model(loaded: LoadedModel, run: Run, made: Repaired) -> LoadedModel:
    """Make the pruned, repaired model for real."""
    names = run.measure.names(run.units.heads(made.removed))
    compact = remove_heads(loaded, [(layer, head) for layer, head in names])
    make_permanent(compact, loaded, made.gates, made.maps)
    return compact
