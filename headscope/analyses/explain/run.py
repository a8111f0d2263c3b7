"""``headscope explain``: one sentence, followed through one head and its layer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from headscope.analyses.explain import ExplainOptions
from headscope.analyses.explain.measure import (
    Trace,
    compute,
    entropy,
    even_entropy,
    links,
    rounded,
    steps,
)
from headscope.analyses.explain.result import ExplainedHead, ExplainResult
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
from headscope.data.readable_pieces import readable_pieces
from headscope.models.anatomy.explain import SentenceRun, run_sentence
from headscope.models.certificate.certificate import TOLERANCES
from headscope.models.certificate.evidence import allowed_keys
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import handy_sentences
from headscope.session.validate import require_valid
from headscope.tasks.units import parse_heads

LONGEST = 64  # Tokens of the longest sentence whose matrices are readable.
PADS = 2  # Positions of padding that the step on masks puts behind the sentence.


def run(model: Model, options: ExplainOptions) -> ExplainResult:
    """Follow one sentence through one head and its layer, with the model's own numbers."""
    layer, head = options.layer_and_head
    loaded = full_model = open_model(model, **options.loading)
    need_tokenizer(loaded, "explain")
    if loaded.encoder_decoder:  # a single sentence runs only the encoder
        loaded = loaded.only("encoder")
    text = options.sentence
    if text is None:  # the first that a report's page shows
        handy = handy_sentences(loaded, 1)
        if not handy or len(handy[0][1]) > LONGEST:
            raise UnsupportedModelError(
                f"No sentence of the built-in sample has {LONGEST} tokens or fewer for "
                f"{loaded.name}, so explain has none of its own to show; give it one."
            )
        text = handy[0][0]
    sentence = read_sentence(loaded, text, "explain")
    validation = require_valid(loaded, options.validate)
    by_layer = {site.layer: site for site in loaded.sites if site.n_heads}
    if not by_layer:
        raise UnsupportedModelError(
            f"{loaded.name} has no attention head that headscope recognises, so there is none to "
            "explain."
        )
    if layer is not None:
        numbers = {(site.stack, site.layer): site.head_ids for site in loaded.sites}
        if not parse_heads(f"L{layer}H{'*' if head is None else head}", numbers):
            raise InputError(
                f"Every head of layer {layer} was removed from {loaded.name}; take another."
            )
    site = next(iter(by_layer.values())) if layer is None else by_layer[layer]
    ids = sentence.ids
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", MaskedRowWarning)  # rows of padding are never read
        run = run_sentence(loaded, site, ids, 0)
        heads = tuple(_every_head(loaded, run, sentence))
        asked = [h for h in heads if layer in (None, h.layer) and head in (None, h.head)]
        chosen = max(asked, key=lambda item: item.link)
        if chosen.layer != site.layer:
            site = by_layer[chosen.layer]
            run = run_sentence(loaded, site, ids, 0)
        pads = min(PADS, loaded.max_length - len(ids))
        padded = run_sentence(loaded, site, ids, pads) if pads > 0 else None
        index = site.head_ids.index(chosen.head)
        ours = compute(run)
        trace = Trace(sentence.tokens, run, padded, index, TOLERANCES[loaded.dtype], ours)
        made = tuple(steps(trace))
    for step in made:
        for check in step.checks:
            if not check.max_abs <= check.tolerance:
                raise ValidationFailedError(
                    f"Step {step.number} of explain ({check.what}) differs from what "
                    f"{loaded.name} computes itself by {check.max_abs:.1e}, tolerance "
                    f"{check.tolerance:.1e}, so nothing is explained."
                )
    after = run.after
    positions = "rotated" if ours.rotated else ""
    return ExplainResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=0),
        validation=validation,
        sentence=sentence.text,
        tokens=sentence.tokens,
        special=sentence.special,
        stack=site.stack,
        layer=site.layer,
        head=chosen.head,
        chosen=head is None,
        n_heads=site.n_heads,
        d_model=trace.x.shape[-1],
        d_head=site.d_head,
        causal=site.causal,
        positions="bias" if ours.bias is not None else positions,
        layer_norm="" if after is None else "pre" if after.norm_first else "post",
        steps=made,
        heads=heads,
        patterns={
            head_name(s.layer, number, s.stack): tuple(
                tuple(round(w, 2) for w in row) for row in pattern.tolist()
            )
            for s in loaded.sites
            if s.row in run.patterns
            for number, pattern in zip(s.head_ids, run.patterns[s.row], strict=True)
        },
        left_out=tuple(_left_out(full_model, trace)),
    )


@dataclass(frozen=True)
class ReadSentence:
    """A sentence as the model reads it; ``special`` marks its special tokens."""

    text: str
    ids: list[int]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]


def read_sentence(loaded: LoadedModel, sentence: str, command: str) -> ReadSentence:
    """Tokenise a sentence that is shown as a matrix.

    Raises InputError for one without a token, with half of a character, or with more than
    :data:`LONGEST` tokens; ``command`` is who reads no more.
    """
    if not sentence.strip():
        raise InputError("The sentence is empty; give at least one word.")
    if any(0xD800 <= ord(char) < 0xE000 for char in sentence):
        raise InputError(
            "The sentence holds half of a character (a lone surrogate); write it anew."
        )
    encoding = next(tokenise(loaded, [sentence]))
    ids = list(encoding.ids)
    special = tuple(map(bool, encoding.special_tokens_mask))
    if all(special):
        raise InputError(
            f"The tokenizer of {loaded.name} makes no token of the sentence {visible(sentence)!r}; "
            "give another one."
        )
    for most, whose in ((loaded.max_length, loaded.name), (LONGEST, command)):
        if len(ids) > most:
            raise InputError(
                f"The sentence has {len(ids)} tokens, and {whose} reads at most {most}; shorten it."
            )
    return ReadSentence(sentence, ids, readable_pieces(loaded.tokenizer, ids), special)


def _every_head(
    loaded: LoadedModel, run: SentenceRun, sentence: ReadSentence
) -> Iterator[ExplainedHead]:
    words = ~torch.tensor(sentence.special)
    probe = Probe("sentence", *loaded.pad([sentence.ids]))
    for site in loaded.sites:
        if site.row not in run.patterns:
            continue
        pattern = run.patterns[site.row].cpu()
        even = rounded(even_entropy(allowed_keys(site, probe)[0]))
        linked = links(pattern, words).tolist()
        for head, rows, link in zip(site.head_ids, pattern, linked, strict=True):
            bits = rounded(entropy(rows).mean())
            yield ExplainedHead(site.layer, head, bits, even, rounded(link), stack=site.stack)


def _left_out(model: LoadedModel, trace: Trace) -> Iterator[str]:
    if model.encoder_decoder:
        yield (
            "Only the encoder is explained: the decoder and its cross-attention read a second text."
        )
    if trace.run.after is None:
        yield (
            f"What follows attention in a layer of {model.family} (skip, norm, feed-forward) is "
            "left out: it is not two LayerNorms and two maps with one function between them."
        )
    if trace.padded is None:
        yield "Padding is left out: the sentence fills all positions that the model has."
