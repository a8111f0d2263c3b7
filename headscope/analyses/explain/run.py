"""``headscope explain``: one sentence, followed through one head and its layer.

The steps are in ``steps/``, in the order of ``steps/table.py``; here the sentence is read, the head
chosen, and every step held against the model's own numbers. A layer's attention is an
:class:`AttentionSite`; a :class:`SentenceRun` is what the model itself computed of the sentence: in
detail in the layer that is explained, and the patterns of all layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from headscope.analyses.explain import ExplainOptions
from headscope.analyses.explain.measure import (
    compute,
    compute_after,
    entropy,
    even_entropy,
    links,
    rounded,
)
from headscope.analyses.explain.result import ExplainedHead, ExplainResult, ExplainStep
from headscope.analyses.explain.steps.step import Trace
from headscope.analyses.explain.steps.table import measure_steps
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
from headscope.models.certificate.canonical import allowed_keys
from headscope.models.certificate.verdict import TOLERANCES
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.texts import short_sentences
from headscope.session.validate import require_valid
from headscope.tasks.units import parse_heads

LONGEST = 64  # Tokens of the longest sentence whose matrices are readable.
PADS = 2  # Positions of padding that the step on masks puts behind the sentence.


def run(model: Model, options: ExplainOptions) -> ExplainResult:
    """Follow one sentence through one head and its layer, with the model's own numbers."""
    # Open the model and read the sentence.
    full_model = open_model(model, **options.loading)
    need_tokenizer(full_model, "explain")
    loaded = full_model
    if loaded.encoder_decoder:  # a single sentence runs only the encoder
        loaded = loaded.only("encoder")
    text = options.sentence
    if text is None:
        text = _sample_sentence(loaded)
    sentence = read_sentence(loaded, text, "explain")

    # Prove that our attention equals the model's, and that there is such a head.
    validation = require_valid(loaded, options.validate)
    layer, head = options.layer_and_head
    site_of_layer = {site.layer: site for site in loaded.sites if site.n_heads}
    _check_head(loaded, site_of_layer, layer, head)

    # Run the sentence, choose a head if none is named, and measure the steps. A run has the
    # patterns of all layers, but the details of one: it is run again if another one is chosen.
    first_site = next(iter(site_of_layer.values()))
    site = first_site if layer is None else site_of_layer[layer]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", MaskedRowWarning)  # rows of padding are never read
        sentence_run = run_sentence(loaded, site, sentence.ids, pads=0)
        heads = tuple(_measure_heads(loaded, sentence_run, sentence))
        in_layer = [h for h in heads if layer is None or h.layer == layer]
        candidates = [h for h in in_layer if head is None or h.head == head]
        chosen = max(candidates, key=lambda candidate: candidate.link)
        if chosen.layer != site.layer:
            site = site_of_layer[chosen.layer]
            sentence_run = run_sentence(loaded, site, sentence.ids, pads=0)
        index = site.head_ids.index(chosen.head)
        trace = _trace(loaded, sentence_run, sentence, index)
        steps = measure_steps(trace)
    _check_steps(loaded, steps)

    # The result.
    after = sentence_run.after
    layer_norm = ""
    if after is not None:
        layer_norm = "pre" if after.norm_first else "post"
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
        positions=trace.ours.positions,
        layer_norm=layer_norm,
        steps=steps,
        heads=heads,
        patterns=_rounded_patterns(loaded, sentence_run),
        left_out=tuple(_left_out(full_model, trace)),
    )


# --- the sentence ---------------------------------------------------------------------------------


def _sample_sentence(loaded: LoadedModel) -> str:
    """Return the first sentence of the built-in sample that a report's page would show."""
    sentences = short_sentences(loaded, 1)  # (sentence, token ids)
    if not sentences or len(sentences[0][1]) > LONGEST:
        raise UnsupportedModelError(
            f"No sentence of the built-in sample has {LONGEST} tokens or fewer for "
            f"{loaded.name}, so explain has none of its own to show; give it one."
        )
    sentence, _ = sentences[0]
    return sentence


@dataclass(frozen=True)
class ReadSentence:
    """A sentence as the model reads it: "a cat", [101, 1037, 4937, 102], ("[CLS]", "a", ...)."""

    text: str
    ids: list[int]
    tokens: tuple[str, ...]
    special: tuple[bool, ...]  # Which tokens the tokenizer added: (True, False, False, True)


def read_sentence(loaded: LoadedModel, sentence: str, command: str) -> ReadSentence:
    """Tokenise a sentence that is shown as a matrix; ``command`` is who shows it, for errors.

    Raises InputError for a sentence without a token, with half of a character, with more tokens
    than the model takes, or with more than :data:`LONGEST`.
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
    for reader, longest in ((loaded.name, loaded.max_length), (command, LONGEST)):
        if len(ids) > longest:
            raise InputError(
                f"The sentence has {len(ids)} tokens, and {reader} reads at most {longest}; "
                "shorten it."
            )
    return ReadSentence(sentence, ids, readable_pieces(loaded.tokenizer, ids), special)


# --- the head -------------------------------------------------------------------------------------


def _check_head(
    loaded: LoadedModel,
    site_of_layer: Mapping[int, AttentionSite],
    layer: int | None,
    head: int | None,
) -> None:
    """Refuse a head that is not there, and a model or a layer without any."""
    if not site_of_layer:
        raise UnsupportedModelError(
            f"{loaded.name} has no attention head that headscope recognises, so there is none to "
            "explain."
        )
    if layer is None:
        return
    head_ids = {(site.stack, site.layer): site.head_ids for site in loaded.sites}
    wanted_heads = f"L{layer}H*" if head is None else f"L{layer}H{head}"
    # parse_heads refuses a head that is not there; of a layer without heads it returns none.
    if not parse_heads(wanted_heads, head_ids):
        raise InputError(
            f"Every head of layer {layer} was removed from {loaded.name}; take another."
        )


def _measure_heads(
    loaded: LoadedModel, run: SentenceRun, sentence: ReadSentence
) -> Iterator[ExplainedHead]:
    """Yield how every head of the model spreads its attention, and how it links words.

    ``head_ids`` are the heads' original numbers, [0, 2, 3] where head 1 was removed.
    """
    words = ~torch.tensor(sentence.special)
    probe = Probe("sentence", *loaded.pad([sentence.ids]))
    for site in loaded.sites:
        if site.row not in run.patterns:
            continue
        patterns = run.patterns[site.row].cpu()
        even = rounded(even_entropy(allowed_keys(site, probe)[0]))
        head_links = links(patterns, words).tolist()
        for head, pattern, link in zip(site.head_ids, patterns, head_links, strict=True):
            yield ExplainedHead(
                site.layer,
                head,
                entropy=rounded(entropy(pattern).mean()),
                even=even,
                link=rounded(link),
                stack=site.stack,
            )


def _rounded_patterns(
    loaded: LoadedModel, run: SentenceRun
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Return the pattern of every head by its name, rounded to two digits."""
    patterns = {}
    for site in loaded.sites:
        if site.row not in run.patterns:
            continue
        for head, pattern in zip(site.head_ids, run.patterns[site.row], strict=True):
            rows = [tuple(round(weight, 2) for weight in row) for row in pattern.tolist()]
            patterns[head_name(site.layer, head, site.stack)] = tuple(rows)
    return patterns


# --- the steps ------------------------------------------------------------------------------------


def _trace(loaded: LoadedModel, run: SentenceRun, sentence: ReadSentence, index: int) -> Trace:
    """Gather what the steps are measured from: our own numbers of the layer, and the model's.

    The sentence is run again with padding, where the model has room for it. ``index`` is the place
    of the head among those that its layer has now.
    """
    pads = min(PADS, loaded.max_length - len(sentence.ids))
    padded = run_sentence(loaded, run.site, sentence.ids, pads) if pads > 0 else None
    ours = compute(run)
    return Trace(
        tokens=sentence.tokens,
        run=run,
        padded=padded,
        head=index,
        tolerance=TOLERANCES[loaded.dtype],
        ours=ours,
        after=None if run.after is None else compute_after(run.after, ours.out),
    )


def _check_steps(loaded: LoadedModel, steps: Sequence[ExplainStep]) -> None:
    """Refuse to explain what differs from what the model computes itself."""
    for step in steps:
        for check in step.checks:
            if not check.max_abs <= check.tolerance:  # NaN differs, too
                raise ValidationFailedError(
                    f"Step {step.number} of explain ({check.what}) differs from what "
                    f"{loaded.name} computes itself by {check.max_abs:.1e}, tolerance "
                    f"{check.tolerance:.1e}, so nothing is explained."
                )


def _left_out(model: LoadedModel, trace: Trace) -> Iterator[str]:
    """Say what this model does not allow, a sentence each."""
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
