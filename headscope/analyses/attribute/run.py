"""``headscope attribute``: which heads made this output, and what is it without them.

:func:`run` is the whole command; its helpers follow in the order of use. A head is known by its
``HeadIndex``: the row of its attention layer, and its index in the layer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.averages import (
    ModelHeads,
    agreement,
    group_rows,
    head_rows,
    layer_rows,
    mean_over_examples,
    part_sums,
)
from headscope.analyses.attribute.calibration import evenly_spaced, mean_outputs
from headscope.analyses.attribute.controls import random_weights
from headscope.analyses.attribute.examples import Opened, choose_output, open_examples
from headscope.analyses.attribute.faithfulness import judge_rankings
from headscope.analyses.attribute.parts import TOLERANCE, ExactSum, exact_sum_of
from headscope.analyses.attribute.removal import HeadIndex, remove_each
from headscope.analyses.attribute.result import (
    AttributeControl,
    AttributedToken,
    AttributeResult,
    SumCheck,
    TokenPairs,
)
from headscope.analyses.attribute.tokens import split_by_token
from headscope.analyses.classify.known_roles import classification_of, find_roles
from headscope.core.accumulator import Array
from headscope.core.errors import UnsupportedModelError
from headscope.core.progress import silent
from headscope.core.serialise import SCHEMA
from headscope.core.widest import widest_type
from headscope.models.anatomy.residual import find_stream
from headscope.models.run.head_outputs import head_outputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.wrapping import wrap
from headscope.models.surgery.copies import cast
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.tasks.units import parse_heads


def run(model: Model, options: AttributeOptions) -> AttributeResult:
    """Take one output apart, or many, and remove every head."""
    # Open the model and the texts, and prove that our attention is the model's
    task = {"token": "mlm", "next": "lm"}.get(options.of or "")
    loaded = open_for_tasks(model, task=task, **options.loading)
    need_tokenizer(loaded, "attribute")
    chosen = choose_output(loaded, options)
    loaded = chosen.loaded
    validation = require_valid(loaded, options.validate)
    opened = open_examples(chosen, options)
    indices = _head_indices(loaded)
    circuit = _circuit(loaded, indices, options.circuit)
    roles = _primary_roles(loaded, options)

    # The exact sum; tables of heads are (examples, heads), by the name of their number
    taken_apart = _take_apart(loaded, opened, indices, roles, options)
    heads = taken_apart.heads
    exact_sum = taken_apart.exact_sum
    tables = {"direct": heads.by_head(exact_sum.heads)}
    if exact_sum.first_order is not None:
        tables["first_order"] = heads.by_head(exact_sum.first_order)

    # The output without each head
    means = mean_outputs(loaded, opened.calibration_rows)
    removal_indices = evenly_spaced(len(opened.examples), options.removals)
    removed_from = [opened.examples[i] for i in removal_indices]
    effects = remove_each(
        loaded, removed_from, indices, {"removed": None, "removed_mean": means}, options.tell
    )

    # Optional parts
    faithfulness = None
    if options.judges_rankings:
        rankings = {name: table[removal_indices] for name, table in tables.items()} | effects
        faithfulness = judge_rankings(
            loaded,
            removed_from,
            indices,
            rankings,
            means,
            options.tell,
            circuit=circuit,
            seed=options.seed,
        )
    control = None
    if options.control:
        control = _control(loaded, opened, removal_indices, taken_apart, options)

    # The result: means over examples
    tables |= effects
    tables["removed_size"] = np.abs(effects["removed"])
    direct_where_removed = tables["direct"][removal_indices]
    return AttributeResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded,
            command=options.command,
            seed=options.seed,
            data=opened.data,
            warnings=opened.notes,
        ),
        validation=validation,
        kind=opened.kind,
        texts=opened.texts,
        label=opened.label,
        outputs=head_outputs(loaded).value if opened.kind == "class" else "",
        examples=len(opened.examples),
        skipped=opened.skipped,
        removals=len(removal_indices),
        output=mean_over_examples(exact_sum.output),
        check=SumCheck(float(exact_sum.error.max()), TOLERANCE),
        parts=part_sums(loaded, exact_sum, opened.kind),
        heads=tuple(head_rows(loaded, heads, tables)),
        layers=tuple(layer_rows(loaded, heads, exact_sum, tables, removal_indices)),
        groups=tuple(group_rows(loaded, heads, tables)),
        spearman=agreement(direct_where_removed, effects["removed"], heads.writing),
        spearman_mean=agreement(direct_where_removed, effects["removed_mean"], heads.writing),
        shuffled=_shuffled_control(loaded, opened, taken_apart),
        calibration=opened.calibration,
        tokens=taken_apart.tokens,
        pairs=taken_apart.pairs,
        control=control,
        faithfulness=faithfulness,
        against="" if opened.next_token is None else opened.next_token.against,
        next_tokens=() if opened.next_token is None else opened.next_token.likeliest,
        own_tokens=opened.own_tokens,
    )


# --- heads ----------------------------------------------------------------------------------------


def _head_indices(loaded: LoadedModel) -> list[HeadIndex]:
    """List all heads of the model; refuse one without any."""
    indices: list[HeadIndex] = []
    for site in loaded.sites:
        indices += [(site.row, i) for i in range(site.n_heads)]
    if not indices:
        raise UnsupportedModelError(f"{loaded.name} has no attention head that headscope knows.")
    return indices


def _circuit(loaded: LoadedModel, indices: Sequence[HeadIndex], names: str | None) -> list[int]:
    """Return the positions in ``indices`` of the heads that are named, such as ``L0H1,L1H2``."""
    if names is None:
        return []
    numbers = {(site.stack, site.layer): site.head_ids for site in loaded.sites}
    all_heads = []  # (stack, layer, number of the head)
    for row, i in indices:
        site = loaded.sites[row]
        all_heads.append((site.stack, site.layer, site.head_ids[i]))
    return [all_heads.index(head) for head in parse_heads(names, numbers)]


def _primary_roles(loaded: LoadedModel, options: AttributeOptions) -> dict[HeadIndex, str]:
    """Return every head's primary role, or "none"; empty where no classification was given."""
    classified = classification_of(loaded, options.roles, None)
    if classified is None:
        return {}
    known = find_roles(loaded, classified)
    return {head: result.primary or "none" for head, result in known.by_place.items()}


# --- the exact sum --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TakenApart:
    """The outputs of all examples as sums, and those of texts that do not belong together."""

    heads: ModelHeads
    exact_sum: ExactSum
    shuffled: ExactSum
    tokens: tuple[AttributedToken, ...]  # Of one example, where asked for
    pairs: TokenPairs | None


def _take_apart(
    loaded: LoadedModel,
    opened: Opened,
    indices: list[HeadIndex],
    roles: dict[HeadIndex, str],
    options: AttributeOptions,
) -> _TakenApart:
    """Take all outputs apart in float64, in a copy of the model that is dropped afterwards."""
    exact = _in_float64(loaded)
    anatomy = find_stream(exact)
    n_examples = len(opened.examples)
    tell_parts = partial(options.tell, "parts", total=n_examples + len(opened.shuffled))

    def tell_shuffled(n_done: int) -> None:
        """Count the shuffled examples on after the others."""
        tell_parts(n_examples + n_done)

    exact_sum = exact_sum_of(exact, anatomy, opened.examples, tell_parts)
    shuffled = exact_sum_of(exact, anatomy, opened.shuffled, tell_shuffled)
    tokens: tuple[AttributedToken, ...] = ()
    pairs = None
    if options.tokens:
        tokens, pairs = split_by_token(exact, anatomy, opened.examples[0])
    heads = ModelHeads.of(indices, anatomy, roles)
    return _TakenApart(heads, exact_sum, shuffled, tokens, pairs)


def _in_float64(loaded: LoadedModel) -> LoadedModel:
    """Return the model in float64; on the CPU where its device has no float64."""
    if widest_type(loaded.device) is torch.float64:
        return cast(loaded, "float64")
    network = copy.deepcopy(loaded.network).cpu().double()
    copied = replace(wrap(network, loaded.tokenizer, name=loaded.name), pooling=loaded.pooling)
    return copied if loaded.view_of is None else copied.only(loaded.stacks[0])


# --- controls -------------------------------------------------------------------------------------


def _shuffled_control(
    loaded: LoadedModel, opened: Opened, taken_apart: _TakenApart
) -> AttributeControl:
    """Summarise the same sum on texts that do not belong together."""
    heads = taken_apart.heads
    shuffled = taken_apart.shuffled
    direct = heads.by_head(taken_apart.exact_sum.heads)
    return AttributeControl(
        output=mean_over_examples(shuffled.output),
        parts=part_sums(loaded, shuffled, opened.kind),
        examples=len(opened.shuffled),
        agreement=agreement(direct, heads.by_head(shuffled.heads), heads.writing),
    )


def _control(
    loaded: LoadedModel,
    opened: Opened,
    removal_indices: Sequence[int],
    taken_apart: _TakenApart,
    options: AttributeOptions,
) -> AttributeControl:
    """Measure the same examples with random weights under the same task head.

    ``removal_indices`` are the examples on which heads are removed.
    """
    heads = taken_apart.heads
    twin = random_weights(loaded, options.seed)
    exact = _in_float64(twin)
    random = exact_sum_of(exact, find_stream(exact), opened.examples)
    random_direct: Array = heads.by_head(random.heads)
    examples = [opened.examples[i] for i in removal_indices]
    effects = remove_each(twin, examples, heads.indices, {"removed": None}, silent)
    options.tell("control", 1, 1)
    return AttributeControl(
        output=mean_over_examples(random.output),
        parts=part_sums(loaded, random, opened.kind),
        examples=len(opened.examples),
        agreement=agreement(
            heads.by_head(taken_apart.exact_sum.heads), random_direct, heads.writing
        ),
        spearman=agreement(random_direct[removal_indices], effects["removed"], heads.writing),
    )
