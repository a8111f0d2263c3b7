"""The certificate: our attention equals the model's, layer by layer, padded and not.

Two things of ours are compared with the model's own runs:

* the *canonical* weights W_Q, b_Q, ..., W_O, b_O that the layout reads out of the checkpoint. On
  the very inputs that the model's eager run hands to a layer, the textbook form must give its
  pattern and output, up to some roundings (``canonical``). Nothing accumulates there.
* the *installed* attention, which measures everything else: its patterns, each layer's output and
  the last hidden state, against the model's eager run and its SDPA run. Here the rounding of all
  layers adds up. How much that may be, its *noise*, the model's own runs show (``whole_runs``): an
  eager run, an SDPA run, and a *varied* run, eager with more padding and products in another order.
  A mixture of experts chooses in every run as in the eager one (``run/expert_choices``).

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headscope.core.errors import MaskedRowWarning
from headscope.core.memory import release_memory
from headscope.core.progress import say
from headscope.models.certificate.evidence import (
    Evidence,
    gather,
    layer_check,
    merge,
)
from headscope.models.certificate.validation import LayerCheck, ProbeSize, ValidationResult
from headscope.models.certificate.verdict import TOLERANCES, reasons_to_refuse
from headscope.models.certificate.whole_runs import OwnRuns, RunGaps, run_own
from headscope.models.run.fingerprints import Fingerprint, fingerprint
from headscope.models.run.implementation import own_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe, probes
from headscope.models.run.products import full_precision
from headscope.models.run.recording import Recording, run_ours

#: How many layers' patterns and states a run keeps at once: six in float32, twelve in half
#: precision (layers times the bytes of a number), or as many as take the memory of the weights.
_LAYERS_TIMES_BYTES = 24


@dataclass(frozen=True)
class _Certified:
    """A certificate and the state of the model that it was made on."""

    result: ValidationResult
    weights: Fingerprint
    score_scales: tuple[float | None, ...]  # As attributes, which a fingerprint does not cover

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
    """List what each site multiplies its scores by."""
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
    sdpa_differs = _sdpa_difference(evidence, tolerance["local"])
    has_sdpa = own_implementation(loaded.model) == "sdpa" and all(
        runs.own.sdpa is not None for runs in probe_runs
    )
    with_sdpa = has_sdpa and sdpa_differs is None

    # Lines of the certificate.
    layers = tuple(
        layer_check(site, site_evidence, with_sdpa=with_sdpa)
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
        noise_hidden=hidden.noise(with_sdpa=with_sdpa),
        sdpa_differs=sdpa_differs,
        expert_choices=sum(runs.own.experts.count for runs in probe_runs),
        expert_choices_otherwise=sum(runs.own.experts.otherwise for runs in probe_runs),
        tolerance=dict(tolerance),
        sequences=sum(size.sequences for size in sizes),
        tokens=sum(size.tokens for size in sizes),
        padded=sum(size.padded for size in sizes),
        mask_reached=all(ours.masks_seen == len(loaded.sites) > 0 for ours in padded),
        probes=sizes,
    )
    failures = [runs.ours.failure for runs in probe_runs if runs.ours.failure is not None]
    return result.concluded(
        reasons_to_refuse(loaded, result, evidence, failures, with_sdpa=with_sdpa)
    )


def _sdpa_difference(evidence: Sequence[Evidence], limit: float) -> float | None:
    """Return by how many roundings transformers' SDPA is off, on a layer's own inputs.

    None where that is at most ``limit``. Beyond it, SDPA leaves out something that the eager
    attention does, such as a soft cap, and only the eager run is compared.
    """
    gaps = [e.local_sdpa for e in evidence if e.local_sdpa is not None]
    largest = max(gaps, default=0.0)
    return largest if largest > limit else None


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
        with own.experts.repeated(len(probe.input_ids)):
            ours = run_ours(loaded, probe, sites)
        for site in sites:
            calls = ours.calls.get((site.stack, site.layer), 0)
            evidence.append(gather(loaded, site, calls, own, ours, probe))
        for run in (own.eager, own.sdpa, own.varied, ours):
            if run is not None:  # a family may have no SDPA
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
    d_model = loaded.model.get_input_embeddings().embedding_dim
    patterns = 4 * batch * n_heads * length * length  # of four runs
    states = 12 * batch * length * d_model  # inputs, q, k, v, z and outputs
    weights: int = sum(parameter.numel() for parameter in loaded.network.parameters())
    fitting: int = weights // (patterns + states)
    return max(at_least, fitting)


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
