"""What could replace full attention: each head alone, then the model with all heads replaced."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from headscope.attention import Mask, mask_of_chunk, stream_attention
from headscope.core.processes import joined_rows, share
from headscope.data.packing import Windows
from headscope.measures.accumulator import Array, numpy
from headscope.measures.pooling import cosine
from headscope.measures.spectrum.crossed import CrossedMean, crossed_mean
from headscope.measures.spectrum.efficient import (
    CONTROLS,
    DRAWS,
    RANDOM_BLOCKS,
    CheapErrors,
    CheapForms,
)
from headscope.measures.spectrum.shares import MatrixPool, Structure, without_padding
from headscope.measures.statistics import finite
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.pooling import Pooling
from headscope.models.routing import Mechanism
from headscope.pipeline.replaced_attention import last_states
from headscope.results.efficient import CheapHead, CheapPoint, EfficientResult
from headscope.results.rank import MeanSem
from headscope.session.progress import Progress

#: Tokens that the cheap forms are measured on: 16 sequences of 128 or less, 4 of 512 or more.
TOKENS = 2048
_AT_ONCE = 4  # Sequences of one pass.
#: Batches of this process: which of the sequences they hold, and their token ids.
Mine = list[tuple[Array, Tensor]]


def measure_efficient(
    loaded: LoadedModel, windows: Windows, pool: MatrixPool, seed: int, progress: Progress
) -> EfficientResult:
    """Measure every cheap form at every size, per head and end to end, on some of the windows."""
    chosen = windows.spread(min(16, max(4, TOKENS // windows.length)))
    batches = [
        torch.from_numpy(windows.batch(part)).to(loaded.device)
        for part in np.array_split(chosen, -(-len(chosen) // _AT_ONCE))
    ]
    last = windows.length - len(windows.after)
    special = (*range(len(windows.before)), *range(last, windows.length))
    structure = _structure(loaded, batches[0][:1])
    forms = CheapForms(windows.length, special, seed, pool, structure)
    errors = CheapErrors(forms, len(chosen), loaded.n_layers, loaded.n_heads)
    places = np.array_split(np.arange(len(chosen)), len(batches))
    mine = list(share(zip(places, batches, strict=True)))
    original = _measured(loaded, mine, errors, progress)
    return EfficientResult(
        sequences=len(chosen),
        block=forms.block,
        random_blocks=min(RANDOM_BLOCKS, -(-windows.length // forms.block)),
        global_tokens=len(forms.special),
        controls=CONTROLS,
        points=tuple(_points(loaded, mine, errors, forms, original, progress)),
        heads=tuple(_heads(loaded, forms, errors)),
        draws=DRAWS,
        left_out=forms.left_out,
    )


def _structure(loaded: LoadedModel, ids: Tensor) -> Structure:
    """Look at what each layer's scores hold besides q k^T, on one sequence without padding."""
    found = Structure()

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        found.note(site.row, mask)
        return stream_attention(q, k, v, mask=mask, scale=scale)

    _last_states(loaded, [ids], attend)
    return found


def _measured(
    loaded: LoadedModel, batches: Mine, errors: CheapErrors, progress: Progress
) -> list[Tensor]:
    """Run the unmodified model; measure the forms on the way; return its last states."""
    states: list[Tensor] = []
    for i, (at, ids) in enumerate(batches, start=1):
        states += _last_states(loaded, [ids], _measuring(errors, int(at[0])))
        progress("cheap forms, head by head", i, len(batches))
    places = [at for at, _ in batches]
    found = {name: [getattr(errors, name)[at] for at in places] for name in ("error", "mass")}
    joined = joined_rows("errors of cheap forms", places, found, len(errors.error))
    errors.error, errors.mass = joined["error"], joined["mass"]
    return states


def _measuring(errors: CheapErrors, first: int) -> Mechanism:
    """Attention as it is, with every form measured beside it; the batch starts at ``first``."""

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        own = without_padding(mask)

        def visit(rows: slice, heads: slice, pattern: Tensor, z: Tensor) -> None:
            at = (rows, heads)
            sequences = slice(first + rows.start, first + rows.stop)
            kept = None if own is None else mask_of_chunk(own, rows, heads)
            parts = (q[at], k[at], v[at], pattern, z)
            errors.update(site.row, sequences, heads, *parts, scale, kept)

        return stream_attention(q, k, v, mask=mask, scale=scale, visit=visit)

    return attend


def _last_states(loaded: LoadedModel, batches: list[Tensor], mechanism: Mechanism) -> list[Tensor]:
    """Return the last hidden state of each batch, (batch, pos, d_model)."""
    padded = ((ids, torch.ones_like(ids)) for ids in batches)
    return last_states(loaded, padded, mechanism, lambda hidden, _: hidden.cpu())


def _points(
    loaded: LoadedModel,
    batches: Mine,
    errors: CheapErrors,
    forms: CheapForms,
    original: list[Tensor],
    progress: Progress,
) -> Iterator[CheapPoint]:
    """Put every head into one form after the other, with each of its draws."""
    error, mass = crossed_mean(errors.over_heads("error")), errors.over_heads("mass")
    for i, (form, size) in enumerate(forms.points):
        draws = forms.draws(form)
        pooled: list[Array] = []
        tokens: list[Array] = []
        for draw in range(draws):
            attend = _replaced(forms, form, size, draw)
            changed = _last_states(loaded, [ids for _, ids in batches], attend)
            both = _fidelity(loaded.pooling, original, changed)
            places = [at for at, _ in batches]
            joined = joined_rows(f"fidelity of {form}", places, both, len(errors.error))
            pooled.append(joined["pooled"])
            tokens.append(joined["tokens"])
        fidelity = crossed_mean(np.stack(pooled, axis=1))
        yield CheapPoint(
            form=form,
            size=size,
            cost=forms.cost(form, size),
            error=float(error.mean[i]),
            mass=finite(mass[..., i].mean()),
            fidelity=_mean_sem(fidelity),
            token_fidelity=_mean_sem(crossed_mean(np.stack(tokens, axis=1))),
            error_half_width=finite(error.half_width[i]),
            fidelity_half_width=finite(float(fidelity.half_width)),
            draws=draws,
            error_draw_std=finite(error.draw_std[i]) if draws > 1 else None,
            fidelity_draw_std=finite(float(fidelity.draw_std)) if draws > 1 else None,
        )
        progress("cheap forms, all heads", i + 1, len(forms.points))


def _fidelity(
    pooling: Pooling, original: list[Tensor], changed: list[Tensor]
) -> dict[str, list[Array]]:
    """Cosines of each sequence's embedding, and the mean cosine of its tokens' states."""
    found: dict[str, list[Array]] = {name: [] for name in ("pooled", "tokens") if original}
    for ours, theirs in zip(changed, original, strict=True):
        real = torch.ones(ours.shape[:2], device=ours.device)
        pooled = cosine(pooling.embed(ours, real), pooling.embed(theirs, real))
        for name, values in (("pooled", pooled), ("tokens", cosine(ours, theirs).mean(-1))):
            # Rounding leaves some cosines of equal states a little above 1.
            found[name].append(numpy(values.double().clamp(-1.0, 1.0)))
    return found


def _heads(loaded: LoadedModel, forms: CheapForms, errors: CheapErrors) -> Iterator[CheapHead]:
    found, mass = crossed_mean(errors.error), errors.mass.mean(axis=(0, 1))
    for site in loaded.sites:
        for row, head in enumerate(site.head_ids):
            for i, (form, size) in enumerate(forms.points):
                place = (site.row, row, i)
                yield CheapHead(
                    layer=site.layer,
                    head=head,
                    form=form,
                    size=size,
                    error=MeanSem(float(found.mean[place]), finite(found.sem[place])),
                    mass=finite(mass[place]),
                    half_width=finite(found.half_width[place]),
                )


def _mean_sem(found: CrossedMean) -> MeanSem:
    return MeanSem(float(found.mean), finite(float(found.sem)))


def _replaced(forms: CheapForms, form: str, size: int, draw: int) -> Mechanism:
    """Every head in one cheap form; windows have no padding, so no mask stands for any."""
    return lambda site, q, k, v, mask, scale: forms.attend(
        form, size, site.row, q, k, v, scale, draw, without_padding(mask)
    )
