"""From the sentence to the queries, keys and values of every head: the first four steps.

A :class:`Step` has two functions. ``measure`` takes a :class:`Trace` and returns numbers, matrices
and checks; ``words`` yields sentences that say what they mean. A trace is one sentence in one layer
and head: ``trace.run`` is the model's own run, ``trace.ours`` what headscope computes;
``trace.matrix(name, values)`` makes a matrix of the result, whose rows are the tokens, and
``trace.check(what, ours, model)`` compares a tensor with the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headscope.analyses.explain.measure import attention_flops, rounded
from headscope.analyses.explain.result import ExplainResult, ExplainStep, Matrix
from headscope.analyses.explain.steps.step import Measured, Numbers, Step, Trace
from headscope.analyses.explain.words import counted
from headscope.core.safe_text import visible
from headscope.core.widest import widest
from headscope.models.anatomy.explain import SentenceRun
from headscope.show.cells import joined, plural

CORNER = 8  # Rows and columns that are kept of a learned matrix.


# --- 1: the input ---------------------------------------------------------------------------------


def _measure_input(trace: Trace) -> Measured:
    return Measured(numbers={}, matrices=[trace.matrix("x", trace.x)], checks=[])


def _words_of_input(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    n_tokens = len(result.tokens)
    source = "the embeddings" if result.layer == 0 else f"what layer {result.layer - 1} returns"
    if result.layer_norm == "pre":
        source += ", after a LayerNorm (pre-LN: it stands before each sublayer)"
    yield (
        f"The sentence becomes {n_tokens} {plural(n_tokens, 'token')}, and each token a row of "
        f"{result.d_model} numbers: x has shape {n_tokens} x {result.d_model}. Layer "
        f"{result.layer} reads {source}."
    )
    added: list[str] = []  # special tokens, each once
    for token, is_special in zip(result.tokens, result.special, strict=True):
        if is_special and visible(token) not in added:
            added.append(visible(token))
    if added:
        yield f"The tokenizer added {joined(added)}."


INPUT = Step(
    key="input",
    title="Input: one row of numbers per token",
    formula="x",
    measure=_measure_input,
    words=_words_of_input,
)


# --- 2: the learned matrices ----------------------------------------------------------------------


def _measure_weights(trace: Trace) -> Measured:
    """Keep the corner and the norm of every learned matrix of the head, and count the entries."""
    weights = trace.ours.weights
    head = trace.head
    maps = trace.run.site.projections
    learned = {
        "W_Q": weights.W_Q[head],
        "W_K": weights.W_K[head],
        "W_V": weights.W_V[head],
        "W_O": weights.W_O[head],
        "b_Q": weights.b_Q[head],
        "b_K": weights.b_K[head],
        "b_V": weights.b_V[head],
        "b_O": weights.b_O,
    }
    maps_with_bias = [m for m in (maps.q, maps.k, maps.v, maps.out) if m.bias is not None]
    rows_that_read = (learned["W_Q"] != 0).any(1)  # (d_model,): numbers of a token that it reads
    numbers: Numbers = {
        "parameters_head": sum(learned[name].numel() for name in ("W_Q", "W_K", "W_V", "W_O")),
        "parameters_layer": _stored_parameters(trace.run),
        "biases": len(maps_with_bias),
        "reads": int(rows_that_read.sum()),
    }
    matrices = []
    for name, tensor in learned.items():
        numbers[f"norm_{name}"] = rounded(widest(tensor).norm())
        matrix = tensor if tensor.dim() == 2 else tensor[None]  # a bias is a matrix of one row
        corner = trace.matrix(name, matrix[:CORNER, :CORNER], rows=())
        whole_shape = tuple(matrix.shape)  # of which ``values`` are the corner
        matrices.append(
            Matrix(name=name, shape=whole_shape, rows=(), columns=(), values=corner.values)
        )
    return Measured(numbers=numbers, matrices=matrices, checks=[])


def _stored_parameters(run: SentenceRun) -> int:
    """Count the stored entries of W_Q, W_K, W_V and W_O, without biases."""
    maps = run.site.projections
    return sum(m.stored_entries for m in (maps.q, maps.k, maps.v, maps.out))


def _words_of_weights(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    """Say how large the matrices are, and that a head reads all numbers of a token."""
    numbers = step.numbers
    inputs, width = step.matrix("W_Q").shape
    text = (
        f"Learned once, the same for every sentence. This head: W_Q {inputs} x {width}, "
        f"{counted(numbers['parameters_head'])} numbers with W_K, W_V and W_O; all "
        f"{result.n_heads} heads of layer {result.layer}: "
        f"{counted(numbers['parameters_layer'])}."
    )
    if not numbers["biases"]:
        text += " This model has no biases here: every b is zero."
    yield text
    if numbers["reads"] == inputs:
        yield (
            f'Often said: "each head sees a slice of the embedding". No: W_Q has {inputs} rows, so '
            f"the head reads all {inputs} numbers of each token. Only q, k and v are narrow."
        )
    else:
        yield (
            "An exception: the maps of this family are cut into groups, so this head reads only "
            f"{counted(numbers['reads'])} of the {inputs} numbers of a token. Heads usually read "
            "all."
        )


WEIGHTS = Step(
    key="weights",
    title="Learned matrices",
    formula="W_Q, W_K, W_V, W_O; b_Q, b_K, b_V, b_O",
    measure=_measure_weights,
    words=_words_of_weights,
)


# --- 3: queries, keys and values ------------------------------------------------------------------


def _measure_qkv(trace: Trace) -> Measured:
    """Compare queries, keys and values of all heads with the model's own, before any rotation.

    Some families rotate q and k by an angle that grows with the position (``trace.ours.placed``).
    """
    head = trace.head
    heads = trace.ours.heads
    matrices = [
        trace.matrix("q", heads.q[head]),
        trace.matrix("k", heads.k[head]),
        trace.matrix("v", heads.v[head]),
    ]
    numbers: Numbers = {}
    if trace.ours.rotated:
        numbers["normed"] = int(trace.ours.normed)
        placed = trace.ours.placed
        matrices.append(trace.matrix("q rotated", placed.q[head]))
        matrices.append(trace.matrix("k rotated", placed.k[head]))

    # The model's own. Several heads may share one stored head of keys and values: for four heads
    # that share two, ``stored_head`` is [0, 0, 1, 1].
    q, k, v = trace.run.heads
    site = trace.run.site
    stored_head = site.layout.shared_by(site.module, site.head_ids)
    if stored_head is not None and k.shape[1] < q.shape[1]:
        k = k[:, stored_head]
        v = v[:, stored_head]
    checks = [
        trace.check("q of all heads", heads.q, q),
        trace.check("k of all heads", heads.k, k),
        trace.check("v of all heads", heads.v, v),
    ]
    return Measured(numbers=numbers, matrices=matrices, checks=checks)


def _words_of_qkv(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield (
        "A query says what a token looks for, a key what it offers to be found by, a value what it "
        f"hands over: three rows of {result.d_head} numbers for each token."
    )
    if result.positions == "rotated":
        norms = ""
        if step.numbers["normed"]:
            norms = "norms q and k (divides them by their size, times a learned gain), and then "
        yield (
            f"This family then {norms}turns q and k by an angle that grows with the position; the "
            "scores are made of the rotated ones."
        )


QKV = Step(
    key="qkv",
    title="Queries, keys and values",
    formula="q = x W_Q + b_Q    k = x W_K + b_K    v = x W_V + b_V",
    measure=_measure_qkv,
    words=_words_of_qkv,
)


# --- 4: split into heads --------------------------------------------------------------------------


def _measure_heads(trace: Trace) -> Measured:
    """Show that one wide projection cut into heads equals the projections of single heads."""
    weights = trace.ours.weights
    site = trace.run.site
    x = trace.x  # (pos, d_model)
    model = trace.run.heads

    # W_Q is (n_heads, d_model, d_head) and b_Q (n_heads, d_head).
    wide_W_Q = weights.W_Q.transpose(0, 1).flatten(1)  # [d_model, n_heads * d_head], side by side
    wide_q = x @ wide_W_Q + weights.b_Q.flatten()  # [pos, n_heads * d_head]
    cut_q = site.by_head(wide_q[None])[0]  # [n_heads, pos, d_head]
    each_q = torch.stack([x @ weights.W_Q[h] + weights.b_Q[h] for h in range(site.n_heads)])
    checks = [
        trace.check("one wide projection, cut into heads", cut_q, model.q),
        trace.check("each head projected alone", each_q, model.q),
    ]
    numbers: Numbers = {
        "n_heads": site.n_heads,
        "d_head": site.d_head,
        "key_heads": model.k.shape[1],
    }
    return Measured(numbers=numbers, matrices=[_cost(trace)], checks=checks)


def _cost(trace: Trace) -> Matrix:
    """Count what the sentence costs if the same width is cut into fewer or more heads.

    A row for 1 head, for as many as there are, and for twice as many; the last three columns are
    floating-point operations.
    """
    site = trace.run.site
    width = site.n_heads * site.d_head
    stored = _stored_parameters(trace.run)
    names = []
    rows = []
    for n_heads in sorted({1, site.n_heads, 2 * site.n_heads}):
        if width % n_heads == 0:
            d_head = width // n_heads
            n_tokens = len(trace.x)
            flops = attention_flops(n_tokens, stored, width, n_heads)  # for the last three columns
            counts = (n_heads, d_head, stored, *flops)
            names.append(f"{n_heads} x {d_head}")
            rows.append(tuple(map(float, counts)))
    columns = ("heads", "d_head", "parameters", "projections", "scores", "exponentials")
    return Matrix(
        name="cost",
        shape=(len(rows), len(columns)),
        rows=tuple(names),
        columns=columns,
        values=tuple(rows),
    )


def _words_of_heads(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    """Say that cutting into heads costs nothing, and which heads share keys and values."""
    width = result.n_heads * result.d_head
    key_heads = step.numbers["key_heads"]
    yield (
        f"The heads lie side by side in one matrix. x is multiplied once, and the {width} results "
        f"of each token are cut into {result.n_heads} {plural(result.n_heads, 'head')} of "
        f"{result.d_head}: the same numbers as head by head."
    )
    yield (
        f"So the number of heads costs nothing: {width} numbers cut into 1 head or into "
        f"{result.n_heads} need as many parameters and multiplications. Only the exponentials of "
        "the softmax grow."
    )
    if key_heads != result.n_heads:
        yield (
            f"Here {result.n_heads} heads share {counted(key_heads)} heads of keys and values, so "
            "W_K and W_V are narrower than W_Q."
        )


HEADS = Step(
    key="heads",
    title="Split into heads",
    formula="[q of head 0 | q of head 1 | ...] = x [W_Q of head 0 | W_Q of head 1 | ...]",
    measure=_measure_heads,
    words=_words_of_heads,
)
