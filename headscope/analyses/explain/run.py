"""The function behind ``headscope explain``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analyses.explain.measure import entropy, even_entropy, links
from headscope.analyses.explain.nine_steps import attention_steps
from headscope.analyses.explain.options import ExplainOptions
from headscope.analyses.explain.result import ExplainedHead, ExplainResult, ExplainStep
from headscope.analyses.explain.walk import Walk, rest_steps, rounded
from headscope.core.errors import (
    InputError,
    MaskedRowWarning,
    UnsupportedModelError,
    ValidationFailedError,
)
from headscope.core.heads import head_name
from headscope.core.safe_text import visible
from headscope.core.serialise import SCHEMA
from headscope.data.pieces import tokenise
from headscope.models.certificate import TOLERANCES
from headscope.models.explain import Run, run_sentence
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import handy_sentences
from headscope.session.validate import require_valid

LONGEST = 64  # Tokens of a sentence that can still be looked at as a matrix.
PADS = 2  # Positions of padding that the step on masks puts behind the sentence.


@dataclass(frozen=True)
class _Sentence:
    """A sentence as the model reads it; ``special`` marks what the tokenizer added."""

    text: str
    ids: list[int]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]


def run(model: Model, options: ExplainOptions) -> ExplainResult:
    """Follow one sentence through one head and its layer, with the model's own numbers."""
    sentence, layer, head = options.sentence, options.layer, options.head
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "explain")
    whole = loaded
    if loaded.encoder_decoder:  # a sentence runs no more of it
        loaded = loaded.only("encoder")
    read = _built_in(loaded) if sentence is None else _read(loaded, sentence)
    validation = require_valid(loaded, options.validate)
    _check_place(loaded, layer, head)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MaskedRowWarning)  # of padded queries: nobody looks
        first = run_sentence(loaded, _site(loaded, layer), read.ids, 0)
        heads = tuple(_every_head(loaded, first, read))
        chosen = _chosen(heads, layer, head)
        site = _site(loaded, chosen.layer)
        run = first if site is first.layer.site else run_sentence(loaded, site, read.ids, 0)
        walk = _walk(loaded, run, read, chosen.head)
        steps = tuple(_steps(walk))
    _require_agreement(loaded, steps)
    return ExplainResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=0),
        validation=validation,
        sentence=read.text,
        tokens=read.tokens,
        special=read.special,
        stack=site.stack,
        layer=site.layer,
        head=chosen.head,
        chosen=head is None,
        n_heads=site.n_heads,
        d_model=walk.x.shape[-1],
        d_head=site.d_head,
        causal=site.causal,
        positions=_positions(walk),
        layer_norm=_layer_norm(walk),
        steps=steps,
        heads=heads,
        patterns=_patterns(loaded, run),
        left_out=tuple(_left_out(whole, walk)),
    )


# --- the sentence ---------------------------------------------------------------------------------


def _read(loaded: LoadedModel, sentence: str) -> _Sentence:
    if not sentence.strip():
        raise InputError("The sentence is empty; give at least one word.")
    if any(0xD800 <= ord(char) < 0xE000 for char in sentence):
        raise InputError(
            "The sentence holds half of a character (a lone surrogate); write it anew."
        )
    encoding = next(iter(tokenise(loaded, [sentence])))
    n, special = len(encoding.ids), encoding.special_tokens_mask
    if all(special):
        raise InputError(
            f"The tokenizer of {loaded.name} makes no token of the sentence {visible(sentence)!r}; "
            "give another one."
        )
    for most, whose in ((loaded.max_length, loaded.name), (LONGEST, "explain")):
        if n > most:
            raise InputError(
                f"The sentence has {n} tokens, and {whose} reads at most {most}; shorten it."
            )
    return _encoded(loaded, sentence, encoding.ids, special)


def _built_in(loaded: LoadedModel) -> _Sentence:
    """Take the first sentence that the page of a report shows as well."""
    found = handy_sentences(loaded, 1)
    if not found or len(found[0][1]) > LONGEST:
        raise UnsupportedModelError(
            f"No sentence of the built-in sample has {LONGEST} tokens or fewer for {loaded.name}, "
            "so explain has none of its own to show; give it one."
        )
    text, ids = found[0]
    encoding = next(iter(tokenise(loaded, [text])))
    return _encoded(loaded, text, ids, encoding.special_tokens_mask)


def _encoded(loaded: LoadedModel, text: str, ids: list[int], special: Sequence[int]) -> _Sentence:
    tokens = tuple(map(str, loaded.tokenizer.convert_ids_to_tokens(ids)))
    return _Sentence(text, list(ids), tokens, tuple(map(bool, special)))


# --- the head -------------------------------------------------------------------------------------


def _check_place(loaded: LoadedModel, layer: int | None, head: int | None) -> None:
    if not any(site.n_heads for site in loaded.sites):
        raise UnsupportedModelError(
            f"{loaded.name} has no attention head that headscope recognises, so there is none to "
            "explain."
        )
    if layer is None:
        return
    if not 0 <= layer < loaded.n_layers:
        raise InputError(
            f"{loaded.name} has no layer {layer}; its layers are 0 to {loaded.n_layers - 1}."
        )
    site = loaded.sites[layer]
    if not site.n_heads:
        raise InputError(
            f"Every head of layer {layer} was removed from {loaded.name}; take another."
        )
    if head is None or head in site.head_ids:
        return
    if 0 <= head < site.heads_before:
        raise InputError(
            f"{head_name(layer, head)} was removed from {loaded.name}; layer {layer} still has the "
            f"heads {', '.join(map(str, site.head_ids))}."
        )
    raise InputError(
        f"Layer {layer} of {loaded.name} has no head {head}; its heads are 0 to "
        f"{site.heads_before - 1}."
    )


def _site(loaded: LoadedModel, layer: int | None) -> AttentionSite:
    """Return a layer's site, by default the first one that has a head."""
    if layer is not None:
        return loaded.sites[layer]
    return next(site for site in loaded.sites if site.n_heads)


def _every_head(loaded: LoadedModel, run: Run, read: _Sentence) -> Iterator[ExplainedHead]:
    words = ~torch.tensor(read.special)
    for site in loaded.sites:
        pattern = run.patterns.get(site.row)
        if pattern is None:
            continue
        pattern = pattern.cpu()
        even = rounded(even_entropy(_seen(site, len(read.ids))))
        for place, link in enumerate(links(pattern, words).tolist()):
            bits = float(entropy(pattern[place]).mean())
            yield ExplainedHead(
                site.layer,
                site.head_ids[place],
                rounded(bits),
                even,
                rounded(link),
                stack=site.stack,
            )


def _seen(site: AttentionSite, n: int) -> Tensor:
    """Return which keys each query of a sentence without padding may see, (n, n)."""
    step = torch.arange(n) - torch.arange(n)[:, None]
    seen = step <= 0 if site.causal else torch.ones(n, n, dtype=torch.bool)
    return seen if site.window is None else seen & (step.abs() <= site.window)


def _chosen(heads: Sequence[ExplainedHead], layer: int | None, head: int | None) -> ExplainedHead:
    """Return the head that was asked for, or the one that links words most clearly."""
    fitting = [item for item in heads if layer in (None, item.layer) and head in (None, item.head)]
    return max(fitting, key=lambda item: item.link)


# --- the steps ------------------------------------------------------------------------------------


def _walk(loaded: LoadedModel, run: Run, read: _Sentence, head: int) -> Walk:
    site = run.layer.site
    pads = min(PADS, loaded.max_length - len(read.ids))
    padded = run_sentence(loaded, site, read.ids, pads) if pads > 0 else None
    place = site.head_ids.index(head)
    return Walk(read.tokens, run, padded, place, TOLERANCES[loaded.dtype])


def _steps(walk: Walk) -> Iterator[ExplainStep]:
    with torch.no_grad():
        done = list(attention_steps(walk))
        yield from done
        if walk.layer.rest is not None:
            yield from rest_steps(walk, walk.layer.rest, len(done) + 1)


def _require_agreement(loaded: LoadedModel, steps: Sequence[ExplainStep]) -> None:
    for step in steps:
        for check in step.checks:
            if not check.max_abs <= check.tolerance:
                raise ValidationFailedError(
                    f"Step {step.number} of explain ({check.what}) differs from what "
                    f"{loaded.name} computes itself by {check.max_abs:.1e}, tolerance "
                    f"{check.tolerance:.1e}, so nothing is explained."
                )


def _positions(walk: Walk) -> str:
    if walk.ours.bias is not None:
        return "bias"
    return "rotated" if walk.ours.rotated else ""


def _layer_norm(walk: Walk) -> str:
    rest = walk.layer.rest
    return "" if rest is None else "pre" if rest.norm_first else "post"


def _left_out(whole: LoadedModel, walk: Walk) -> Iterator[str]:
    if whole.encoder_decoder:
        yield (
            "Only the encoder is explained: the decoder and its cross-attention read a second text."
        )
    if walk.layer.rest is None:
        yield (
            f"What follows attention in a layer of {whole.family} (skip, norm, feed-forward) is "
            "left out: headscope does not know how to take this family's layer apart."
        )
    if walk.padded is None:
        yield "Padding is left out: the sentence fills all positions that the model has."


def _patterns(loaded: LoadedModel, run: Run) -> dict[str, tuple[tuple[float, ...], ...]]:
    return {
        head_name(site.layer, head, site.stack): tuple(
            tuple(round(w, 2) for w in row) for row in pattern.tolist()
        )
        for site in loaded.sites
        if site.row in run.patterns
        for head, pattern in zip(site.head_ids, run.patterns[site.row], strict=True)
    }
