"""``headscope attribute``: which heads made this output, and what is it without them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from headscope.analyses.attribute.examples import Opened, open_examples
from headscope.analyses.attribute.measure import (
    Example,
    Parts,
    measure_parts,
    measure_tokens,
    spread,
)
from headscope.analyses.attribute.options import AttributeOptions
from headscope.analyses.attribute.removal import (
    MeanZ,
    Place,
    Versions,
    mean_outputs,
    random_reversals,
    search,
)
from headscope.analyses.attribute.result import (
    AttributeControl,
    AttributedHead,
    AttributedLayer,
    AttributedToken,
    AttributeResult,
    HeadGroup,
    OtherSearch,
    PartSum,
    Reversal,
    SumCheck,
    TokenPairs,
)
from headscope.analyses.classify.known_roles import classification_of, find_roles
from headscope.core.accumulator import Array
from headscope.core.errors import UnsupportedModelError, ValidationFailedError
from headscope.core.heads import head_name, layer_name
from headscope.core.serialise import SCHEMA
from headscope.core.widest import widest_type
from headscope.models.anatomy.layers import Anatomy
from headscope.models.anatomy.residual import find_stream
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel, wrap
from headscope.models.surgery.copies import cast, random_twin
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.estimate import UNKNOWN, Estimate
from headscope.stats.metrics import spearman, value_of
from headscope.stats.statistics import finite, t_half_width

#: Largest error of the sum, relative to the sum of absolute parts: float64 gives 1e-15, and modules
#: that round to float32 inside (the norms of some families) 1e-7.
TOLERANCE = 1e-6
Tell = Callable[[str, int, int], None]


def run(model: Model, options: AttributeOptions) -> AttributeResult:
    """Take one output apart, or many, and remove every head."""
    task = "mlm" if options.of == "token" else None
    loaded = open_for_tasks(model, task=task, **options.loading)
    need_tokenizer(loaded, "attribute")
    loaded, opened = open_examples(loaded, options)
    validation = require_valid(loaded, options.validate)
    heads = [(site.row, i) for site in loaded.sites for i in range(site.n_heads)]
    if not heads:
        raise UnsupportedModelError(f"{loaded.name} has no attention head that headscope knows.")
    direct = [place for place in heads if writes(loaded, loaded.sites[place[0]])]
    classified = classification_of(loaded, options.roles, None)

    exact = _exact(loaded)
    stream = find_stream(exact)
    ahead, total = len(opened.examples), len(opened.examples) + len(opened.shuffled)
    tell = partial(options.tell, "parts", total=total)
    parts = _checked(exact, measure_parts(exact, stream, opened.examples, tell))
    shuffled = measure_parts(exact, stream, opened.shuffled, lambda done: tell(ahead + done))
    means = mean_outputs(loaded, opened.calibration_rows)
    chosen = spread(len(opened.examples), options.removals)
    removed = Removed.of(loaded, [opened.examples[i] for i in chosen], heads, means, options.tell)
    own = parts.heads[chosen]

    primary = _roles(loaded, classified)
    return AttributeResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=options.seed, data=opened.data),
        validation=validation,
        kind=opened.kind,
        texts=opened.texts,
        label=opened.label,
        examples=len(opened.examples),
        skipped=opened.skipped,
        removals=len(chosen),
        output=_mean(parts.output),
        check=SumCheck(float(parts.error.max()), TOLERANCE),
        parts=_sums(loaded, parts, opened.kind),
        heads=tuple(_heads(loaded, heads, parts, removed, primary)),
        layers=tuple(
            AttributedLayer(
                site.layer,
                _mean(parts.heads[:, site.row].sum(-1)),
                UNKNOWN if site.stack == "cross" else _mean(parts.feed_forward[:, site.row]),
                site.stack,
                *_of_layer(parts, chosen, removed, [p for p in direct if p[0] == site.row]),
            )
            for site in loaded.sites
            if writes(loaded, site)
        ),
        groups=tuple(_groups(loaded, heads, parts, removed, primary)),
        spearman=_agreement(own, removed.zero, direct),
        spearman_mean=_agreement(own, removed.mean, direct),
        shuffled=AttributeControl(
            output=_mean(shuffled.output),
            parts=_sums(loaded, shuffled, opened.kind),
            examples=len(opened.shuffled),
            agreement=_agreement(parts.heads, shuffled.heads, direct),
        ),
        calibration={**opened.calibration, "tokens": means.tokens},
        tokens=tuple(_tokens(exact, stream, opened)) if options.tokens else (),
        pairs=_pairs(exact, stream, opened) if options.tokens else None,
        reversal=_reversal(loaded, opened, heads, options),
        control=_control(loaded, opened, direct, parts, options) if options.control else None,
    )


def _exact(loaded: LoadedModel) -> LoadedModel:
    """Return the model in float64; on the CPU where its device has no float64."""
    if widest_type(loaded.device) is torch.float64:
        return cast(loaded, "float64")
    network = copy.deepcopy(loaded.network).cpu().double()
    copied = replace(wrap(network, loaded.tokenizer, name=loaded.name), pooling=loaded.pooling)
    return copied if loaded.whole is None else copied.only(loaded.stacks[0])


def _checked(loaded: LoadedModel, parts: Parts) -> Parts:
    """Refuse parts that do not add up to the output."""
    worst = float(parts.error.max())
    if not worst <= TOLERANCE:
        raise ValidationFailedError(
            f"The parts of {loaded.name} do not add up to its output (they are off by {worst:.1e} "
            f"of the sum of absolute parts, tolerance {TOLERANCE:.0e}), so nothing is reported: "
            "something behind the layers of this model is not elementwise or a norm."
        )
    return parts


@dataclass(frozen=True)
class Removed:
    """Outputs minus outputs without each head, (examples, n_layers, n_heads)."""

    zero: Array
    mean: Array

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        examples: Sequence[Example],
        heads: Sequence[Place],
        means: MeanZ,
        tell: Tell,
    ) -> Removed:
        """Run every example without each head in turn."""
        sets: list[tuple[Place, ...]] = [(), *((place,) for place in heads)]
        shape = (len(examples), loaded.n_layers, loaded.n_heads)
        found = {"zero": np.zeros(shape), "mean": np.zeros(shape)}
        rows, places = (list(x) for x in zip(*heads, strict=True))
        for i, example in enumerate(examples):
            versions = Versions(loaded, example)
            for name, left in (("zero", None), ("mean", means)):
                whole, *without = versions.values(sets, left)
                found[name][i, rows, places] = whole - np.array(without)
            tell("heads removed", i + 1, len(examples))
        return cls(**found)


def _mean(values: Array) -> Estimate:
    """Return the mean over examples with its Student's t interval; one example has none."""
    n = len(values)
    if n == 1:
        return Estimate(float(values[0]))
    half = t_half_width(values.std(ddof=1) / np.sqrt(n), np.array(n))
    return Estimate.around(float(values.mean()), finite(float(half)))


def writes(loaded: LoadedModel, site: AttentionSite) -> bool:
    """Whether a site writes to the residual stream that is taken apart: else it has no part."""
    return site.stack != "encoder" or len(loaded.stacks) == 1


def _sums(loaded: LoadedModel, parts: Parts, kind: str) -> tuple[PartSum, ...]:
    stacks = {"heads": loaded.stacks}
    if kind == "target":
        stacks = {"self-attention": ("decoder",), "cross-attention": ("cross",)}
    rows = {n: [s.row for s in loaded.sites if s.stack in own] for n, own in stacks.items()}
    return (
        *(PartSum(name, _mean(parts.heads[:, own].sum((1, 2)))) for name, own in rows.items()),
        PartSum("feed-forward", _mean(parts.feed_forward.sum(1))),
        PartSum("embeddings", _mean(parts.embeddings)),
        PartSum("biases", _mean(parts.biases)),
    )


def _agreement(first: Array, second: Array, heads: Sequence[Place]) -> float | None:
    """Return Spearman's correlation over heads of two means over examples."""
    if len(heads) < 3:
        return None
    rows, places = (list(x) for x in zip(*heads, strict=True))
    x, y = (table.mean(0)[rows, places] for table in (first, second))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return value_of(spearman, {"similarity": x, "gold": y}) / 100


def _of_layer(
    parts: Parts, chosen: Sequence[int], removed: Removed, heads: Sequence[Place]
) -> Iterator[float | None]:
    """Yield one layer's correlation with removal: of direct parts, and with lengths counted."""
    for table in (parts.heads, parts.first_order):
        yield None if table is None else _agreement(table[chosen], removed.zero, heads)


def _roles(loaded: LoadedModel, classified: object) -> dict[Place, str]:
    if classified is None:
        return {}
    known = find_roles(loaded, classified)  # type: ignore[arg-type]
    return {place: head.primary or "none" for place, head in known.by_place.items()}


def _heads(
    loaded: LoadedModel,
    heads: Sequence[Place],
    parts: Parts,
    removed: Removed,
    primary: dict[Place, str],
) -> Iterator[AttributedHead]:
    for row, place in heads:
        site = loaded.sites[row]
        yield AttributedHead(
            site.layer,
            site.head_ids[place],
            direct=_mean(parts.heads[:, row, place]) if writes(loaded, site) else UNKNOWN,
            first_order=UNKNOWN
            if parts.first_order is None
            else _mean(parts.first_order[:, row, place]),
            removed=_mean(removed.zero[:, row, place]),
            removed_mean=_mean(removed.mean[:, row, place]),
            role=primary.get((row, place), ""),
            stack=site.stack,
        )


def _groups(
    loaded: LoadedModel,
    heads: Sequence[Place],
    parts: Parts,
    removed: Removed,
    primary: dict[Place, str],
) -> Iterator[HeadGroup]:
    members: dict[str, list[Place]] = {}
    for row, place in heads:
        site = loaded.sites[row]
        name = primary.get((row, place)) or layer_name(site.layer, site.stack)
        members.setdefault(name, []).append((row, place))
    for name, group in members.items():
        rows, places = (list(x) for x in zip(*group, strict=True))
        written = [(r, p) for r, p in group if writes(loaded, loaded.sites[r])]
        direct = UNKNOWN
        if written:
            rows_, places_ = (list(x) for x in zip(*written, strict=True))
            direct = _mean(parts.heads[:, rows_, places_].sum(-1))
        effect = _mean(removed.zero[:, rows, places].mean(-1))
        yield HeadGroup(name, len(group), direct, effect)


# --- one example by token -------------------------------------------------------------------------


def _tokens(exact: LoadedModel, stream: Anatomy, opened: Opened) -> Iterator[AttributedToken]:
    example = opened.examples[0]
    found = measure_tokens(exact, stream, example)
    forward = found.feed_forward.sum(1)
    if example.kind == "target":
        row = example.pair
        cross = [site.row for site in exact.sites if site.stack == "cross"]
        own = [site.row for site in exact.sites if site.stack == "decoder"]
        nothing = np.zeros((1, len(row)))
        read = found.heads.sum(2)[0]
        texts = [
            (row.ids, row.content, read[cross].sum(0), nothing[0], nothing[0]),
            (
                row.decoder_ids,
                row.decoder_content,
                read[own].sum(0),
                forward[0],
                found.embeddings[0],
            ),
        ]
    else:
        by_head = found.heads.sum((1, 2))
        texts = [
            (row.ids, row.content, by_head[i], forward[i], found.embeddings[i])
            for i, row in enumerate(example.rows[: len(by_head)])
        ]
    for text, (ids, content, heads, feed_forward, embeddings) in enumerate(texts):
        for position, name in enumerate(_names(exact, ids)):
            yield AttributedToken(
                text,
                position,
                name,
                position not in content,
                heads=float(heads[position]),
                feed_forward=float(feed_forward[position]),
                embeddings=float(embeddings[position]),
            )


def _pairs(exact: LoadedModel, stream: Anatomy, opened: Opened) -> TokenPairs | None:
    example = opened.examples[0]
    table = measure_tokens(exact, stream, example).table
    if table is None:
        return None
    output = measure_parts(exact, stream, [example]).output[0]
    sides = [row.ids for row in example.rows[:2]]
    if example.kind == "target":
        places = list(example.positions)
        sides = [tuple(example.pair.labels[i] for i in places), example.pair.ids]
        table = table[places]
    rows, columns = (_names(exact, ids) for ids in sides)
    values = tuple(tuple(map(float, row)) for row in table)
    return TokenPairs(rows, columns, values, float(output - table.sum()))


def _names(loaded: LoadedModel, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, loaded.tokenizer.convert_ids_to_tokens(list(ids))))


# --- sets of heads that reverse it ----------------------------------------------------------------


def _reversal(
    loaded: LoadedModel, opened: Opened, heads: Sequence[Place], options: AttributeOptions
) -> Reversal | None:
    """Search the heads whose removal reverses the comparison, or changes the prediction."""
    if not opened.searched:
        return None
    own = opened.searched[0]
    swapped = own.kind == "cosine" and float(Versions(loaded, own).margins([()])[0]) < 0
    searched = [_forward(loaded, example) for example in opened.searched]
    versions, total = Versions(loaded, searched[0]), len(searched)
    found = search(versions, heads, options.most)
    options.tell("search", 1, total)
    size, reversed_ = len(found.places), 0
    if size:
        reversed_ = random_reversals(versions, heads, size, options.draws, options.seed)
    others = []
    for i, example in enumerate(searched[1:], 2):
        other = search(Versions(loaded, example), heads, options.most)
        size = len(other.places)
        others.append(OtherSearch(other.margins[0], size if other.reversed else None))
        options.tell("search", i, total)
    return Reversal(
        question="nearer" if own.kind == "cosine" else "predicted",
        swapped=swapped,
        heads=tuple(_name(loaded, place) for place in found.places),
        margins=found.margins,
        found=found.reversed,
        most=options.most,
        random_reversed=reversed_,
        draws=options.draws,
        others=tuple(others),
    )


def _forward(loaded: LoadedModel, example: Example) -> Example:
    """Put the nearer text second."""
    if example.kind != "cosine" or float(Versions(loaded, example).margins([()])[0]) >= 0:
        return example
    first, second, third = example.rows
    return replace(example, rows=(first, third, second))


def _name(loaded: LoadedModel, place: Place) -> str:
    site = loaded.sites[place[0]]
    return head_name(site.layer, site.head_ids[place[1]], site.stack)


# --- random weights -------------------------------------------------------------------------------


def _control(
    loaded: LoadedModel,
    opened: Opened,
    heads: Sequence[Place],
    parts: Parts,
    options: AttributeOptions,
) -> AttributeControl:
    """Measure the same examples with random weights under the same task head."""
    twin = random_twin(loaded, options.seed)
    if loaded.network is not loaded.model:
        network = copy.deepcopy(loaded.network)
        setattr(network, network.base_model_prefix, twin.model)
        twin = replace(wrap(network, loaded.tokenizer, name=twin.name), pooling=loaded.pooling)
    exact = _exact(twin)
    found = _checked(exact, measure_parts(exact, find_stream(exact), opened.examples))
    every = [(site.row, i) for site in loaded.sites for i in range(site.n_heads)]
    chosen = spread(len(opened.examples), options.removals)
    means = mean_outputs(twin, opened.calibration_rows)
    examples = [opened.examples[i] for i in chosen]
    removed = Removed.of(twin, examples, every, means, lambda *_: None)
    options.tell("control", 1, 1)
    return AttributeControl(
        output=_mean(found.output),
        parts=_sums(loaded, found, opened.kind),
        examples=len(opened.examples),
        agreement=_agreement(parts.heads, found.heads, heads),
        spearman=_agreement(found.heads[chosen], removed.zero, heads),
        seed=options.seed,
    )
