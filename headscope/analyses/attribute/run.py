"""``headscope attribute``: which heads made this output, and what is it without them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.examples import Opened, open_examples
from headscope.analyses.attribute.faithfulness import judge_rankings
from headscope.analyses.attribute.measure import (
    TOLERANCE,
    Example,
    Parts,
    measure_parts,
    measure_tokens,
    spread,
)
from headscope.analyses.attribute.removal import (
    HeadIndex,
    Replacement,
    donors,
    mean_outputs,
    remove_each,
)
from headscope.analyses.attribute.result import (
    AttributeControl,
    AttributedHead,
    AttributedLayer,
    AttributedToken,
    AttributeResult,
    HeadGroup,
    PartSum,
    SumCheck,
    TokenPairs,
)
from headscope.analyses.attribute.reversal import find_reversal, searched
from headscope.analyses.classify.known_roles import classification_of, find_roles
from headscope.core.accumulator import Array
from headscope.core.errors import UnsupportedModelError
from headscope.core.heads import layer_name
from headscope.core.progress import Progress, silent
from headscope.core.rounding import above
from headscope.core.serialise import SCHEMA
from headscope.core.widest import widest_type
from headscope.data.readable_pieces import readable_pieces
from headscope.models.anatomy.layers import Anatomy
from headscope.models.anatomy.residual import find_stream
from headscope.models.run.head_outputs import head_outputs
from headscope.models.run.loaded import LoadedModel, wrap
from headscope.models.surgery.copies import cast, random_twin
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid
from headscope.stats.estimate import JOINTLY_UNKNOWN, UNKNOWN, Estimate, JointEstimate
from headscope.stats.metrics import spearman, value_of
from headscope.stats.statistics import joint_mean, t_half_width
from headscope.tasks.units import parse_heads

#: Heads of one output that are resampled too: those whose removal changes it most. A run that
#: judges rankings resamples all.
RESAMPLED = 16


def run(model: Model, options: AttributeOptions) -> AttributeResult:
    """Take one output apart, or many, and remove every head."""
    seed = options.seed
    progress = options.tell
    task = "mlm" if options.of == "token" else None
    loaded = open_for_tasks(model, task=task, **options.loading)
    need_tokenizer(loaded, "attribute")
    loaded, opened = open_examples(loaded, options)
    validation = require_valid(loaded, options.validate)
    heads = [(site.row, i) for site in loaded.sites for i in range(site.n_heads)]
    if not heads:
        raise UnsupportedModelError(f"{loaded.name} has no attention head that headscope knows.")
    of_sites = [(loaded.sites[row], i) for row, i in heads]
    names = [(site.stack, site.layer, site.head_ids[i]) for site, i in of_sites]
    circuit: list[int] = []  # Where the heads that are known to make the output stand among all
    if options.circuit is not None:
        numbers = {(site.stack, site.layer): site.head_ids for site in loaded.sites}
        circuit = [names.index(head) for head in parse_heads(options.circuit, numbers)]
    to_reverse = searched(loaded, opened.examples[0], options)
    classified = classification_of(loaded, options.roles, None)
    roles: dict[HeadIndex, str] = {}
    if classified is not None:
        known = find_roles(loaded, classified)
        roles = {head: result.primary or "none" for head, result in known.by_place.items()}

    exact = _exact(loaded)
    anatomy = find_stream(exact)
    # Only these write to the residual stream that is taken apart, and so have a direct part.
    rows = sorted(site.row for layer in anatomy.layers for site in layer.sites)
    direct = [j for j, (row, _) in enumerate(heads) if row in rows]
    examples = opened.examples
    shuffled_examples = opened.shuffled
    n = len(examples)
    total = len(examples) + len(shuffled_examples)
    step = partial(progress, "parts", total=total)
    parts = measure_parts(exact, anatomy, examples, step)
    shuffled = measure_parts(exact, anatomy, shuffled_examples, lambda done: step(n + done))
    tokens, pairs = _by_token(exact, anatomy, examples[0]) if options.tokens else ((), None)
    del exact, anatomy  # twice as large as the model itself, which alone loses heads
    means = mean_outputs(loaded, opened.calibration_rows)
    chosen = spread(n, options.removals)
    removed_from = [examples[i] for i in chosen]
    ways: dict[str, list[Replacement | None]] = {"removed": [None], "removed_mean": [means]}
    # So many draws of each head, or more, over all examples
    drawn = donors(loaded, opened.calibration_rows, seed)
    draws = [drawn(number) for number in range(-(-options.resamples // len(chosen)))]
    if draws and options.judges:
        ways["resampled"] = [*draws]
    effects = remove_each(loaded, removed_from, heads, ways, progress)
    if draws and not options.judges:  # no ranking needs every head
        sizes = np.abs([effects["removed"], effects["removed_mean"]]).max((0, 1))
        largest = np.argsort(-sizes)[:RESAMPLED]
        effects["resampled"] = np.full_like(effects["removed"], np.nan)
        effects["resampled"][:, largest] = remove_each(
            loaded, removed_from, [heads[j] for j in largest], {"resampled": draws}, progress
        )["resampled"]
    at = (slice(None), *np.array(heads).T)
    zero = effects["removed"]
    of_heads = parts.heads[at]
    written = {"direct": of_heads}
    if parts.first_order is not None:
        written["first_order"] = parts.first_order[at]
    faithfulness = None
    if options.judges:
        rankings = {name: table[chosen] for name, table in written.items()} | effects
        faithfulness = judge_rankings(
            loaded,
            removed_from,
            heads,
            rankings,
            means,
            progress,
            n_random=options.rankings,
            circuit=circuit,
            seed=seed,
        )
    reversal = control = None
    if to_reverse is not None:
        calibration = opened.calibration_rows
        reversal = find_reversal(
            loaded, to_reverse, calibration, heads, means, draws, options, progress
        )
    if options.control:
        control = _control(loaded, opened, chosen, heads, direct, of_heads, seed, progress)
    tables = {**written, **effects, "removed_size": np.abs(zero)}
    unknown = np.full_like(of_heads, np.nan)

    def averages(j: int) -> dict[str, JointEstimate]:
        """Average every number of a head over examples."""
        known = {**tables, "direct": of_heads if j in direct else unknown}
        return {name: _joint(table[:, j], len(heads)) for name, table in known.items()}

    def agreement_in_layer(row: int) -> Iterator[float | None]:
        """Yield a layer's correlation with removal: of direct parts, and with lengths counted."""
        in_layer = [j for j in direct if heads[j][0] == row]
        return (_agreement(table[chosen], zero, in_layer) for table in written.values())

    return AttributeResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded, command=options.command, seed=seed, data=opened.data, warnings=opened.notes
        ),
        validation=validation,
        kind=opened.kind,
        texts=opened.texts,
        label=opened.label,
        outputs=head_outputs(loaded).value if opened.kind == "class" else "",
        examples=n,
        skipped=opened.skipped,
        removals=len(chosen),
        output=_mean(parts.output),
        check=SumCheck(float(parts.error.max()), TOLERANCE),
        parts=_sums(loaded, parts, opened.kind),
        heads=tuple(
            AttributedHead(
                site.layer,
                site.head_ids[i],
                **averages(j),
                role=roles.get(heads[j], ""),
                stack=site.stack,
            )
            for j, (site, i) in enumerate(of_sites)
        ),
        layers=tuple(
            AttributedLayer(
                site.layer,
                _mean(parts.heads[:, site.row].sum(-1)),
                UNKNOWN if site.stack == "cross" else _mean(parts.feed_forward[:, site.row]),
                site.stack,
                *agreement_in_layer(site.row),
            )
            for site in (loaded.sites[row] for row in rows)
        ),
        groups=tuple(_groups(loaded, heads, direct, of_heads, zero, roles)),
        spearman=_agreement(of_heads[chosen], zero, direct),
        spearman_mean=_agreement(of_heads[chosen], effects["removed_mean"], direct),
        shuffled=AttributeControl(
            output=_mean(shuffled.output),
            parts=_sums(loaded, shuffled, opened.kind),
            examples=len(shuffled_examples),
            agreement=_agreement(of_heads, shuffled.heads[at], direct),
        ),
        calibration=opened.calibration,
        tokens=tokens,
        pairs=pairs,
        reversal=reversal,
        control=control,
        faithfulness=faithfulness,
    )


def _exact(loaded: LoadedModel) -> LoadedModel:
    """Return the model in float64; on the CPU where its device has no float64."""
    if widest_type(loaded.device) is torch.float64:
        return cast(loaded, "float64")
    network = copy.deepcopy(loaded.network).cpu().double()
    copied = replace(wrap(network, loaded.tokenizer, name=loaded.name), pooling=loaded.pooling)
    return copied if loaded.whole is None else copied.only(loaded.stacks[0])


# --- means over examples --------------------------------------------------------------------------


def _joint(values: Array, of: int) -> JointEstimate:
    """Return one of ``of`` means over examples with Student's t intervals; few have none."""
    n = len(values)
    if np.isnan(values).any():
        return JOINTLY_UNKNOWN
    error = values.std(ddof=1) / np.sqrt(n) if n > 1 else np.inf
    half = [float(t_half_width(error, n))]
    return joint_mean([float(values.mean())], half, half, n_means=of, n=n)


def _mean(values: Array) -> Estimate:
    """Return the mean over examples with its Student's t interval; few have none."""
    mean = _joint(values, 1)
    return Estimate(mean.value, mean.low, mean.high)


def _agreement(first: Array, second: Array, columns: Sequence[int]) -> float | None:
    """Return Spearman's correlation over some heads of two means over examples.

    None for fewer than three heads, and where numbers differ by rounding alone.
    """
    if len(columns) < 3:
        return None
    x, y = (table.mean(0)[columns] for table in (first, second))
    if not (above(x.max(), x.min()) and above(y.max(), y.min())):
        return None
    return value_of(spearman, {"similarity": x, "gold": y}) / 100


def _sums(loaded: LoadedModel, parts: Parts, kind: str) -> tuple[PartSum, ...]:
    stacks = {"heads": loaded.stacks}
    if kind == "target":
        stacks = {"self-attention": ("decoder",), "cross-attention": ("cross",)}
    rows = {n: [s.row for s in loaded.sites if s.stack in of] for n, of in stacks.items()}
    return (
        *(PartSum(name, _mean(parts.heads[:, of].sum((1, 2)))) for name, of in rows.items()),
        PartSum("feed-forward", _mean(parts.feed_forward.sum(1))),
        PartSum("embeddings", _mean(parts.embeddings)),
        PartSum("biases", _mean(parts.biases)),
    )


def _groups(
    loaded: LoadedModel,
    heads: Sequence[HeadIndex],
    direct: Sequence[int],
    of_heads: Array,
    removed: Array,
    roles: dict[HeadIndex, str],
) -> Iterator[HeadGroup]:
    members: dict[str, list[int]] = {}
    for j, head in enumerate(heads):
        site = loaded.sites[head[0]]
        name = roles.get(head) or layer_name(site.layer, site.stack)
        members.setdefault(name, []).append(j)
    for name, group in members.items():
        writing = [j for j in group if j in direct]
        together = _mean(of_heads[:, writing].sum(-1)) if writing else UNKNOWN
        yield HeadGroup(name, len(group), together, _mean(removed[:, group].mean(-1)))


# --- one example by token -------------------------------------------------------------------------


def _by_token(
    exact: LoadedModel, anatomy: Anatomy, example: Example
) -> tuple[tuple[AttributedToken, ...], TokenPairs | None]:
    """Split one output by the tokens that its parts were read from, and by pairs of them."""
    output, parts, table = measure_tokens(exact, anatomy, example)
    heads, feed_forward, embeddings = (
        tensor.cpu().numpy() for tensor in (parts.heads, parts.feed_forward, parts.embeddings)
    )
    feed_forward = feed_forward.sum(1)
    if example.kind == "target":
        pair = example.pair
        nothing = np.zeros(len(pair))
        read = heads.sum(2)[0]
        by_source, by_target = (
            read[[site.row for site in exact.sites if site.stack == stack]].sum(0)
            for stack in ("cross", "decoder")
        )
        texts = [
            (pair.ids, pair.content, by_source, nothing, nothing),
            (pair.decoder_ids, pair.decoder_content, by_target, feed_forward[0], embeddings[0]),
        ]
    else:
        by_row = zip(example.rows, heads.sum((1, 2)), feed_forward, embeddings, strict=False)
        texts = [(row.ids, row.content, *parts_of_row) for row, *parts_of_row in by_row]

    tokens = tuple(
        AttributedToken(text, i, name, i not in content, *(float(column[i]) for column in columns))
        for text, (ids, content, *columns) in enumerate(texts)
        for i, name in enumerate(readable_pieces(exact.tokenizer, ids))
    )
    if table is None:
        return tokens, None
    sides = [row.ids for row in example.rows[:2]]
    if example.kind == "target":
        table = table[list(example.positions)]
        sides = [tuple(example.pair.labels[i] for i in example.positions), example.pair.ids]
    values = tuple(tuple(map(float, row)) for row in table)
    rows, columns = (readable_pieces(exact.tokenizer, ids) for ids in sides)
    return tokens, TokenPairs(rows, columns, values, float(output - table.sum()))


# --- random weights -------------------------------------------------------------------------------


def _control(
    loaded: LoadedModel,
    opened: Opened,
    chosen: Sequence[int],
    heads: Sequence[HeadIndex],
    direct: Sequence[int],
    of_heads: Array,
    seed: int,
    progress: Progress,
) -> AttributeControl:
    """Measure the same examples with random weights under the same task head."""
    twin = random_twin(loaded, seed)
    if loaded.network is not loaded.model:
        network = copy.deepcopy(loaded.network)
        setattr(network, network.base_model_prefix, twin.model)
        twin = replace(wrap(network, loaded.tokenizer, name=twin.name), pooling=loaded.pooling)
    exact = _exact(twin)
    random = measure_parts(exact, find_stream(exact), opened.examples)
    of_random = random.heads[(slice(None), *np.array(heads).T)]
    examples = [opened.examples[i] for i in chosen]
    effects = remove_each(twin, examples, heads, {"removed": [None]}, silent)
    progress("control", 1, 1)
    return AttributeControl(
        output=_mean(random.output),
        parts=_sums(loaded, random, opened.kind),
        examples=len(opened.examples),
        agreement=_agreement(of_heads, of_random, direct),
        spearman=_agreement(of_random[chosen], effects["removed"], direct),
    )
