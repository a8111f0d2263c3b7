"""One attention layer on one sentence: every step computed on its own, next to the model's own.

All heads of a layer at once, without the axis of examples::

    products = q k^T            scores = products * scale + bias       (n_heads, query_pos, key_pos)
    pattern  = softmax(scores where allowed)
    z        = pattern v                                               (n_heads, query_pos, d_head)
    parts    = z W_O, head by head;   out = sum of parts + b_O         (query_pos, d_model)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.analyses.explain.result import ExplainStep, Matrix, StepCheck
from headscope.attention import AttentionWeights, default_scale, masked_softmax
from headscope.core.heads import head_name
from headscope.core.widest import widest
from headscope.models.anatomy.explain import AfterAttention, SentenceRun
from headscope.models.certificate.evidence import beside_heads, largest_gap
from headscope.models.layouts.maps import Heads, bias_of
from headscope.models.run.watched import gain_and_shift

CORNER = 8  # Rows and columns that are kept of a learned matrix.


# --- the mechanism --------------------------------------------------------------------------------


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * gain + shift of each token on its own."""
    gain, shift = (weight.detach().to(x.dtype) for weight in gain_and_shift(norm))
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return centred / spread * gain + shift


@dataclass(frozen=True)
class Computed:
    """Our own numbers of one layer, all heads, without the axis of examples."""

    weights: AttentionWeights
    heads: Heads  # q, k, v (n_heads, pos, d_head) as the weights make them
    placed: Heads  # the same with positions in them
    bias: Tensor | None  # (n_heads, query_pos, key_pos): what the family adds to the scores
    scale: float
    #: (n_heads, query_pos, key_pos): before the scale; with scale and bias; after mask and softmax.
    products: Tensor
    scores: Tensor
    pattern: Tensor
    z: Tensor  # (n_heads, query_pos, d_head): weighted sums of values
    convolved: Tensor | None  # (pos, d_model): what some families send through W_O besides z
    parts: Tensor  # (n_heads, pos, d_model): what each head adds
    out: Tensor  # (pos, d_model): the sum of all

    @property
    def rotated(self) -> bool:
        """Whether positions turn q and k."""
        return not torch.equal(self.placed.q, self.heads.q)


def compute(run: SentenceRun) -> Computed:
    """Compute one layer, step by step, from what it was called with and from its weights alone."""
    site = run.site
    weights = run.site.weights()
    heads = site.canonical(run.inputs, weights)
    placed = site.as_scored(heads, run.inputs)
    bias = site.bias(placed, run.inputs)
    if bias is not None:
        bias = bias.expand(len(placed.q), site.n_heads, -1, -1)[0]
    heads, placed = (Heads(*(t[0] for t in each)) for each in (heads, placed))
    products = placed.q @ placed.k.transpose(-1, -2)
    scale = default_scale(site.d_head) if site.scale is None else site.scale
    scores = products * scale if bias is None else products * scale + bias
    pattern = masked_softmax(scores, run.allowed[0])
    z = pattern @ placed.v
    parts = z @ weights.W_O
    out = parts.sum(0) + weights.b_O
    other = beside_heads(site, run.record.z)
    convolved = None if other is None else other[0]
    out = out if convolved is None else out + convolved
    steps = (products, scores, pattern, z)
    return Computed(weights, heads, placed, bias, scale, *steps, convolved, parts, out)


# --- what the numbers say -------------------------------------------------------------------------


def entropy(pattern: Tensor) -> Tensor:
    """Entropy of every row of a pattern in bits: 0 where all weight is on one key."""
    p = widest(pattern)
    return -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log2()).sum(-1)


def even_entropy(allowed: Tensor) -> float:
    """Mean entropy in bits if each query attended evenly to the keys that it may see."""
    return float(widest(allowed.sum(-1)).log2().mean())


def moved(pattern: Tensor, other: Tensor) -> Tensor:
    """Share of each row's weight that lies elsewhere in another pattern, 0 to 1."""
    return (widest(pattern) - widest(other)).abs().sum(-1) / 2


def links(pattern: Tensor, words: Tensor) -> Tensor:
    """How clearly a head links each word to one other word, and different words to different ones.

    The largest weight on a word two or more positions away, less what that word gets from all words
    on average; mean over the words. A head that looks at a neighbour, at a special token or at one
    word from everywhere scores low, however sharp it is.

    Shapes: ``pattern`` (n_heads, pos, pos), ``words`` (pos,); returns (n_heads,).
    """
    if not bool(words.any()):
        return torch.zeros(len(pattern), dtype=torch.float64)
    position = torch.arange(len(words), device=words.device)
    apart = (position[:, None] - position).abs() >= 2
    of_words = widest(pattern)[:, words]  # (n_heads, words, key_pos)
    above = (of_words - of_words.mean(1, keepdim=True)).clamp(min=0)
    return (above * (apart & words)[words]).amax(-1).mean(-1)


def attention_flops(tokens: int, parameters: int, width: int, n_heads: int) -> tuple[int, int, int]:
    """Count floating-point operations; a multiplication with its addition counts as two."""
    return 2 * tokens * parameters, 4 * tokens**2 * width, n_heads * tokens**2


def rounded(value: float | Tensor) -> float:
    """Return a number with four significant digits; a rounded zero has no sign."""
    return float(f"{float(value):.4g}") + 0.0


def _length(x: Tensor) -> float:
    """Return the mean length of the tokens' vectors."""
    return rounded(widest(x).norm(dim=-1).mean())


# --- the steps ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """One sentence, one layer, one head: what the steps are made from."""

    tokens: tuple[str, ...]  # special tokens included
    run: SentenceRun  # the model's own run of the sentence
    padded: SentenceRun | None  # the same with padding behind it; None where there is no room
    head: int  # its index among the heads that its layer has now
    tolerance: dict[str, float]  # of the certificate, by what is compared
    ours: Computed  # what headscope computes

    @property
    def x(self) -> Tensor:
        """What the layer's queries are made from, (pos, d_model)."""
        return self.run.inputs.x_q[0]

    def check(self, what: str, ours: Tensor, theirs: Tensor | None, kind: str = "out") -> StepCheck:
        """Compare a tensor with the model's own, which has an axis of one example in front.

        Where the model's own is None the difference is infinite.
        """
        every = torch.ones(1, len(ours), dtype=torch.bool, device=ours.device)
        gap = largest_gap([(ours[None], theirs, every)])
        return StepCheck(what, math.inf if gap is None else gap, self.tolerance[kind])

    def matrix(
        self,
        name: str,
        values: Tensor,
        columns: Sequence[str] = (),
        *,
        rows: Sequence[str] | None = None,
        known: Tensor | None = None,
    ) -> Matrix:
        """Keep all of a matrix, by default one row a token; None where ``known`` is False."""
        exact = values.detach().cpu().double()
        shown = torch.ones_like(exact, dtype=torch.bool) if known is None else known.cpu()
        numbers = tuple(
            tuple(rounded(v) if k else None for v, k in zip(line, ok, strict=True))
            for line, ok in zip(exact.tolist(), shown.tolist(), strict=True)
        )
        names = tuple(self.tokens if rows is None else rows)
        return Matrix(name, tuple(values.shape), names, tuple(columns), numbers)


Numbers = dict[str, float | None]
#: The content of a step: numbers, matrices and checks.
_Made = tuple[Numbers, Sequence[Matrix], Sequence[StepCheck]]


def steps(trace: Trace) -> list[ExplainStep]:
    """Make nine steps of attention, and three of what follows it where that is known."""
    makers = (_input, _weights, _qkv, _heads, _scores, _mask, _softmax, _z, _mix)
    made = [(make.__name__[1:], make(trace)) for make in makers]
    if trace.run.after is not None:
        made += _after_attention(trace, trace.run.after)
    return [
        ExplainStep(
            number,
            key,
            # Counts become floats, as a file that is read back has them.
            {name: None if value is None else float(value) for name, value in numbers.items()},
            tuple(matrices),
            tuple(checks),
        )
        for number, (key, (numbers, matrices, checks)) in enumerate(made, start=1)
    ]


def _input(trace: Trace) -> _Made:
    return {}, [trace.matrix("x", trace.x)], []


def _weights(trace: Trace) -> _Made:
    w = trace.ours.weights
    h = trace.head
    maps = trace.run.site.projections
    learned = {
        **{"W_Q": w.W_Q[h], "W_K": w.W_K[h], "W_V": w.W_V[h], "W_O": w.W_O[h]},
        **{"b_Q": w.b_Q[h], "b_K": w.b_K[h], "b_V": w.b_V[h], "b_O": w.b_O},
    }
    numbers: Numbers = {
        "parameters_head": sum(t.numel() for name, t in learned.items() if name[0] == "W"),
        "parameters_layer": _parameters(trace.run),
        "biases": sum(m.bias is not None for m in (maps.q, maps.k, maps.v, maps.out)),
        "reads": int((w.W_Q[h] != 0).any(1).sum()),
    }
    matrices = []
    for name, t in learned.items():
        numbers[f"norm_{name}"] = rounded(widest(t).norm())
        matrix = t if t.dim() == 2 else t[None]
        corner = trace.matrix(name, matrix[:CORNER, :CORNER], rows=())
        matrices.append(Matrix(name, tuple(matrix.shape), (), (), corner.values))
    return numbers, matrices, []


def _parameters(run: SentenceRun) -> int:
    """Count the stored entries of W_Q, W_K, W_V and W_O, without biases."""
    maps = run.site.projections
    return sum(m.stored_entries for m in (maps.q, maps.k, maps.v, maps.out))


def _qkv(trace: Trace) -> _Made:
    h = trace.head
    heads = trace.ours.heads
    placed = trace.ours.placed
    matrices = [trace.matrix(name, getattr(heads, name)[h]) for name in "qkv"]
    if trace.ours.rotated:
        matrices += [trace.matrix(f"{name} rotated", getattr(placed, name)[h]) for name in "qk"]
    (q, k, v) = trace.run.heads
    site = trace.run.site
    shared = site.layout.shared_by(site.module, site.head_ids)
    if shared is not None and k.shape[1] < q.shape[1]:  # heads that share keys and values
        k = k[:, shared]
        v = v[:, shared]
    checks = [
        trace.check(f"{name} of all heads", getattr(heads, name), theirs)
        for name, theirs in zip("qkv", (q, k, v), strict=True)
    ]
    return {}, matrices, checks


def _heads(trace: Trace) -> _Made:
    """One wide projection cut into heads is the projection of each head, and costs the same."""
    w = trace.ours.weights
    site = trace.run.site
    x = trace.x
    n_heads = site.n_heads
    width = site.n_heads * site.d_head
    theirs = trace.run.heads
    wide = x @ w.W_Q.transpose(0, 1).flatten(1) + w.b_Q.flatten()
    alone = torch.stack([x @ w.W_Q[h] + w.b_Q[h] for h in range(n_heads)])
    stored = _parameters(trace.run)
    names = []
    rows = []
    for heads in dict.fromkeys((1, n_heads, 2 * n_heads)):
        if width % heads == 0:
            names.append(f"{heads} x {width // heads}")
            flops = attention_flops(len(x), stored, width, heads)
            rows.append(tuple(map(float, (heads, width // heads, stored, *flops))))
    columns = ("heads", "d_head", "parameters", "projections", "scores", "exponentials")
    cost = Matrix("cost", (len(rows), len(columns)), tuple(names), columns, tuple(rows))
    numbers: Numbers = {"n_heads": n_heads, "d_head": site.d_head, "key_heads": theirs.k.shape[1]}
    checks = [
        trace.check("one wide projection, cut into heads", site.by_head(wide[None])[0], theirs.q),
        trace.check("each head projected alone", alone, theirs.q),
    ]
    return numbers, [cost], checks


def _scores(trace: Trace) -> _Made:
    ours = trace.ours
    h = trace.head
    seen = trace.run.allowed[0]
    products = ours.products[h]
    scores = ours.scores[h]
    pattern = ours.pattern[h]
    by_length = len(trace.tokens) ** -0.5
    wrong = products * by_length
    if ours.bias is not None:
        wrong = wrong + ours.bias[h]
    wrong = masked_softmax(wrong, seen)
    numbers: Numbers = {
        "scale": ours.scale,
        "root_d_head": default_scale(trace.run.site.d_head),
        "root_tokens": by_length,
        "spread_products": rounded(widest(products[seen]).std(correction=0)),
        "spread_scores": rounded(widest(scores[seen]).std(correction=0)),
        "entropy": rounded(entropy(pattern).mean()),
        "entropy_sequence_scale": rounded(entropy(wrong).mean()),
        "moved_by_sequence_scale": rounded(moved(pattern, wrong).mean()),
    }
    shown = {"q k^T": products, "scores": scores, "sequence scale": wrong}
    if ours.bias is not None:
        shown["bias"] = ours.bias[h]
    matrices = [trace.matrix(name, t, trace.tokens, known=seen) for name, t in shown.items()]
    every = ours.scores
    theirs = trace.run.record.scores
    theirs = None if theirs is None else theirs.expand_as(every[None])[..., seen]
    return numbers, matrices, [trace.check("scores of all heads", every[:, seen], theirs)]


def _mask(trace: Trace) -> _Made:
    """Show what padding changes, and what hiding later tokens (or seeing them) would change."""
    ours = trace.ours
    h = trace.head
    n = len(trace.tokens)
    later = torch.ones(n, n, dtype=torch.bool, device=trace.x.device).triu(1)
    other = masked_softmax(ours.scores[h], None if trace.run.site.causal else ~later)
    numbers: Numbers = {
        "moved_by_other_direction": rounded(moved(ours.pattern[h], other).mean()),
        "pads": 0,
    }
    direction = trace.matrix("other direction", other, trace.tokens)
    if trace.padded is None:
        return numbers, [direction], []
    padded = trace.padded
    with_pads = compute(padded)
    pads = padded.allowed.shape[-1] - n
    unmasked = masked_softmax(with_pads.scores[h])
    theirs = padded.record.pattern
    numbers |= {
        "pads": pads,
        "weight_on_pads_without_mask": rounded(widest(unmasked[:n, n:]).sum(-1).mean()),
        "weight_on_pads": rounded(widest(with_pads.pattern[h, :n, n:]).sum(-1).max()),
    }
    columns = (*trace.tokens, *["(padding)"] * pads)
    mask = trace.matrix("mask", widest(padded.allowed[0, :n]), columns)
    what = f"pattern of all heads with {pads} positions of padding"
    theirs = None if theirs is None else theirs[:, :, :n]
    check = trace.check(what, with_pads.pattern[:, :n], theirs, "pattern")
    return numbers, [mask, direction], [check]


def _softmax(trace: Trace) -> _Made:
    every = trace.ours.pattern
    pattern = widest(every[trace.head])
    columns = pattern.sum(0)
    numbers: Numbers = {
        "row_sum_error": float((pattern.sum(-1) - 1).abs().max()),
        "column_sum_low": rounded(columns.min()),
        "column_sum_high": rounded(columns.max()),
        "entropy": rounded(entropy(pattern).mean()),
        "even": rounded(even_entropy(trace.run.allowed[0])),
        "strongest": rounded(pattern.max()),
    }
    check = trace.check("pattern of all heads", every, trace.run.record.pattern, "pattern")
    return numbers, [trace.matrix("pattern", pattern, trace.tokens)], [check]


def _z(trace: Trace) -> _Made:
    z = trace.ours.z
    theirs = trace.run.record.z
    site = trace.run.site
    if theirs is not None:
        theirs = site.by_head(theirs[..., : site.n_heads * site.d_head])
    check = trace.check("z of all heads", z, theirs)
    return {"length": _length(z[trace.head])}, [trace.matrix("z", z[trace.head])], [check]


def _mix(trace: Trace) -> _Made:
    """Concatenate and multiply once, or multiply head by head and add: the same.

    The share of a part is the length of its projection on the output, ``<part, out> / ||out||^2``
    over all tokens. Shares add up to 1; a part that works against the others has a negative one.
    """
    ours = trace.ours
    site = trace.run.site
    theirs = trace.run.record.out
    parts = ours.parts
    out = ours.out
    others = {"b_O": ours.weights.b_O.expand_as(out)}
    if ours.convolved is not None:
        others["beside attention"] = ours.convolved
    added = widest(torch.cat([parts, torch.stack(list(others.values()))]))
    total = widest(out)
    share = (added * total).sum((-1, -2)) / total.square().sum()
    size = added.norm(dim=(-1, -2)) / total.norm()
    names = [*(head_name(site.layer, head, site.stack) for head in site.head_ids), *others]
    at_once = ours.z.transpose(0, 1).flatten(1) @ ours.weights.W_O.flatten(0, 1)
    at_once = at_once + sum(others.values())
    numbers: Numbers = {
        "share": rounded(share[trace.head]),
        "even_share": rounded(1 / site.n_heads),
    }
    both = torch.stack([share, size], dim=1)
    matrices = [
        trace.matrix("heads", both, ("share", "size"), rows=names),
        trace.matrix("z W_O", parts[trace.head]),
        trace.matrix("output", out),
    ]
    checks = [
        trace.check("sum over heads, and b_O", out, theirs),
        trace.check("heads side by side, times W_O once", at_once, theirs),
    ]
    return numbers, matrices, checks


def _after_attention(trace: Trace, theirs: AfterAttention) -> Iterator[tuple[str, _Made]]:
    """Follow the layer from the skip connection to its output."""
    skip = theirs.layer_in[0]
    out = trace.ours.out
    (W_1, b_1), (W_2, b_2) = (
        (linear.weight.detach().t(), bias_of(linear).detach())
        for linear in (theirs.up, theirs.down)
    )
    summed = skip + out
    normed = layer_norm(summed, theirs.norm)
    hidden = theirs.activation(normed @ W_1 + b_1)
    network = hidden @ W_2 + b_2
    after = summed + network if theirs.norm_first else layer_norm(normed + network, theirs.last)
    lengths: Numbers = {
        "length_skip": _length(skip),
        "length_attention": _length(out),
        "length_sum": _length(summed),
    }
    check = trace.check("sum of skip and attention", summed, theirs.summed, "hidden")
    yield "skip", (lengths, [trace.matrix("x + attention", summed)], [check])
    spread = widest(summed).std(-1, correction=0)
    spreads: Numbers = {
        "spread_after": rounded(widest(normed).std(-1, correction=0).mean()),
        "spread_before_low": rounded(spread.min()),
        "spread_before_high": rounded(spread.max()),
    }
    check = trace.check("after LayerNorm", normed, theirs.normed, "hidden")
    yield "layernorm", (spreads, [trace.matrix("LayerNorm", normed)], [check])
    units: Numbers = {
        "d_ff": hidden.shape[-1],
        "parameters": W_1.numel() + W_2.numel(),
        "active": rounded(widest(hidden > 0).mean()),
    }
    check = trace.check("the layer's output", after, theirs.layer_out, "hidden")
    yield "ffn", (units, [trace.matrix("layer output", after)], [check])
