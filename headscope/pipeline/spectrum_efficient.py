"""What could replace full attention: each head alone, then the model with all heads replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from headscope.attention import stream_attention
from headscope.data.packing import Windows
from headscope.measures.accumulator import Array
from headscope.measures.efficient import CONTROLS, RANDOM_BLOCKS, CheapForms, CheapSums
from headscope.measures.fidelity import cosine, mean_pooled
from headscope.measures.lapack import MatrixPool
from headscope.measures.statistics import finite
from headscope.models.layouts import AttentionSite
from headscope.models.loading import LoadedModel
from headscope.models.routing import Mechanism, Router, routed
from headscope.results.rank import MeanSem
from headscope.results.spectrum import CheapHead, CheapPoint, EfficientResult

__all__ = ["measure_efficient"]

#: Tokens that the cheap forms are measured on: 16 sequences of 128 or less, 4 of 512 or more.
TOKENS = 2048
#: Sequences of one pass.
_AT_ONCE = 4

Progress = Callable[[str, int, int], None]


def measure_efficient(
    loaded: LoadedModel, windows: Windows, pool: MatrixPool, seed: int, progress: Progress | None
) -> EfficientResult:
    """Measure every cheap form at every size, per head and end to end.

    Parameters
    ----------
    loaded : LoadedModel
    windows : Windows
        Some of them, evenly spread, are used.
    pool : MatrixPool
    seed : int
    progress : callable, optional
    """
    chosen = windows.spread(min(16, max(4, TOKENS // windows.length)))
    batches = [
        torch.from_numpy(windows.batch(part)).to(loaded.device)
        for part in np.array_split(chosen, -(-len(chosen) // _AT_ONCE))
    ]
    special = (
        *range(len(windows.before)),
        *range(windows.length - len(windows.after), windows.length),
    )
    forms = CheapForms(windows.length, special, seed, pool)
    sums = CheapSums(forms, loaded.n_layers, loaded.n_heads)
    original = _measured(loaded, batches, sums, progress)
    points = []
    for i, (form, size) in enumerate(forms.points):
        changed = _last_states(loaded, batches, _replaced(forms, form, size))
        points.append(_point(forms, form, size, sums, i, original, changed))
        if progress is not None:
            progress("cheap forms, all heads", i + 1, len(forms.points))
    return EfficientResult(
        sequences=len(chosen),
        block=forms.block,
        random_blocks=min(RANDOM_BLOCKS, -(-windows.length // forms.block)),
        global_tokens=len(forms.special),
        controls=CONTROLS,
        points=tuple(points),
        heads=tuple(_heads(loaded, forms, sums)),
    )


def _measured(
    loaded: LoadedModel, batches: list[Tensor], sums: CheapSums, progress: Progress | None
) -> list[Tensor]:
    """Run the unmodified model; measure the forms on the way; return its last states."""
    states = []
    for i, ids in enumerate(batches, start=1):
        states += _last_states(loaded, [ids], _measuring(sums))
        if progress is not None:
            progress("cheap forms, head by head", i, len(batches))
    return states


def _measuring(sums: CheapSums) -> Mechanism:
    """Attention as it is, with every form measured beside it."""

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:  # fmt: skip
        def visit(rows: slice, heads: slice, pattern: Tensor, z: Tensor) -> None:
            part = (rows, heads)
            sums.update(site.layer, heads, q[part], k[part], v[part], pattern, z, scale)

        return stream_attention(q, k, v, mask=mask, scale=scale, visit=visit)

    return attend


def _replaced(forms: CheapForms, form: str, size: int) -> Mechanism:
    """Every head in one cheap form; windows have no padding, so there is no mask to keep."""

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:  # fmt: skip
        return forms.attend(form, size, site.layer, q, k, v, scale)

    return attend


def _last_states(loaded: LoadedModel, batches: list[Tensor], mechanism: Mechanism) -> list[Tensor]:
    """Return the last hidden state of each batch, (batch, pos, d_model)."""
    states = []
    with routed(loaded.model, Router(loaded.sites, mechanism=mechanism)) as router:
        for ids in batches:
            router.begin()
            states.append(loaded.forward(ids, torch.ones_like(ids)).cpu())
            router.check_calls()
    return states


def _point(
    forms: CheapForms,
    form: str,
    size: int,
    sums: CheapSums,
    index: int,
    original: list[Tensor],
    changed: list[Tensor],
) -> CheapPoint:
    there = sums.count > 0
    pooled, tokens = _fidelity(original, changed)
    return CheapPoint(
        form=form,
        size=size,
        cost=forms.cost(form, size),
        error=float(sums.means("error")[there, index].mean()),
        mass=finite(sums.means("mass")[there, index].mean()),
        fidelity=_mean_sem(pooled),
        token_fidelity=_mean_sem(tokens),
    )


def _fidelity(original: list[Tensor], changed: list[Tensor]) -> tuple[Array, Array]:
    """Cosines of each sequence's pooled state, and the mean cosine of its tokens' states."""
    pooled, tokens = [], []
    for ours, theirs in zip(changed, original, strict=True):
        real = torch.ones(ours.shape[:2], device=ours.device)
        pooled.append(cosine(mean_pooled(ours, real), mean_pooled(theirs, real)))
        tokens.append(cosine(ours, theirs).mean(-1))
    return torch.cat(pooled).cpu().numpy(), torch.cat(tokens).cpu().numpy()


def _heads(loaded: LoadedModel, forms: CheapForms, sums: CheapSums) -> Iterator[CheapHead]:
    errors, sems, mass = sums.means("error"), sums.standard_errors(), sums.means("mass")
    for site in loaded.sites:
        for row, head in enumerate(site.head_ids):
            for i, (form, size) in enumerate(forms.points):
                place = (site.layer, row, i)
                yield CheapHead(
                    layer=site.layer,
                    head=head,
                    form=form,
                    size=size,
                    error=MeanSem(float(errors[place]), finite(sems[place])),
                    mass=finite(mass[place]),
                )


def _mean_sem(values: Array) -> MeanSem:
    """Mean and standard error of one number a sequence."""
    sem = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return MeanSem(float(values.mean()), sem)
