"""From the pattern to what attention adds: z, and the mixing of all heads by W_O.

A step is what it measures of a :class:`Trace` (``trace.run`` is the model's own run of a sentence,
``trace.ours`` what headscope computes) and the sentences that say what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headscope.analyses.explain.measure import mean_length, rounded
from headscope.analyses.explain.result import ExplainResult, ExplainStep
from headscope.analyses.explain.steps.step import Measured, Numbers, Step, Trace
from headscope.analyses.explain.words import percent
from headscope.core.heads import head_name
from headscope.core.widest import widest

# --- 8: z -----------------------------------------------------------------------------------------


def _measure_z(trace: Trace) -> Measured:
    site = trace.run.site
    z = trace.ours.z
    model_z = trace.run.record.z  # what enters W_O, (1, pos, n_heads * d_head or more)
    if model_z is not None:
        model_z = site.by_head(model_z[..., : site.n_heads * site.d_head])
    return Measured(
        numbers={"length": mean_length(z[trace.head])},
        matrices=[trace.matrix("z", z[trace.head])],
        checks=[trace.check("z of all heads", z, model_z)],
    )


def _words_of_z(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield (
        "Each token's row of the pattern weighs the values of all tokens: their mean, weighted, is "
        f"its z of {result.d_head} numbers (mean length {step.numbers['length']:.2f})."
    )


Z = Step(
    key="z",
    title="Head output z",
    formula="z = pattern v",
    measure=_measure_z,
    words=_words_of_z,
)


# --- 9: concatenate, and mix by W_O ---------------------------------------------------------------


def _measure_mix(trace: Trace) -> Measured:
    """Show that z of all heads times W_O is the sum of each head's z W_O, and what each head adds.

    A head's *share* of the output is the length of its projection on it, ``<head_output, out> /
    ||out||^2`` over all tokens. Shares add up to 1; a head that works against the others has a
    negative one. Its *size* is ``||head_output|| / ||out||``.
    """
    ours = trace.ours
    site = trace.run.site
    # What is added besides the heads, (pos, d_model) each.
    beside_heads = {"b_O": ours.weights.b_O.expand_as(ours.out)}
    if ours.convolved is not None:
        beside_heads["beside attention"] = ours.convolved

    # The share and the size of everything that is added up.
    others = torch.stack(list(beside_heads.values()))
    added = widest(torch.cat([ours.head_outputs, others]))  # (heads and others, pos, d_model)
    out = widest(ours.out)
    share = (added * out).sum((-1, -2)) / out.square().sum()
    size = added.norm(dim=(-1, -2)) / out.norm()
    names = [head_name(site.layer, head, site.stack) for head in site.head_ids]
    numbers: Numbers = {
        "share": rounded(share[trace.head]),
        "even_share": rounded(1 / site.n_heads),
    }
    share_and_size = torch.stack([share, size], dim=1)
    matrices = [
        trace.matrix("heads", share_and_size, ("share", "size"), rows=[*names, *beside_heads]),
        trace.matrix("z W_O", ours.head_outputs[trace.head]),
        trace.matrix("output", ours.out),
    ]

    # All heads side by side, multiplied once.
    z_side_by_side = ours.z.transpose(0, 1).flatten(1)  # (pos, n_heads * d_head)
    W_O = ours.weights.W_O.flatten(0, 1)  # (n_heads * d_head, d_model)
    at_once = z_side_by_side @ W_O + sum(beside_heads.values())
    model_out = trace.run.record.out
    checks = [
        trace.check("sum over heads, and b_O", ours.out, model_out),
        trace.check("heads side by side, times W_O once", at_once, model_out),
    ]
    return Measured(numbers, matrices, checks)


def _words_of_mix(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    """Say what W_O does, and what share of the output the head makes up."""
    numbers = step.numbers
    width = result.n_heads * result.d_head
    shares = {name: row[0] for name, row in step.matrix("heads").named_rows()}
    yield (
        f"The heads' z side by side are {width} numbers for each token; W_O mixes them into "
        f"{result.d_model}. Multiplying head by head and adding gives the same, so every head "
        "writes to all numbers of the output: none has a part of its own."
    )
    yield (
        f"{result.name} makes up {percent(numbers['share'])} of the output (evenly "
        f"{percent(numbers['even_share'])}), b_O {percent(shares.get('b_O') or 0.0)}. Shares are "
        "projections on the output and add up to 100%; below 0 a head works against the others."
    )
    if "beside attention" in shares:
        yield "This family sends a convolution through W_O as well, beside the heads."


MIX = Step(
    key="mix",
    title="Concatenate, and mix by W_O",
    formula="output = [z of head 0 | z of head 1 | ...] W_O + b_O = sum of z W_O + b_O",
    measure=_measure_mix,
    words=_words_of_mix,
)
