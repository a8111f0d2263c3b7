"""Whole runs compared: how far ours is from the model's own, and these are from each other.

Each layer carries the rounding of those before it on, and in a model with large states that grows
beyond any fixed bound: of a Llama of 135 million parameters, eager and SDPA run differ by 4e-4 in a
layer. So how much two correct runs differ is measured, on the model's own: its eager run against
its SDPA run, and against another eager run, with more padding and with the terms of every product
summed in another order. A mixture of experts chooses in all of them as it did in the eager run,
since of two experts that are about equal rounding picks one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headscope.core.widest import wide
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.expert_choices import ExpertChoices
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.models.run.products import fast_products
from headscope.models.run.recording import Recording, run_eager, run_sdpa

#: Columns of padding that the second eager run has more than the first, where there is room.
_MORE_PADDING = 7
#: States with larger entries (MobileBERT's reach 10^7) are compared relative to their size.
_LARGE = 10.0


class OwnRuns(NamedTuple):
    """The model's own runs of one probe."""

    eager: Recording
    #: With transformers' SDPA, which shows no pattern; None where the family has none.
    sdpa: Recording | None
    #: Eager, with products in another order, and with more padding, which is cut off again; with
    #: the same padding where more of it changes the states by more than rounding does.
    varied: Recording
    experts: ExpertChoices  # Those of the eager run, which the others repeat


def run_own(loaded: LoadedModel, probe: Probe, sites: Sequence[AttentionSite]) -> OwnRuns:
    """Run the model on a probe in its own ways; keep what ``sites`` show."""
    experts = ExpertChoices(loaded.model)
    batch = len(probe.input_ids)
    with experts.kept():
        eager = run_eager(loaded, probe, sites)
    with experts.repeated(batch), fast_products(loaded.model):
        varied = run_eager(loaded, _with_more_padding(loaded, probe), sites, heads=False)
        _cut_padding(varied, probe)
        if reads_padding(eager, varied, probe):  # only the order of the products tells rounding
            varied = run_eager(loaded, probe, sites, heads=False)
    for name in ("inputs", "q", "k", "v", "z"):  # nothing is compared with these
        varied.seen.pop(name, None)
    with experts.repeated(batch):
        sdpa = run_sdpa(loaded, probe, sites)
    return OwnRuns(eager=eager, sdpa=sdpa, varied=varied, experts=experts)


def reads_padding(eager: Recording, varied: Recording, probe: Probe) -> bool:
    """Whether more padding changes a layer or the last states by more than rounding does.

    As of ConvBERT, whose convolution reads the padding behind a text.
    """
    gaps = [largest_gap(eager.hidden, varied.hidden, probe.real)]
    for site in eager.sites:
        real = probe.real_queries(site.stack)
        gaps.append(largest_gap(eager.site(site).out, varied.site(site).out, real))
    assert eager.hidden is not None
    most_noise = _most_noise(torch.finfo(eager.hidden.dtype).eps)
    return any(gap is not None and gap > most_noise for gap in gaps)


def _most_noise(epsilon: float) -> float:
    """Return what rounding is taken to move at most: the root of the dtype's epsilon.

    Of float64 it is that of float32, in which many families norm whatever the model's dtype is.
    """
    return math.sqrt(max(epsilon, torch.finfo(torch.float32).eps))


def _with_more_padding(loaded: LoadedModel, probe: Probe) -> Probe:
    """Pad a probe on the right, as far as the model has room for that."""
    room = loaded.max_length - probe.input_ids.shape[1]
    width = (0, min(_MORE_PADDING, room))
    return replace(
        probe,
        input_ids=pad(probe.input_ids, width, value=loaded.pad_id),
        attention_mask=pad(probe.attention_mask, width),
    )


def _cut_padding(run: Recording, probe: Probe) -> None:
    """Cut what was padded further to the positions of the probe."""
    if probe.decoder_input_ids is None:
        assert run.hidden is not None
        run.hidden = run.hidden[:, : probe.input_ids.shape[1]]
    for site in run.sites:
        n_q = probe.real_queries(site.stack).shape[1]
        n_k = probe.real_keys(site.stack).shape[1]
        pattern = run.seen["pattern"].get(site.row)
        if pattern is not None:
            run.keep("pattern", site, pattern[..., :n_q, :n_k])
        out = run.seen["out"].get(site.row)
        if out is not None:
            run.keep("out", site, out[:, :n_q])


@dataclass(frozen=True)
class RunGaps:
    """How far runs differ in one quantity: the largest difference of an entry.

    None where there is no such run, or nothing to compare in it.
    """

    ours_from_eager: float | None = None
    ours_from_sdpa: float | None = None
    eager_from_sdpa: float | None = None
    eager_from_varied: float | None = None

    @classmethod
    def of(
        cls,
        ours: Tensor | None,
        eager: Tensor | None,
        sdpa: Tensor | None,
        varied: Tensor | None,
        real: Tensor,
    ) -> RunGaps:
        """Compare tensors (batch, pos, ...) where ``real`` (batch, pos) is true."""
        return cls(
            ours_from_eager=largest_gap(ours, eager, real),
            ours_from_sdpa=largest_gap(ours, sdpa, real),
            eager_from_sdpa=largest_gap(eager, sdpa, real),
            eager_from_varied=largest_gap(eager, varied, real),
        )

    @classmethod
    def worst(cls, gaps: Sequence[RunGaps]) -> RunGaps:
        """Return the largest of each over some probes; None where any is missing."""
        by_name = {
            field.name: [getattr(probe_gaps, field.name) for probe_gaps in gaps]
            for field in fields(cls)
        }
        return cls(**{name: worst(by_probe) for name, by_probe in by_name.items()})

    def noise(self, *, with_sdpa: bool) -> float:
        """Return how far the model's own runs differ by rounding.

        ``with_sdpa`` says that the SDPA run computes the same as the eager one, layer by layer, so
        that whatever they differ by is rounding.
        """
        gaps = [self.eager_from_varied]
        if with_sdpa:
            gaps.append(self.eager_from_sdpa)
        return max((gap for gap in gaps if gap is not None), default=0.0)

    def ours(self, *, with_sdpa: bool) -> float | None:
        """Return how far our run is from the model's own, or from the farther of two."""
        if not with_sdpa:
            return self.ours_from_eager
        return worst([self.ours_from_eager, self.ours_from_sdpa])


NOT_COMPARED = RunGaps()


def largest_gap(a: Tensor | None, b: Tensor | None, real: Tensor) -> float | None:
    """Return the largest |a - b|; None if they are not comparable.

    a and b are (batch, pos, ...), and ``real`` (batch, pos) marks the positions to compare. Where b
    has entries beyond 10, differences are divided by a tenth of its largest: 0.5 at an entry of 40
    counts as 0.125.
    """
    if a is None or b is None or a.shape != b.shape:
        return None
    if a.numel() == 0:  # a layer that has lost all its heads has no pattern to differ in
        return 0.0
    reference = wide(b.detach())
    difference = wide(a.detach()) - reference
    size = max(1.0, _largest_entry(reference, real) / _LARGE)
    return finite(_largest_entry(difference, real) / size)


def _largest_entry(values: Tensor, real: Tensor) -> float:
    """Return the largest size of an entry of (batch, pos, ...) at positions that are ``real``."""
    other_axes = tuple(range(2, values.dim()))
    by_position = values.abs().amax(other_axes)
    return float(by_position[real].max())


def worst(gaps: Sequence[float | None]) -> float | None:
    """Return the largest gap; None if any is missing, or there is none."""
    present = [gap for gap in gaps if gap is not None]
    if len(present) < len(gaps):
        return None
    return max(present, default=None)


def finite(gap: float) -> float | None:
    """Return a gap; None if it is NaN or infinite, and so proves nothing."""
    return gap if math.isfinite(gap) else None
