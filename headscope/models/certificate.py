"""The certificate: on a padded batch, our attention equals the model's, layer by layer.

Two things of ours are compared with the model's own eager run:

* the *installed* attention, which measures everything else: its patterns, each layer's output and
  the last hidden state (the latter against transformers' SDPA run too);
* the *canonical* weights W_Q, b_Q, ..., W_O, b_O that the layout reads out of the checkpoint: put
  through :func:`headscope.attention.attention_fused` on the eager run's own layer inputs, they must
  give the eager run's pattern and output.

Anything that is missing fails: a layer that never called us, a mask that never arrived, a number
that is not finite.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headscope.attention import attention_fused, key_padding_mask
from headscope.errors import HeadscopeError, MaskedRowWarning
from headscope.measures.activations import Activations
from headscope.models.layouts import AttentionSite
from headscope.models.loading import LoadedModel
from headscope.models.routing import Router, routed, use_implementation
from headscope.results import LayerCheck, ValidationResult

__all__ = ["TOLERANCES", "probe_batch", "validate_model"]

#: Largest absolute differences allowed, by dtype: ``pattern`` entries, a layer's ``out``, the last
#: ``hidden`` state. float32: methods.md. float64: the same number of digits below its epsilon.
#: Half precision: both runs round each product to the dtype's epsilon (bfloat16 2^-8, float16
#: 2^-11), so a pattern entry near 1 may be off by a few epsilons, and hidden states (entries up to
#: about 5) by a few dozen once six to twelve layers have added their roundings up.
TOLERANCES = {
    "float64": {"pattern": 1e-12, "out": 1e-10, "hidden": 1e-10},
    "float32": {"pattern": 1e-5, "out": 1e-4, "hidden": 1e-4},
    "float16": {"pattern": 8e-3, "out": 2e-2, "hidden": 4e-2},
    "bfloat16": {"pattern": 6e-2, "out": 1.5e-1, "hidden": 3e-1},
}
_PROBE_TEXT = (
    "The old ferry left the harbour before dawn, and nobody on the quay could say who had "
    "untied it.",
    "She wrote it down.",
    "When the auditors asked for the ledgers of 1987, the clerk who kept the keys had retired.",
    "Why?",
)


@dataclass
class _EagerRun:
    """What the model's own eager run computed, per site."""

    inputs: list[Tensor] = field(default_factory=list)
    patterns: list[Tensor | None] = field(default_factory=list)
    outs: list[Tensor] = field(default_factory=list)
    hidden: Tensor | None = None


@dataclass
class _OurRun:
    """What the run through our attention computed."""

    patterns: dict[int, Tensor] = field(default_factory=dict)
    outs: list[Tensor] = field(default_factory=list)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    masks_seen: int = 0
    hidden: Tensor | None = None
    failure: str | None = None


def probe_batch(loaded: LoadedModel) -> tuple[Tensor, Tensor]:
    """Return a padded batch for the certificate: sentences, or random ids without a tokenizer.

    Returns
    -------
    input_ids, attention_mask : Tensor, (batch, pos)
    """
    if loaded.tokenizer is not None:
        encoded = loaded.tokenizer(
            list(_PROBE_TEXT), truncation=False, padding=False, verbose=False
        )["input_ids"]
        sequences = [ids[: loaded.max_length] for ids in encoded]
    else:
        generator = torch.Generator().manual_seed(0)
        low = min(5, loaded.vocab_size - 1)
        sequences = [
            torch.randint(low, loaded.vocab_size, (min(n, loaded.max_length),), generator=generator)
            .tolist()
            for n in (23, 7, 16, 3)
        ]  # fmt: skip
    highest = max(max(ids) for ids in sequences)
    if highest >= loaded.vocab_size:
        raise HeadscopeError(
            f"The tokenizer of {loaded.name} gives token id {highest}, but the model's embedding "
            f"has {loaded.vocab_size} rows; tokenizer and weights do not belong together."
        )
    return loaded.pad(sequences)


def validate_model(loaded: LoadedModel) -> ValidationResult:
    """Compare our attention with the model's; the result says passed or why not.

    Cached on ``loaded``: further calls in the same run cost nothing.

    Returns
    -------
    ValidationResult
        ``passed`` is False, with ``reasons``, when anything is off; nothing is raised.
    """
    if loaded.certificate is None:
        loaded.certificate = _validate(loaded)
    result: ValidationResult = loaded.certificate
    return result


def _validate(loaded: LoadedModel) -> ValidationResult:
    input_ids, attention_mask = probe_batch(loaded)
    tolerance = TOLERANCES[loaded.dtype]
    # A row without keys belongs to a padded query of a causal model; padded rows are not compared.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MaskedRowWarning)
        eager = _run_eager(loaded, input_ids, attention_mask)
        ours = _run_ours(loaded, input_ids, attention_mask)
        layers = _compare_layers(loaded, eager, ours, attention_mask.bool())
    sdpa = _run_sdpa(loaded, input_ids, attention_mask)
    real = attention_mask.bool()
    # Hidden states of a model that bypassed us would agree with themselves and prove nothing.
    hidden = ours.hidden if all(check.calls for check in layers) and layers else None
    result = ValidationResult(
        passed=False,
        layers=layers,
        max_abs_hidden_eager=_difference(hidden, eager.hidden, real),
        max_abs_hidden_sdpa=_difference(hidden, sdpa, real),
        tolerance=dict(tolerance),
        sequences=input_ids.shape[0],
        tokens=int(real.sum()),
        padded=int((~real).sum()),
        mask_reached=ours.masks_seen == len(loaded.sites) > 0,
    )
    reasons = _reasons(loaded, ours, result)
    return result.concluded(reasons)


def _run_eager(loaded: LoadedModel, input_ids: Tensor, attention_mask: Tensor) -> _EagerRun:
    run = _EagerRun()

    def keep_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run.inputs.append(args[0] if args else kwargs["hidden_states"])

    def keep_pattern(module: Any, args: Any, output: Any) -> None:
        second = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        run.patterns.append(second if isinstance(second, Tensor) else None)

    hooks: list[Any] = []
    for module in dict.fromkeys(site.module for site in loaded.sites):
        hooks.append(module.register_forward_pre_hook(keep_input, with_kwargs=True))
        hooks.append(module.register_forward_hook(keep_pattern))
    try:
        with (
            use_implementation(loaded.model, "eager"),
            torch.no_grad(),
            _recorded_outs(loaded.sites, run.outs),
        ):
            run.hidden = loaded.forward(input_ids, attention_mask)
    finally:
        for hook in hooks:
            hook.remove()
    return run


def _run_ours(loaded: LoadedModel, input_ids: Tensor, attention_mask: Tensor) -> _OurRun:
    run = _OurRun()
    kept: dict[tuple[int, int, int], Tensor] = {}

    class Keep:
        def observe(self, site: Activations) -> None:
            kept[site.layer, site.rows.start, site.heads.start] = site.pattern

        def finish(self, stack: str, layer: int) -> None:
            pass

    router = Router(loaded.sites, [Keep()])
    router.begin()
    try:
        with routed(loaded.model, router), _recorded_outs(loaded.sites, run.outs):
            run.hidden = loaded.forward(input_ids, attention_mask)
    except HeadscopeError as error:
        run.failure = str(error)
    run.calls = dict(router.calls)
    run.masks_seen = router.masks_seen
    for site in loaded.sites:
        chunks = {k[1:]: p for k, p in kept.items() if k[0] == site.layer}
        if chunks:
            run.patterns[site.layer] = _assemble(chunks)
        elif site.n_heads == 0:  # nothing to show, and nothing that could be missing
            batch, n = input_ids.shape
            run.patterns[site.layer] = torch.empty(batch, 0, n, n)
    return run


def _assemble(chunks: dict[tuple[int, int], Tensor]) -> Tensor:
    """Put the chunks of one layer back together: (batch, n_heads, query_pos, key_pos)."""
    rows = sorted({row for row, _ in chunks})
    heads = sorted({head for _, head in chunks})
    return torch.cat([torch.cat([chunks[row, head] for head in heads], dim=1) for row in rows])


def _run_sdpa(loaded: LoadedModel, input_ids: Tensor, attention_mask: Tensor) -> Tensor | None:
    try:
        with use_implementation(loaded.model, "sdpa"), torch.no_grad():
            return loaded.forward(input_ids, attention_mask)
    except (ValueError, ImportError):  # the family has no SDPA implementation
        return None


@contextmanager
def _recorded_outs(sites: Sequence[AttentionSite], outs: list[Tensor]) -> Iterator[None]:
    """Collect the output of every layer's W_O, in the order of execution."""
    hooks = [
        linear.register_forward_hook(lambda _module, _args, output: outs.append(output))
        for linear in dict.fromkeys(site.projections.out for site in sites)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _compare_layers(
    loaded: LoadedModel, eager: _EagerRun, ours: _OurRun, real: Tensor
) -> tuple[LayerCheck, ...]:
    if not loaded.sites:  # nothing recognised: every layer of the config counts as never called
        n_layers = int(getattr(loaded.model.config, "num_hidden_layers", 0))
        return tuple(LayerCheck("encoder", layer, 0, None, None) for layer in range(n_layers))
    return tuple(
        _compare_layer(
            site,
            calls=ours.calls.get((site.stack, site.layer), 0),
            eager=(_item(eager.inputs, i), _item(eager.patterns, i), _item(eager.outs, i)),
            ours=(ours.patterns.get(site.layer), _item(ours.outs, i)),
            real=real,
        )
        for i, site in enumerate(loaded.sites)
    )


def _compare_layer(
    site: AttentionSite,
    *,
    calls: int,
    eager: tuple[Tensor | None, Tensor | None, Tensor | None],
    ours: tuple[Tensor | None, Tensor | None],
    real: Tensor,
) -> LayerCheck:
    """Compare one layer's pattern and out, from the installed run and from canonical weights."""
    x, their_pattern, their_out = eager
    if not calls or x is None:
        return LayerCheck(site.stack, site.layer, calls, None, None)
    out, pattern = _canonical(site, x, real)
    return LayerCheck(
        site.stack,
        site.layer,
        calls,
        _worst(
            [_difference(_by_query(p), _by_query(their_pattern), real) for p in (ours[0], pattern)]
        ),
        _worst([_difference(o, their_out, real) for o in (ours[1], out)]),
    )


def _item(items: Sequence[Tensor | None], i: int) -> Tensor | None:
    return items[i] if i < len(items) else None


def _by_query(pattern: Tensor | None) -> Tensor | None:
    """(batch, n_heads, query_pos, key_pos) -> (batch, query_pos, n_heads, key_pos)."""
    return None if pattern is None else pattern.transpose(1, 2)


def _canonical(
    site: AttentionSite, x: Tensor, real: Tensor
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Run the page-one form of attention on this layer's input with the layout's weights."""
    try:
        with torch.no_grad():
            return attention_fused(
                x, x, site.weights(), mask=key_padding_mask(real), scale=site.scale
            )
    except (ValueError, RuntimeError):  # shapes that do not fit: the layout was misread
        return None, None


def _difference(a: Tensor | None, b: Tensor | None, real: Tensor) -> float | None:
    """Largest |a - b| over real positions (leading axes batch, pos); None if not comparable."""
    if a is None or b is None or a.shape != b.shape:
        return None
    if a.numel() == 0:  # a layer that has lost all its heads has no pattern to differ in
        return 0.0
    gap = float((a[real].double() - b[real].double()).abs().max())
    return gap if math.isfinite(gap) else None


def _worst(gaps: Sequence[float | None]) -> float | None:
    """Return the largest gap, or None if any is missing."""
    known = [gap for gap in gaps if gap is not None]
    return max(known) if len(known) == len(gaps) else None


def _reasons(loaded: LoadedModel, ours: _OurRun, result: ValidationResult) -> list[str]:
    """Say everything that is off, most telling first."""
    if not loaded.sites:
        return [f"headscope knows no attention layout of the family {loaded.family!r}"]
    reasons = [ours.failure] if ours.failure else []
    never = [check for check in result.layers if check.calls == 0]
    if never and not ours.failure:
        reasons.append(
            f"{loaded.family} accepts a custom attention and never calls it: "
            f"{len(never)} of {len(result.layers)} layers bypassed ours"
        )
    reasons += [
        f"{check.stack} layer {check.layer} ran our attention {check.calls} times, not once"
        for check in result.layers
        if check.calls > 1
    ]
    config = loaded.model.config
    expected = getattr(config, "num_hidden_layers", len(loaded.sites))
    expected *= getattr(config, "inner_group_num", 1)  # ALBERT: layers within a layer
    if len(loaded.sites) > expected:
        reasons.append(f"attention ran {len(loaded.sites)} times in {expected} layers")
    if len(loaded.sites) < expected:
        reasons.append(f"attention was found in {len(loaded.sites)} of {expected} layers only")
    if reasons:
        return reasons
    if not result.mask_reached:
        reasons.append("the padding mask did not reach our attention in every layer")
    return reasons + _over_tolerance(result)


def _over_tolerance(result: ValidationResult) -> list[str]:
    gaps = [
        (f"{check.stack} layer {check.layer}: max |{what} - model's|", value, what)
        for check in result.layers
        for what, value in (("pattern", check.max_abs_pattern), ("out", check.max_abs_out))
    ]
    gaps.append(("max |hidden - eager|", result.max_abs_hidden_eager, "hidden"))
    gaps.append(("max |hidden - SDPA|", result.max_abs_hidden_sdpa, "hidden"))
    return [
        f"{name} is {'not comparable' if gap is None else f'{gap:.1e}'}, "
        f"tolerance {result.tolerance[what]:.1e}"
        for name, gap, what in gaps
        if gap is None or not gap <= result.tolerance[what]
    ]
