"""One attention layer on one sentence: every step computed on its own, next to the model's own.

All heads of a layer at once, without the axis of examples::

    products = q k^T            scores = products * scale + bias       (n_heads, query_pos, key_pos)
    pattern  = softmax(scores where allowed)
    z        = pattern v                                               (n_heads, query_pos, d_head)
    parts    = z W_O, head by head;   out = sum of parts + b_O         (query_pos, d_model)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analyses.explain.result import ExplainStep, Matrix, StepCheck
from headscope.attention import AttentionWeights, default_scale, masked_softmax
from headscope.core.heads import head_name
from headscope.core.widest import widest
from headscope.models.anatomy.explain import Layer, Rest, Run, every_map
from headscope.models.certificate.evidence import largest_gap
from headscope.models.layouts.maps import Heads

CORNER = 8  # Rows and columns that are kept of a learned matrix.


# --- the mechanism --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attended:
    """What all heads of a layer make of a sentence."""

    #: (n_heads, query_pos, key_pos): before the scale; with scale and bias; after mask and softmax.
    products: Tensor
    scores: Tensor
    pattern: Tensor
    z: Tensor  # (n_heads, query_pos, d_head): weighted sums of values


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, bias: Tensor | None, allowed: Tensor
) -> Attended:
    """Run attention step by step.

    Shapes: ``q``, ``k``, ``v`` (n_heads, pos, d_head), ``bias`` (n_heads, query_pos, key_pos),
    ``allowed`` (query_pos, key_pos).
    """
    products = q @ k.transpose(-1, -2)
    scores = products * scale
    if bias is not None:
        scores = scores + bias
    pattern = masked_softmax(scores, allowed)
    return Attended(products, scores, pattern, pattern @ v)


def mix(z: Tensor, weights: AttentionWeights, convolved: Tensor | None) -> tuple[Tensor, Tensor]:
    """Map each head's z back by its W_O, and add everything up.

    Shapes: ``z`` (n_heads, pos, d_head), ``convolved`` (pos, d_model), what some families send
    through W_O besides; returns (n_heads, pos, d_model), (pos, d_model).
    """
    parts = z @ weights.W_O
    out = parts.sum(0) + weights.b_O
    return parts, out if convolved is None else out + convolved


def layer_norm(x: Tensor, gain: Tensor, shift: Tensor, epsilon: float) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * gain + shift of each token on its own."""
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return centred / spread * gain.to(x.dtype) + shift.to(x.dtype)


@dataclass(frozen=True)
class Computed:
    """Our own numbers of one layer, all heads, without the axis of examples."""

    weights: AttentionWeights
    heads: Heads  # q, k, v (n_heads, pos, d_head) as the weights make them
    placed: Heads  # the same with positions in them
    bias: Tensor | None  # (n_heads, query_pos, key_pos): what the family adds to the scores
    scale: float
    attended: Attended

    @property
    def rotated(self) -> bool:
        """Whether positions turn q and k."""
        return not torch.equal(self.placed.q, self.heads.q)


def compute(layer: Layer) -> Computed:
    """Compute one layer from what it was called with and from its weights alone."""
    site, weights = layer.site, layer.weights()
    made = site.canonical(layer.inputs, weights)
    placed = layer.placed(made)
    added = layer.bias(placed)
    bias = None if added is None else added.expand(len(placed.q), site.n_heads, -1, -1)[0]
    scale = default_scale(site.d_head) if site.scale is None else site.scale
    attended = attend(*(t[0] for t in placed), scale=scale, bias=bias, allowed=layer.allowed[0])
    without, with_positions = (Heads(*(t[0] for t in heads)) for heads in (made, placed))
    return Computed(weights, without, with_positions, bias, scale, attended)


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
    """How clearly a head links each word to a word of its own.

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
class Walk:
    """One sentence, one layer, one head: what the steps are made from."""

    tokens: tuple[str, ...]  # special tokens included
    run: Run  # the model's own run of the sentence
    padded: Run | None  # the same with padding behind it; None where there is no room
    head: int  # its index among the heads that its layer has now
    tolerance: dict[str, float]  # of the certificate, by what is compared

    @property
    def layer(self) -> Layer:
        """The layer in the model's own run."""
        return self.run.layer

    @property
    def x(self) -> Tensor:
        """What the layer's queries are made from, (pos, d_model)."""
        return self.layer.inputs.x_q[0]

    @property
    def allowed(self) -> Tensor:
        """Which keys each query may see, (query_pos, key_pos)."""
        return self.layer.allowed[0]

    @functools.cached_property
    def ours(self) -> Computed:
        """What headscope computes."""
        return compute(self.layer)

    @functools.cached_property
    def convolved(self) -> Tensor | None:
        """What goes through W_O besides the heads' z (ConvBERT), (pos, d_model)."""
        other = self.layer.beside()
        return None if other is None else other[0]

    @functools.cached_property
    def mixed(self) -> tuple[Tensor, Tensor]:
        """What each head adds, (n_heads, pos, d_model), and the sum of all, (pos, d_model)."""
        return mix(self.ours.attended.z, self.ours.weights, self.convolved)

    def check(self, what: str, ours: Tensor, own: Tensor | None, kind: str = "out") -> StepCheck:
        """Compare a tensor with the model's own; where that is None the difference is infinite."""
        every = torch.ones(len(ours), dtype=torch.bool, device=ours.device)
        gap = largest_gap([(ours, own, every)])
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
        kept = values.detach().cpu().double()
        shown = torch.ones_like(kept, dtype=torch.bool) if known is None else known.cpu()
        numbers = tuple(
            tuple(rounded(v) if k else None for v, k in zip(line, ok, strict=True))
            for line, ok in zip(kept.tolist(), shown.tolist(), strict=True)
        )
        names = tuple(self.tokens if rows is None else rows)
        return Matrix(name, tuple(values.shape), names, tuple(columns), numbers)


Numbers = dict[str, float | None]
#: The content of a step: numbers, matrices and checks.
_Made = tuple[Numbers, Sequence[Matrix], Sequence[StepCheck]]


def steps(walk: Walk) -> list[ExplainStep]:
    """Make nine steps of attention, and three of what follows it where that is known."""
    makers = (_input, _weights, _qkv, _heads, _scores, _mask, _softmax, _z, _mix)
    made = [(make.__name__[1:], make(walk)) for make in makers]
    if walk.layer.rest is not None:
        made += _rest(walk, walk.layer.rest)
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


def _input(walk: Walk) -> _Made:
    n, d_model = walk.x.shape
    return {"tokens": n, "d_model": d_model}, [walk.matrix("x", walk.x)], []


def _weights(walk: Walk) -> _Made:
    w, h = walk.ours.weights, walk.head
    learned = {
        **{"W_Q": w.W_Q[h], "W_K": w.W_K[h], "W_V": w.W_V[h], "W_O": w.W_O[h]},
        **{"b_Q": w.b_Q[h], "b_K": w.b_K[h], "b_V": w.b_V[h], "b_O": w.b_O},
    }
    numbers: Numbers = {
        "parameters_head": sum(t.numel() for name, t in learned.items() if name[0] == "W"),
        "parameters_layer": walk.layer.parameters(),
        "biases": sum(linear.bias is not None for linear in every_map(walk.layer.site)),
        "reads": int((w.W_Q[h] != 0).any(1).sum()),
    }
    matrices = []
    for name, t in learned.items():
        numbers[f"norm_{name}"] = rounded(widest(t).norm())
        whole = t if t.dim() == 2 else t[None]
        corner = walk.matrix(name, whole[:CORNER, :CORNER], rows=())
        matrices.append(Matrix(name, tuple(whole.shape), (), (), corner.values))
    return numbers, matrices, []


def _qkv(walk: Walk) -> _Made:
    h, heads, placed = walk.head, walk.ours.heads, walk.ours.placed
    numbers: Numbers = {f"length_{name}": _length(getattr(heads, name)[h]) for name in "qkv"}
    matrices = [walk.matrix(name, getattr(heads, name)[h]) for name in "qkv"]
    if walk.ours.rotated:
        matrices += [walk.matrix(f"{name} rotated", getattr(placed, name)[h]) for name in "qk"]
    own = walk.layer.own_of_each()
    checks = [
        walk.check(f"{name} of all heads", getattr(heads, name), getattr(own, name)[0])
        for name in "qkv"
    ]
    return numbers, matrices, checks


def _heads(walk: Walk) -> _Made:
    """One wide projection cut into heads is the projection of each head, and costs the same."""
    w, site, x = walk.ours.weights, walk.layer.site, walk.x
    n_heads, width, own = site.n_heads, site.n_heads * site.d_head, walk.layer.own
    wide = x @ w.W_Q.transpose(0, 1).flatten(1) + w.b_Q.flatten()
    alone = torch.stack([x @ w.W_Q[h] + w.b_Q[h] for h in range(n_heads)])
    stored = walk.layer.parameters()
    names, rows = [], []
    for heads in dict.fromkeys((1, n_heads, 2 * n_heads)):
        if width % heads == 0:
            names.append(f"{heads} x {width // heads}")
            flops = attention_flops(len(x), stored, width, heads)
            rows.append(tuple(map(float, (heads, width // heads, stored, *flops))))
    columns = ("heads", "d_head", "parameters", "projections", "scores", "exponentials")
    cost = Matrix("cost", (len(rows), len(columns)), tuple(names), columns, tuple(rows))
    numbers: Numbers = {"n_heads": n_heads, "d_head": site.d_head, "key_heads": own.k.shape[1]}
    checks = [
        walk.check("one wide projection, cut into heads", site.by_head(wide[None])[0], own.q[0]),
        walk.check("each head projected alone", alone, own.q[0]),
    ]
    return numbers, [cost], checks


def _scores(walk: Walk) -> _Made:
    ours, h, seen = walk.ours, walk.head, walk.allowed
    products, scores = ours.attended.products[h], ours.attended.scores[h]
    pattern, by_length = ours.attended.pattern[h], len(walk.tokens) ** -0.5
    wrong = products * by_length
    if ours.bias is not None:
        wrong = wrong + ours.bias[h]
    wrong = masked_softmax(wrong, seen)
    numbers: Numbers = {
        "scale": ours.scale,
        "root_d_head": default_scale(walk.layer.site.d_head),
        "root_tokens": by_length,
        "spread_products": rounded(widest(products[seen]).std(correction=0)),
        "spread_scores": rounded(widest(scores[seen]).std(correction=0)),
        "entropy": rounded(entropy(pattern).mean()),
        "entropy_sequence_scale": rounded(entropy(wrong).mean()),
        "moved_by_sequence_scale": rounded(moved(pattern, wrong).mean()),
    }
    kept = {"q k^T": products, "scores": scores, "sequence scale": wrong}
    if ours.bias is not None:
        kept["bias"] = ours.bias[h]
    matrices = [walk.matrix(name, t, walk.tokens, known=seen) for name, t in kept.items()]
    every, own = ours.attended.scores, walk.layer.record.scores
    theirs = None if own is None else own[0].expand_as(every)[:, seen]
    return numbers, matrices, [walk.check("scores of all heads", every[:, seen], theirs)]


def _mask(walk: Walk) -> _Made:
    """Show what padding changes, and what hiding later tokens (or seeing them) would change."""
    ours, h, n = walk.ours.attended, walk.head, len(walk.tokens)
    later = torch.ones(n, n, dtype=torch.bool, device=walk.x.device).triu(1)
    other = masked_softmax(ours.scores[h], None if walk.layer.site.causal else ~later)
    pattern = widest(ours.pattern[h])
    numbers: Numbers = {
        "moved_by_other_direction": rounded(moved(pattern, other).mean()),
        "weight_on_later": rounded((pattern * later).sum(-1).mean()),
        "pads": 0,
    }
    direction = walk.matrix("other direction", other, walk.tokens)
    if walk.padded is None:
        return numbers, [direction], []
    layer = walk.padded.layer
    with_pads, pads = compute(layer).attended, layer.allowed.shape[-1] - n
    unmasked, own = masked_softmax(with_pads.scores[h]), layer.record.pattern
    numbers |= {
        "pads": pads,
        "weight_on_pads_without_mask": rounded(widest(unmasked[:n, n:]).sum(-1).mean()),
        "weight_on_pads": rounded(widest(with_pads.pattern[h, :n, n:]).sum(-1).max()),
    }
    columns = (*walk.tokens, *["(padding)"] * pads)
    mask = walk.matrix("mask", widest(layer.allowed[0, :n]), columns)
    what = f"pattern of all heads with {pads} positions of padding"
    theirs = None if own is None else own[0, :, :n]
    check = walk.check(what, with_pads.pattern[:, :n], theirs, "pattern")
    return numbers, [mask, direction], [check]


def _softmax(walk: Walk) -> _Made:
    every, own = walk.ours.attended.pattern, walk.layer.record.pattern
    pattern = widest(every[walk.head])
    columns = pattern.sum(0)
    numbers: Numbers = {
        "row_sum_error": float((pattern.sum(-1) - 1).abs().max()),
        "column_sum_low": rounded(columns.min()),
        "column_sum_high": rounded(columns.max()),
        "entropy": rounded(entropy(pattern).mean()),
        "even": rounded(even_entropy(walk.allowed)),
        "strongest": rounded(pattern.max()),
    }
    check = walk.check("pattern of all heads", every, None if own is None else own[0], "pattern")
    return numbers, [walk.matrix("pattern", pattern, walk.tokens)], [check]


def _z(walk: Walk) -> _Made:
    z, own, site = walk.ours.attended.z, walk.layer.record.z, walk.layer.site
    theirs = None
    if own is not None:
        theirs = site.by_head(own[..., : site.n_heads * site.d_head])[0]
    check = walk.check("z of all heads", z, theirs)
    return {"length": _length(z[walk.head])}, [walk.matrix("z", z[walk.head])], [check]


def _mix(walk: Walk) -> _Made:
    """Concatenate and multiply once, or multiply head by head and add: the same.

    The share of a part is the length of its projection on the whole, ``<part, out> / ||out||^2``
    over all tokens: shares add up to 1, and one that works against the others is negative.
    """
    ours, site, own = walk.ours, walk.layer.site, walk.layer.record.out
    parts, out = walk.mixed
    others = {"b_O": ours.weights.b_O.expand_as(out)}
    if walk.convolved is not None:
        others["beside attention"] = walk.convolved
    added, whole = widest(torch.cat([parts, torch.stack(list(others.values()))])), widest(out)
    share = (added * whole).sum((-1, -2)) / whole.square().sum()
    size = added.norm(dim=(-1, -2)) / whole.norm()
    names = [*(head_name(site.layer, head, site.stack) for head in site.head_ids), *others]
    at_once = ours.attended.z.transpose(0, 1).flatten(1) @ ours.weights.W_O.flatten(0, 1)
    at_once = at_once + sum(others.values())
    numbers: Numbers = {
        "share": rounded(share[walk.head]),
        "size": rounded(size[walk.head]),
        "even_share": rounded(1 / site.n_heads),
    }
    both = torch.stack([share, size], dim=1)
    matrices = [
        walk.matrix("heads", both, ("share", "size"), rows=names),
        walk.matrix("z W_O", parts[walk.head]),
        walk.matrix("output", out),
    ]
    theirs = None if own is None else own[0]
    checks = [
        walk.check("sum over heads, and b_O", out, theirs),
        walk.check("heads side by side, times W_O once", at_once, theirs),
    ]
    return numbers, matrices, checks


def _rest(walk: Walk, rest: Rest) -> Iterator[tuple[str, _Made]]:
    """Follow the layer from the skip connection to its output."""
    skip, (_, out) = rest.layer_in[0], walk.mixed
    summed = skip + out
    normed = layer_norm(summed, *rest.norm)
    activation: Callable[[Tensor], Tensor] = rest.activation
    hidden = activation(normed @ rest.up.W + rest.up.b)
    network = hidden @ rest.down.W + rest.down.b
    after = summed + network if rest.norm_first else layer_norm(normed + network, *rest.last)
    lengths: Numbers = {
        "length_skip": _length(skip),
        "length_attention": _length(out),
        "length_sum": _length(summed),
    }
    check = walk.check("sum of skip and attention", summed, rest.summed[0], "hidden")
    yield "skip", (lengths, [walk.matrix("x + attention", summed)], [check])
    spread = widest(summed).std(-1, correction=0)
    spreads: Numbers = {
        "spread_before": rounded(spread.mean()),
        "spread_after": rounded(widest(normed).std(-1, correction=0).mean()),
        "spread_before_low": rounded(spread.min()),
        "spread_before_high": rounded(spread.max()),
        "epsilon": rest.norm.epsilon,
    }
    check = walk.check("after LayerNorm", normed, rest.normed[0], "hidden")
    yield "layernorm", (spreads, [walk.matrix("LayerNorm", normed)], [check])
    units: Numbers = {
        "d_ff": hidden.shape[-1],
        "parameters": rest.up.W.numel() + rest.down.W.numel(),
        "active": rounded(widest(hidden > 0).mean()),
        "length_ffn": _length(network),
        "length_out": _length(after),
    }
    check = walk.check("the layer's output", after, rest.layer_out[0], "hidden")
    yield "ffn", (units, [walk.matrix("layer output", after)], [check])
