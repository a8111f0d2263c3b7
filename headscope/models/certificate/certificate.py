"""The certificate: our attention equals the model's, layer by layer, padded and not.

Two things of ours are compared with the model's own runs:

* the *canonical* weights W_Q, b_Q, ..., W_O, b_O that the layout reads out of the checkpoint. On
  the very inputs that the model's eager run hands to a layer, the textbook form must give its
  pattern and output, up to some roundings (``canonical``). Nothing accumulates there.
* the *installed* attention, which measures everything else: its patterns, each layer's output and
  the last hidden state, against the model's eager run and its SDPA run. Here the rounding of all
  layers adds up, and the model's own runs say how much that is (``whole_runs``).

In half precision two correct programs differ by so much that a wrong scale hides in between. So
:mod:`headscope.models.certificate.agreement` also compares the patterns of all three programs (the
eager run, the installed attention, the canonical weights) with the one that recorded q and k give
in float32, and each recorded z with ``pattern v``.

A *probe* is one batch of texts that all of them run on, a *site* one layer's attention, and a
*recording* what the sites showed in one run: inputs, q, k, v, pattern, z and output. What they
prove of a site is its *evidence*.

Anything that is missing fails: a layer that never called us, a mask that never arrived, a number
that is not finite. A certificate is of the weights that it was made on: it is made again when they
have changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import torch

from headscope.core.errors import MaskedRowWarning
from headscope.core.memory import release_memory
from headscope.core.progress import say
from headscope.models.certificate.agreement import Scale, ScaleSums
from headscope.models.certificate.evidence import (
    PROGRAMS,
    Evidence,
    gather,
    layer_check,
    merge,
)
from headscope.models.certificate.validation import LayerCheck, ProbeSize, ValidationResult
from headscope.models.certificate.whole_runs import OwnRuns, RunGaps, run_own
from headscope.models.run.fingerprints import Fingerprint, fingerprint
from headscope.models.run.implementation import own_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe, probes
from headscope.models.run.products import full_precision
from headscope.models.run.recording import Recording, run_ours

#: What is allowed, by dtype.
#:
#: ``local``: mean differences on a layer's own inputs, in units of rounding.
#:
#: ``pattern`` entries, a layer's ``out``, the last ``hidden`` state: largest differences of whole
#: runs, unless the model's own runs differ so much that more is allowed.
#: float32: 1e-5 on patterns, 1e-4 on states. float64: the same number of digits below its epsilon.
#: Half precision: both runs round each product to the dtype's epsilon (bfloat16 2^-7, float16
#: 2^-10), so a pattern entry near 1 may be off by a few epsilons, and hidden states (entries up to
#: about 5) by a few dozen once six to twelve layers have added their roundings up. So in half
#: precision these three catch gross faults only, and the next two prove the mechanism.
#:
#: ``scale``: distance from 1 of the factors that fit the scores and z best, on top of five standard
#: errors. ``rounding``: mean differences in units of what rounding explains.
TOLERANCES = {
    "float64": {
        "local": 16.0,
        "pattern": 1e-12,
        "out": 1e-10,
        "hidden": 1e-10,
        "rounding": 16.0,
        "scale": 1e-6,
    },
    "float32": {
        "local": 16.0,
        "pattern": 1e-5,
        "out": 1e-4,
        "hidden": 1e-4,
        "rounding": 16.0,
        "scale": 1e-3,
    },
    "float16": {
        "local": 16.0,
        "pattern": 4e-2,
        "out": 1.6e-1,
        "hidden": 8e-2,
        "rounding": 3.0,
        "scale": 1e-3,
    },
    "bfloat16": {
        "local": 16.0,
        "pattern": 2.5e-1,
        "out": 1.2,
        "hidden": 6e-1,
        "rounding": 3.0,
        "scale": 3e-3,
    },
}
#: Layers that runs keep what they show of at a time: six in float32, twelve in half precision
#: (layers times the bytes of a number), or as many as take half the memory of the weights.
_LAYERS_TIMES_BYTES = 24
_SHARE_OF_WEIGHTS = 0.5


@dataclass(frozen=True)
class _Certified:
    """A certificate and the state of the model that it was made on."""

    result: ValidationResult
    weights: Fingerprint
    score_scales: tuple[float | None, ...]

    def covers(self, loaded: LoadedModel) -> bool:
        """Whether the model is still what was validated."""
        if self.score_scales != _score_scales(loaded):
            return False
        return self.weights == fingerprint(loaded.network)


class _ProbeRuns(NamedTuple):
    """All runs on one probe, and what they prove."""

    probe: Probe
    own: OwnRuns  # The model's own
    ours: Recording  # Of the installed attention
    evidence: list[Evidence]  # By site


@full_precision()
def validate_model(loaded: LoadedModel) -> ValidationResult:
    """Compare our attention with the model's; the result says passed or why not.

    Cached on ``loaded``: further calls only check the weights, and validate again when these have
    changed. A model in training mode fails, whatever an earlier run showed.
    """
    training = training_reason(loaded)
    if training is not None:
        return _refused(loaded, training)
    if loaded.view_of is not None:  # a view: what was proven of the model holds for its parts
        return validate_model(loaded.view_of)
    earlier = loaded.certificate
    if isinstance(earlier, _Certified) and earlier.covers(loaded):
        return earlier.result
    say("checking attention against the model")
    result = _validate(loaded)
    release_memory()  # what every layer showed is as large as the model itself
    loaded.certificate = _Certified(result, fingerprint(loaded.network), _score_scales(loaded))
    return result


def training_reason(loaded: LoadedModel) -> str | None:
    """Say that a model cannot be measured because it is in training mode, if it is."""
    if any(module.training for module in loaded.network.modules()):
        return (
            "the model is in training mode, where dropout makes every run another one; "
            "call .eval() on it first"
        )
    return None


def _refused(loaded: LoadedModel, reason: str) -> ValidationResult:
    """Return the failed certificate of a model that was not run at all."""
    return ValidationResult(
        passed=False,
        layers=tuple(_never_called(site.stack, site.layer) for site in loaded.sites),
        max_abs_hidden_eager=None,
        max_abs_hidden_sdpa=None,
        tolerance=TOLERANCES[loaded.dtype],
        reasons=(reason,),
    )


def _never_called(stack: str, layer: int) -> LayerCheck:
    """Return what a certificate says of a layer in which our attention did not run."""
    return LayerCheck(stack=stack, layer=layer, calls=0, max_abs_pattern=None, max_abs_out=None)


def _score_scales(loaded: LoadedModel) -> tuple[float | None, ...]:
    """List what each site multiplies its scores by: an attribute, which no fingerprint sees."""
    return tuple(site.scale for site in loaded.sites)


def _validate(loaded: LoadedModel) -> ValidationResult:
    """Run every probe, and hold the numbers of all layers against their tolerances."""
    # Run.
    # A row without keys belongs to a padded query of a causal model; padded rows are not compared.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MaskedRowWarning)
        probe_runs = [_run_probe(loaded, probe) for probe in probes(loaded)]

    # What each site showed in all probes.
    by_site = zip(*(runs.evidence for runs in probe_runs), strict=True)
    evidence = [merge(site_evidence) for site_evidence in by_site]
    tolerance = TOLERANCES[loaded.dtype]
    # Where transformers' SDPA leaves out something that the eager attention does (a soft cap), only
    # the eager run is compared. A layout that was misread differs from both.
    from_sdpa = max((e.local_sdpa for e in evidence if e.local_sdpa is not None), default=0.0)
    sdpa_differs = from_sdpa if from_sdpa > tolerance["local"] else None
    has_sdpa = own_implementation(loaded.model) == "sdpa"
    with_sdpa = has_sdpa and sdpa_differs is None

    # Lines of the certificate.
    epsilon = torch.finfo(loaded.model.dtype).eps
    layers = tuple(
        layer_check(site, site_evidence, epsilon, with_sdpa=with_sdpa)
        for site, site_evidence in zip(loaded.sites, evidence, strict=True)
    )
    if not loaded.sites:  # nothing recognised: every layer of the config counts as never called
        n_layers = loaded.layers_stated()
        layers = tuple(_never_called("encoder", layer) for layer in range(n_layers))

    # The last hidden states.
    # Those of a model that bypassed us would agree with themselves and prove nothing.
    all_called = bool(layers) and all(check.calls for check in layers)
    hidden = RunGaps.worst([_hidden_gaps(runs, all_called) for runs in probe_runs])

    # The certificate, and the verdict.
    sizes = tuple(_size(runs.probe) for runs in probe_runs)
    padded = [runs.ours for runs in probe_runs if runs.probe.padded]
    result = ValidationResult(
        passed=False,
        layers=layers,
        max_abs_hidden_eager=hidden.ours_from_eager,
        max_abs_hidden_sdpa=None if sdpa_differs is not None else hidden.ours_from_sdpa,
        noise_hidden=hidden.noise(epsilon, with_sdpa=with_sdpa),
        sdpa_differs=sdpa_differs,
        tolerance=dict(tolerance),
        sequences=sum(size.sequences for size in sizes),
        tokens=sum(size.tokens for size in sizes),
        padded=sum(size.padded for size in sizes),
        mask_reached=all(ours.masks_seen == len(loaded.sites) > 0 for ours in padded),
        probes=sizes,
    )
    reasons = _reasons(loaded, probe_runs, evidence, result, with_sdpa=with_sdpa)
    return result.concluded(reasons)


def _hidden_gaps(runs: _ProbeRuns, all_called: bool) -> RunGaps:
    """Compare the last hidden states of all runs on one probe."""
    own = runs.own
    return RunGaps.of(
        ours=runs.ours.hidden if all_called else None,
        eager=own.eager.hidden,
        sdpa=None if own.sdpa is None else own.sdpa.hidden,
        varied=own.varied.hidden,
        real=runs.probe.real,
    )


def _run_probe(loaded: LoadedModel, probe: Probe) -> _ProbeRuns:
    """Run one probe in all ways, some layers at a time, and compare what they show."""
    evidence: list[Evidence] = []
    at_once = _layers_at_once(loaded, probe)
    n_sites = max(1, len(loaded.sites))  # without a site too, the hidden states are compared
    for start in range(0, n_sites, at_once):
        sites = loaded.sites[start : start + at_once]
        own = run_own(loaded, probe, sites)
        ours = run_ours(loaded, probe, sites)
        for site in sites:
            calls = ours.calls.get((site.stack, site.layer), 0)
            evidence.append(gather(loaded, site, calls, own, ours, probe))
        for run in (*own, ours):
            if run is not None:
                run.seen.clear()
    return _ProbeRuns(probe, own, ours, evidence)


def _layers_at_once(loaded: LoadedModel, probe: Probe) -> int:
    """Return how many layers' patterns, states and outputs are kept at a time."""
    bytes_of_a_number: int = loaded.model.dtype.itemsize
    at_least = max(1, _LAYERS_TIMES_BYTES // bytes_of_a_number)
    if not loaded.sites:
        return at_least
    batch, length = probe.input_ids.shape
    n_heads = max(site.n_heads for site in loaded.sites)
    d_model = loaded.sites[0].projections.q.in_features
    patterns = 4 * batch * n_heads * length * length  # of four runs
    states = 12 * batch * length * d_model  # inputs, q, k, v, z and outputs
    weights = sum(parameter.numel() for parameter in loaded.network.parameters())
    return max(at_least, int(_SHARE_OF_WEIGHTS * weights / (patterns + states)))


def _size(probe: Probe) -> ProbeSize:
    """Count sequences, positions, real tokens and padding of a probe."""
    sequences, length = probe.input_ids.shape
    return ProbeSize(
        name=probe.name,
        sequences=sequences,
        length=length,
        tokens=int(probe.real.sum()),
        padded=probe.padded,
    )


def _reasons(
    loaded: LoadedModel,
    probe_runs: Sequence[_ProbeRuns],
    evidence: Sequence[Evidence],
    result: ValidationResult,
    *,
    with_sdpa: bool,
) -> list[str]:
    """Say everything that is off, most telling first.

    ``with_sdpa``: whether the model's SDPA run has to be equal too.
    """
    if not loaded.sites:
        return [f"headscope knows no attention layout of the family {loaded.family!r}"]
    reasons = _routing_reasons(loaded, probe_runs, result)
    if reasons:
        return reasons
    if not result.mask_reached:
        reasons.append("the padding mask did not reach our attention in every layer")
    limit = result.tolerance["scale"]
    reasons += _over_tolerance(result, with_sdpa=with_sdpa)
    reasons += _wrong_scales(loaded, evidence, limit)
    return reasons


def _routing_reasons(
    loaded: LoadedModel, probe_runs: Sequence[_ProbeRuns], result: ValidationResult
) -> list[str]:
    """Say which layers did not call us exactly once."""
    failures = [runs.ours.failure for runs in probe_runs if runs.ours.failure is not None]
    reasons = list(dict.fromkeys(failures))  # each once
    never = [check for check in result.layers if check.calls == 0]
    if never and not failures:
        reasons.append(
            f"{loaded.family} accepts a custom attention and never calls it: "
            f"{len(never)} of {len(result.layers)} layers bypassed ours"
        )
    reasons += [
        f"{check.stack} layer {check.layer} ran our attention {check.calls} times, not once"
        for check in result.layers
        if check.calls > 1
    ]
    expected = loaded.layers_stated()
    if len(loaded.sites) > expected:
        reasons.append(f"attention ran {len(loaded.sites)} times in {expected} layers")
    if len(loaded.sites) < expected:
        reasons.append(f"attention was found in {len(loaded.sites)} of {expected} layers only")
    return reasons


def _over_tolerance(result: ValidationResult, *, with_sdpa: bool) -> list[str]:
    """Say which numbers are too large or missing."""
    # The name of each number, the number, and what is allowed.
    local = result.tolerance["local"]
    rounding = result.tolerance["rounding"]
    gaps: list[tuple[str, float | None, float]] = []
    for check in result.layers:
        layer = f"{check.stack} layer {check.layer}"
        pattern = result.allowed("pattern", check.noise_pattern)
        out = result.allowed("out", check.noise_out)
        gaps += [
            (
                f"{layer}: pattern on the model's own inputs, in roundings",
                check.local_pattern,
                local,
            ),
            (f"{layer}: out on the model's own inputs, in roundings", check.local_out, local),
            (f"{layer}: max |pattern - model's|", check.max_abs_pattern, pattern),
            (f"{layer}: max |out - model's|", check.max_abs_out, out),
            (f"{layer}: mean |pattern - exact| / rounding", check.rounding_pattern, rounding),
            (f"{layer}: mean |out - exact| / rounding", check.rounding_out, rounding),
            (f"{layer}: mean |z - pattern v| / rounding", check.rounding_z, rounding),
        ]
    hidden = result.allowed("hidden", result.noise_hidden)
    gaps.append(("max |hidden - eager|", result.max_abs_hidden_eager, hidden))
    if with_sdpa:
        gaps.append(("max |hidden - SDPA|", result.max_abs_hidden_sdpa, hidden))
    reasons = []
    for name, gap, allowed in gaps:
        if gap is None:
            reasons.append(f"{name} is not comparable, tolerance {allowed:.1e}")
        elif not gap <= allowed:
            reasons.append(f"{name} is {gap:.1e}, tolerance {allowed:.1e}")
    return reasons


def _wrong_scales(loaded: LoadedModel, evidence: Sequence[Evidence], limit: float) -> Iterator[str]:
    """Say where scores or z are off by a factor: in a layer, else in a head, else in all."""
    sums_by_sentence = {
        "the pattern of {} fits {} times the scores q k^T * scale": [e.scales for e in evidence],
        "the z of {} fits {} times pattern v": [e.z_scales for e in evidence],
    }
    for sentence, by_site in sums_by_sentence.items():
        wrong = _wrong_in_a_layer(loaded, by_site, limit)
        if not wrong:
            wrong = _wrong_in_all(by_site, limit)
        for where, program, fit in wrong:
            factor = f"{fit.value:.4f} (standard error {fit.error:.1e})"
            yield f"{where}: {sentence.format(program, factor)}, tolerance 1 +- {limit:.1e}"


def _wrong_in_a_layer(
    loaded: LoadedModel, by_site: Sequence[tuple[ScaleSums, ...]], limit: float
) -> list[tuple[str, str, Scale]]:
    """List (layer or head, program, factor) of each layer and program with a wrong factor.

    ``by_site`` has the sums of each program, or none where a site had nothing to compare.
    """
    wrong = []
    for site, by_program in zip(loaded.sites, by_site, strict=True):
        if not by_program:
            continue
        layer = f"{site.stack} layer {site.layer}"
        for program, sums in zip(PROGRAMS, by_program, strict=True):
            fits = {layer: sums.pooled()}
            for index, head in enumerate(site.head_ids):
                fits[f"{layer} head {head}"] = sums.of_head(index)
            for where, fit in fits.items():
                if fit is not None and fit.beyond(limit):
                    wrong.append((where, program, fit))
                    break  # the layer's, or that of its first head, is enough
    return wrong


def _wrong_in_all(
    by_site: Sequence[tuple[ScaleSums, ...]], limit: float
) -> list[tuple[str, str, Scale]]:
    """List each program whose factor is wrong by what all layers show together."""
    wrong = []
    compared = [by_program for by_program in by_site if by_program]
    for index, program in enumerate(PROGRAMS):
        layers = [by_program[index].joined() for by_program in compared]
        fit = reduce(add, layers).pooled() if layers else None
        if fit is not None and fit.beyond(limit):
            wrong.append(("all layers together", program, fit))
    return wrong
