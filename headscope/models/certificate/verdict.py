"""What a certificate allows, and everything for which it is refused, in sentences.

A *site* is one layer's attention; its :class:`Evidence` is what the runs of the certificate showed
there of three programs: the model's own attention, the installed one and the canonical weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add

from headscope.models.certificate.agreement import Scale, ScaleSums
from headscope.models.certificate.evidence import PROGRAMS, Evidence
from headscope.models.certificate.validation import ValidationResult
from headscope.models.layouts.sites import attending_layers
from headscope.models.run.loaded import LoadedModel

#: What is allowed, by dtype.
#:
#: ``local``: mean differences on a layer's own inputs, in units of rounding. In half precision the
#: layer is run in float32 for that.
#:
#: ``rounding``: mean differences of a pattern, z or output from the exact one of its own recorded
#: q, k and v, in units of rounding. ``scale``: distance from 1 of the factors that fit the scores
#: and z best, on top of five standard errors. These three prove the mechanism in every dtype.
#:
#: ``pattern`` entries, a layer's ``out``, the last ``hidden`` state: largest differences of whole
#: runs, unless the model's own runs differ so much that more is allowed. float64 has as many digits
#: below its epsilon as float32. In half precision both runs round each product to the dtype's
#: epsilon (bfloat16 2^-7, float16 2^-10), so a pattern entry near 1 may be off by a few epsilons,
#: and hidden states (entries up to about 5) by a few dozen once six to twelve layers have added
#: their roundings up: there these bounds catch gross faults only.
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


def reasons_to_refuse(
    loaded: LoadedModel,
    result: ValidationResult,
    evidence: Sequence[Evidence],
    failures: Sequence[str],
    *,
    with_sdpa: bool,
) -> list[str]:
    """Say everything that is off, most telling first; nothing where the certificate passes.

    ``evidence`` is that of each site, ``failures`` are the errors that ended runs through our
    attention, and ``with_sdpa`` says whether the model's SDPA run has to be equal too.
    """
    if not loaded.sites:
        if attending_layers(loaded.model.config) == []:
            kinds = ", ".join(dict.fromkeys(loaded.model.config.layer_types))
            return [f"no layer of this {loaded.family} model has heads: all are of {kinds}"]
        return [f"headscope knows no attention layout of the family {loaded.family!r}"]
    reasons = _routing_reasons(loaded, result, failures)
    if reasons:
        return reasons
    if not result.mask_reached:
        reasons.append("the padding mask did not reach our attention in every layer")
    limit = result.tolerance["scale"]
    reasons += _over_tolerance(result, with_sdpa=with_sdpa)
    reasons += _wrong_scales(loaded, evidence, limit)
    return reasons


def _routing_reasons(
    loaded: LoadedModel, result: ValidationResult, failures: Sequence[str]
) -> list[str]:
    """Say which layers did not call us exactly once."""
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
    for where, program, fit in _wrong_factors(loaded, [e.scales for e in evidence], limit):
        yield (
            f"{where}: the pattern of {program} fits {_factor_words(fit)} times the scores "
            f"q k^T * scale, tolerance 1 +- {limit:.1e}"
        )
    for where, program, fit in _wrong_factors(loaded, [e.z_scales for e in evidence], limit):
        yield (
            f"{where}: the z of {program} fits {_factor_words(fit)} times pattern v, "
            f"tolerance 1 +- {limit:.1e}"
        )


def _factor_words(fit: Scale) -> str:
    return f"{fit.value:.4f} (standard error {fit.error:.1e})"


def _wrong_factors(
    loaded: LoadedModel, by_site: Sequence[tuple[ScaleSums, ...]], limit: float
) -> list[tuple[str, str, Scale]]:
    """List (layer or head, program, factor) of each layer with a wrong one, else of all together.

    ``by_site`` has the sums of each program, or none where a site had nothing to compare.
    """
    return _wrong_in_a_layer(loaded, by_site, limit) or _wrong_in_all(by_site, limit)


def _wrong_in_a_layer(
    loaded: LoadedModel, by_site: Sequence[tuple[ScaleSums, ...]], limit: float
) -> list[tuple[str, str, Scale]]:
    """List each layer and program with a wrong factor, of the layer or of one of its heads."""
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
