"""Measuring cheap stand-ins for full attention: head by head, and with all heads replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.spectrum.forms import CONTROLS, DRAWS, CheapForms
from headscope.analyses.spectrum.measure import MatrixPool, without_padding
from headscope.analyses.spectrum.result import CheapHead, CheapPoint, EfficientResult
from headscope.attention import Mask, mask_of_chunk, stream_attention
from headscope.core.accumulator import Array
from headscope.core.processes import gathered_rows, share
from headscope.core.progress import Progress
from headscope.data.packing import Windows
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Mechanism
from headscope.session.exchanged_heads import PooledStates
from headscope.stats.statistics import crossed_mean, finite

#: Tokens that the cheap forms are measured on: 16 sequences of 128 or less, 4 of 512 or more.
TOKENS = 2048
_AT_ONCE = 4  # Sequences of one pass.


@dataclass(frozen=True)
class _Sequences:
    """The sequences that forms are measured on, in batches of this process."""

    count: int  # Of all processes
    rows: Sequence[Array]  # Which of them each batch of this process holds
    batches: Sequence[tuple[Tensor, Tensor]]  # Tokens and mask

    def joined(self, name: str, values: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
        """Put the rows of all processes together; ``values`` are by batch of this one."""
        return gathered_rows(name, self.rows, values if self.batches else {}, self.count)


def measure_efficient(
    loaded: LoadedModel, windows: Windows, pool: MatrixPool, seed: int, progress: Progress
) -> EfficientResult:
    """Measure every cheap form at every size, per head and end to end, on some of the windows."""
    # The sequences, and the forms that this model's masks allow.
    chosen = windows.spread(min(16, max(4, TOKENS // windows.length)))
    n_batches = -(-len(chosen) // _AT_ONCE)
    rows_of_batches = np.array_split(np.arange(len(chosen)), n_batches)
    ids = [
        torch.from_numpy(windows.batch(chosen[rows])).to(loaded.device) for rows in rows_of_batches
    ]
    content = windows.content("encoder")
    special = (*range(content.start), *range(content.stop, windows.length))
    masks = _masks_of(loaded, ids[0][:1])
    forms = CheapForms(windows.length, special, seed, pool, masks)
    shared = list(share(zip(rows_of_batches, ids, strict=True)))
    sequences = _Sequences(
        count=len(chosen),
        rows=[rows for rows, _ in shared],
        batches=[(tokens, torch.ones_like(tokens)) for _, tokens in shared],
    )

    # Each head alone, on the way through the unmodified model; then all heads in one form.
    error, mass = _measure_heads(loaded, forms, sequences, progress)
    points = _measure_model(loaded, forms, sequences, error, mass, progress)
    return EfficientResult(
        sequences=len(chosen),
        controls=CONTROLS,
        points=points,
        heads=_heads(loaded, forms, error, mass),
        draws=DRAWS,
        left_out=forms.left_out,
    )


def _masks_of(loaded: LoadedModel, tokens: Tensor) -> dict[int, Mask]:
    """Return the mask of every layer for a sequence without padding, by the layer's row."""
    masks: dict[int, Mask] = {}

    def note(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        masks[site.row] = without_padding(mask)
        return stream_attention(q, k, v, mask=mask, scale=scale)

    with intervene(loaded, attention=note) as router:
        router.checked(loaded.forward, tokens, torch.ones_like(tokens))
    return masks


def _measure_heads(
    loaded: LoadedModel, forms: CheapForms, sequences: _Sequences, progress: Progress
) -> tuple[Array, Array]:
    """Return the error of every form head by head, and the mass of the keys that it keeps.

    Each (sequences, DRAWS, layers, heads, points), NaN where nothing was measured.
    """
    shape = (sequences.count, DRAWS, loaded.n_layers, loaded.n_heads, len(forms.points))
    error: Array = np.full(shape, np.nan)
    mass: Array = np.full(shape, np.nan)

    def measuring(first_sequence: int) -> Mechanism:
        """Note the errors of a batch that begins with this sequence; attention stays as it is."""

        def attend(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            mask_without_padding = without_padding(mask)

            def visit(rows: slice, heads: slice, pattern: Tensor, z: Tensor) -> None:
                chunk_mask = None
                if mask_without_padding is not None:
                    chunk_mask = mask_of_chunk(mask_without_padding, rows, heads)
                chunk_error, chunk_mass = forms.errors(
                    site.row,
                    q[rows, heads],
                    k[rows, heads],
                    v[rows, heads],
                    pattern,
                    z,
                    scale,
                    chunk_mask,
                )
                in_batch = slice(first_sequence + rows.start, first_sequence + rows.stop)
                error[in_batch, :, site.row, heads] = chunk_error
                mass[in_batch, :, site.row, heads] = chunk_mass

            return stream_attention(q, k, v, mask=mask, scale=scale, visit=visit)

        return attend

    batches = zip(sequences.rows, sequences.batches, strict=True)
    for i, (rows, batch) in enumerate(batches, start=1):
        with intervene(loaded, attention=measuring(int(rows[0]))) as router:
            router.checked(loaded.forward, *batch)
        progress("cheap forms, head by head", i, len(sequences.batches))
    values = {
        "error": [error[rows] for rows in sequences.rows],
        "mass": [mass[rows] for rows in sequences.rows],
    }
    joined = sequences.joined("errors of cheap forms", values)
    return joined["error"], joined["mass"]


def _measure_model(
    loaded: LoadedModel,
    forms: CheapForms,
    sequences: _Sequences,
    error: Array,
    mass: Array,
    progress: Progress,
) -> tuple[CheapPoint, ...]:
    """Replace all heads by one form, at every size; also return the means of heads alone."""

    def in_form(form: str, size: int, draw: int) -> Mechanism:
        return lambda site, q, k, v, mask, scale: forms.attend(
            form, size, site.row, q, k, v, scale, draw, without_padding(mask)
        )

    states = PooledStates(loaded, sequences.batches)
    measured = ~np.isnan(error[0, 0, :, :, 0])  # (layers, heads): the heads there are
    mean_error = crossed_mean(error[:, :, measured].mean(axis=2))
    mean_mass = mass[:, :, measured].mean(axis=2)
    points = []
    for i, (form, size) in enumerate(forms.points):
        cosines_by_draw = []  # of each sequence's embedding
        for draw in range(forms.draws(form)):
            cosines = states.cosines(in_form(form, size, draw))
            joined = sequences.joined(f"fidelity of {form}", {"cosine": cosines})
            cosines_by_draw.append(joined["cosine"])
        fidelity = crossed_mean(np.stack(cosines_by_draw, axis=1))
        points.append(
            CheapPoint(
                form=form,
                size=size,
                cost=forms.cost(form, size),
                error=mean_error.estimate(i),
                mass=finite(mean_mass[..., i].mean()),
                fidelity=fidelity.estimate(),
            )
        )
        progress("cheap forms, all heads", i + 1, len(forms.points))
    return tuple(points)


def _heads(
    loaded: LoadedModel, forms: CheapForms, error: Array, mass: Array
) -> tuple[CheapHead, ...]:
    """Return the mean error and mass of every head, form and size."""
    mean_error = crossed_mean(error)
    mean_mass = mass.mean(axis=(0, 1))
    heads = []
    for site in loaded.sites:
        for index, head in enumerate(site.head_ids):
            for i, (form, size) in enumerate(forms.points):
                heads.append(
                    CheapHead(
                        site.layer,
                        head,
                        form=form,
                        size=size,
                        error=mean_error.estimate(site.row, index, i),
                        mass=finite(mean_mass[site.row, index, i]),
                    )
                )
    return tuple(heads)
