"""Measuring cheap stand-ins for full attention: head by head, and with all heads replaced.

``forms.py`` says what the stand-ins, or *forms*, are. A *point* is one form at one size, such as
("window", 16); arrays by point have an entry for each. With P the pattern of a head and z = P v its
output, the *error* of a form is how far its output is from z, and the *mass* the share of P on the
keys that it keeps.

``attend`` functions here stand in for the attention of every layer while a model runs: they are
called with the layer (an :class:`AttentionSite`), q, k, v, the mask and the scale, and return z.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.spectrum.forms import CONTROLS, DRAWS, CheapForms, without_padding
from headscope.analyses.spectrum.matrix_pool import MatrixPool
from headscope.analyses.spectrum.result import CheapHead, CheapPoint, EfficientResult
from headscope.attention import Mask, mask_of_chunk, stream_attention
from headscope.core.accumulator import Array
from headscope.core.processes import gathered_rows, share
from headscope.core.progress import Progress
from headscope.data.packing import Windows
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.formulas import in_chunks
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Mechanism
from headscope.session.pooled_states import PooledStates
from headscope.stats.statistics import crossed_mean, finite

#: Tokens that the cheap forms are measured on: 16 sequences of 128 or less, 4 of 512 or more.
TOKENS = 2048
_BATCH = 4  # Sequences of one batch


@dataclass(frozen=True)
class _Sequences:
    """The sequences that forms are measured on: those of this process, in batches.

    Where several processes share the work, each has some of the batches.
    """

    count: int  # Sequences of all processes
    rows: Sequence[Array]  # Numbers of the sequences in each batch of this process: [0 1 2 3], ...
    batches: Sequence[tuple[Tensor, Tensor]]  # Token ids and mask of each, (sequences, n)

    def joined(self, name: str, values: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
        """Put the values of all processes together: arrays (count, ...), by sequence.

        ``values`` are those of this process, an array for each of its batches, by the name of what
        was measured; ``name`` says in errors what is exchanged.
        """
        if not self.batches:
            values = {}  # a process that has no batch adds nothing
        return gathered_rows(name, self.rows, values, self.count)


def measure_efficient(
    loaded: LoadedModel, windows: Windows, pool: MatrixPool, seed: int, progress: Progress
) -> EfficientResult:
    """Measure every cheap form at every size, per head and end to end, on some of the windows."""
    # Choose the sequences, in batches.
    chosen = windows.spread(min(16, max(4, TOKENS // windows.length)))
    n_batches = math.ceil(len(chosen) / _BATCH)
    all_rows = np.array_split(np.arange(len(chosen)), n_batches)
    all_ids: list[Tensor] = []
    for rows in all_rows:
        ids = torch.from_numpy(windows.batch(chosen[rows]))
        all_ids.append(ids.to(loaded.device))

    # Prepare the forms that this model's masks allow.
    content = windows.content("encoder")
    special = (*range(content.start), *range(content.stop, windows.length))
    masks = _masks_of(loaded, all_ids[0][:1])
    softcaps = {site.row: site.softcap for site in loaded.sites}
    forms = CheapForms(windows.length, special, seed, pool, masks, softcaps)

    # Take this process's share of the batches.
    batches = list(share(zip(all_rows, all_ids, strict=True)))
    sequences = _Sequences(
        count=len(chosen),
        rows=[rows for rows, _ in batches],
        batches=[(ids, torch.ones_like(ids)) for _, ids in batches],
    )

    # Each head alone, on the way through the unmodified model; then all heads in one form.
    error, mass = _measure_heads(loaded, forms, sequences, progress)
    points = _measure_model(loaded, forms, sequences, error, mass, progress)
    return EfficientResult(
        sequences=len(chosen),
        controls=CONTROLS,
        points=points,
        heads=_cheap_heads(loaded, forms, error, mass),
        draws=DRAWS,
        left_out=forms.left_out,
    )


def _masks_of(loaded: LoadedModel, tokens: Tensor) -> dict[int, Mask]:
    """Return the mask of every layer for a sequence without padding, by the layer's ``row``.

    The row is the layer's place among all measured layers.
    """
    masks: dict[int, Mask] = {}

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        """Attend as the model does, and note the mask."""
        masks[site.row] = without_padding(mask)
        return in_chunks(site, q, k, v, mask, scale)

    with intervene(loaded, attention=attend) as router:
        router.checked(loaded.forward, tokens, torch.ones_like(tokens))
    return masks


class _HeadErrors:
    """Compares every form with every head, while the model attends as it does anyway.

    ``error`` and ``mass`` are (sequences, DRAWS, layers, heads, points); NaN where a layer has
    fewer heads, and in the sequences of other processes.
    """

    def __init__(self, loaded: LoadedModel, forms: CheapForms, n_sequences: int) -> None:
        shape = (n_sequences, DRAWS, loaded.n_layers, loaded.n_heads, len(forms.points))
        self.error: Array = np.full(shape, np.nan)
        self.mass: Array = np.full(shape, np.nan)
        self.first_sequence = 0  # Number of the first sequence in the batch; set before each
        self._forms = forms

    def attend(
        self, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        """Attend as the model does, and note the errors of every chunk."""
        mask_without_padding = without_padding(mask)

        def note_errors(rows: slice, heads: slice, pattern: Tensor, z: Tensor) -> None:
            """Note the errors of some sequences of the batch, and of some heads."""
            chunk_mask = None
            if mask_without_padding is not None:
                chunk_mask = mask_of_chunk(mask_without_padding, rows, heads)
            chunk_error, chunk_mass = self._forms.errors(
                layer=site.row,
                q=q[rows, heads],
                k=k[rows, heads],
                v=v[rows, heads],
                pattern=pattern,
                z=z,
                scale=scale,
                mask=chunk_mask,
            )
            sequences = slice(self.first_sequence + rows.start, self.first_sequence + rows.stop)
            self.error[sequences, :, site.row, heads] = chunk_error
            self.mass[sequences, :, site.row, heads] = chunk_mass

        return stream_attention(
            q, k, v, mask=mask, scale=scale, softcap=site.softcap, visit=note_errors
        )


def _measure_heads(
    loaded: LoadedModel, forms: CheapForms, sequences: _Sequences, progress: Progress
) -> tuple[Array, Array]:
    """Return the error of every form head by head, and the mass of the keys that it keeps.

    Each (sequences, DRAWS, layers, heads, points), NaN where nothing was measured.
    """
    head_errors = _HeadErrors(loaded, forms, sequences.count)
    batches = zip(sequences.rows, sequences.batches, strict=True)
    with intervene(loaded, attention=head_errors.attend) as router:
        for i, (rows, batch) in enumerate(batches, start=1):
            head_errors.first_sequence = int(rows[0])
            router.checked(loaded.forward, *batch)
            progress("cheap forms, head by head", i, len(sequences.batches))
    values = {
        "error": [head_errors.error[rows] for rows in sequences.rows],
        "mass": [head_errors.mass[rows] for rows in sequences.rows],
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
    """Replace all heads by one form, at every size; also return the means of heads alone.

    ``error`` and ``mass`` are those of heads alone, (sequences, DRAWS, layers, heads, points).
    """

    def attention_in_form(form: str, size: int, draw: int) -> Mechanism:
        """Make an attention of one form at one size, for all layers."""

        def attend(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            return forms.attend(
                form,
                size,
                layer=site.row,
                q=q,
                k=k,
                v=v,
                scale=scale,
                draw=draw,
                mask=without_padding(mask),
            )

        return attend

    states = PooledStates(loaded, sequences.batches)
    is_head = ~np.isnan(error[0, 0, :, :, 0])  # (layers, heads): layers may have fewer heads
    # The mean over heads, (sequences, DRAWS, points); then over sequences and draws, by point.
    mean_error = crossed_mean(error[:, :, is_head].mean(axis=2))
    mean_mass = mass[:, :, is_head].mean(axis=2)
    points = []
    for point, (form, size) in enumerate(forms.points):
        cosines_by_draw = []  # of each sequence's embedding
        for draw in range(forms.draws(form)):
            cosines = states.cosines(attention_in_form(form, size, draw))
            joined = sequences.joined(f"fidelity of {form}", {"cosine": cosines})
            cosines_by_draw.append(joined["cosine"])
        fidelity = crossed_mean(np.stack(cosines_by_draw, axis=1))  # of (sequences, draws)
        points.append(
            CheapPoint(
                form=form,
                size=size,
                cost=forms.cost(form, size),
                error=mean_error.estimate(point),
                mass=finite(mean_mass[..., point].mean()),
                fidelity=fidelity.estimate(),
            )
        )
        progress("cheap forms, all heads", point + 1, len(forms.points))
    return tuple(points)


def _cheap_heads(
    loaded: LoadedModel, forms: CheapForms, error: Array, mass: Array
) -> tuple[CheapHead, ...]:
    """Return the mean error and mass of every head, form and size.

    ``head_ids`` are the heads' original numbers, [0, 2, 3] where head 1 was removed; arrays are by
    their index, 0, 1, 2.
    """
    mean_error = crossed_mean(error)
    mean_mass = mass.mean(axis=(0, 1))
    heads = []
    for site in loaded.sites:
        for index, head in enumerate(site.head_ids):
            for point, (form, size) in enumerate(forms.points):
                heads.append(
                    CheapHead(
                        site.layer,
                        head,
                        form=form,
                        size=size,
                        error=mean_error.estimate(site.row, index, point),
                        mass=finite(mean_mass[site.row, index, point]),
                    )
                )
    return tuple(heads)
