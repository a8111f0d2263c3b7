"""The nine steps of attention: from the sentence to what the layer's heads add to it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headscope.analyses.explain.measure import attention_flops, entropy, even_entropy, moved, shares
from headscope.analyses.explain.result import ExplainStep, Matrix, StepCheck
from headscope.analyses.explain.walk import Walk, compute, corner, made_step, matrix, rounded
from headscope.attention import default_scale, masked_softmax
from headscope.core.heads import head_name
from headscope.core.widest import widest
from headscope.models.explain import every_map
from headscope.models.layouts import Heads

__all__ = ["attention_steps", "later_keys"]

_PAD = "(padding)"


def attention_steps(walk: Walk) -> Iterator[ExplainStep]:
    """Yield the steps in order."""
    makers = (_input, _weights, _qkv, _heads, _scores, _mask, _softmax, _z, _mix)
    for number, make in enumerate(makers, start=1):
        key = make.__name__.removeprefix("_")
        yield made_step(number, key, *make(walk))


#: What a step has: numbers, matrices and checks.
_Found = tuple[dict[str, float | None], tuple[Matrix, ...], tuple[StepCheck, ...]]


def _input(walk: Walk) -> _Found:
    n, d_model = walk.x.shape
    numbers: dict[str, float | None] = {"tokens": n, "d_model": d_model}
    return numbers, (matrix("x", walk.x, walk.tokens),), ()


def _weights(walk: Walk) -> _Found:
    w, h, site = walk.ours.weights, walk.place, walk.layer.site
    learned = (w.W_Q[h], w.W_K[h], w.W_V[h], w.W_O[h], w.b_Q[h], w.b_K[h], w.b_V[h], w.b_O)
    names = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
    biases = sum(linear.bias is not None for linear in every_map(site))
    numbers: dict[str, float | None] = {
        "parameters_head": sum(t.numel() for t in learned[:4]),
        "parameters_layer": walk.layer.parameters(),
        "biases": biases,
        "reads": int((w.W_Q[h] != 0).any(1).sum()),
        **{
            f"norm_{name}": rounded(float(widest(t).norm()))
            for name, t in zip(names, learned, strict=True)
        },
    }
    matrices = tuple(corner(name, t) for name, t in zip(names, learned, strict=True))
    return numbers, matrices, ()


def _qkv(walk: Walk) -> _Found:
    heads, own = walk.ours.heads, walk.layer.own_of_each()
    numbers: dict[str, float | None] = {
        f"length_{name}": rounded(float(widest(t[walk.place]).norm(dim=-1).mean()))
        for name, t in zip("qkv", heads, strict=True)
    }
    matrices = [matrix(name, t[walk.place], walk.tokens) for name, t in _named(heads)]
    if walk.ours.rotated:
        placed = list(_named(walk.ours.placed))[:2]
        matrices += [matrix(f"{name} rotated", t[walk.place], walk.tokens) for name, t in placed]
    checks = tuple(
        walk.check(f"{name} of all heads", t, its[0], "out")
        for (name, t), its in zip(_named(heads), own, strict=True)
    )
    return numbers, tuple(matrices), checks


def _named(heads: Heads) -> Iterator[tuple[str, Tensor]]:
    return zip(Heads._fields, heads, strict=True)


def _heads(walk: Walk) -> _Found:
    """One wide projection cut into heads is the projection of each head, and costs the same."""
    w, site, x = walk.ours.weights, walk.layer.site, walk.x
    n, width, n_heads = len(x), site.n_heads * site.d_head, site.n_heads
    wide = x @ w.W_Q.transpose(0, 1).flatten(1) + w.b_Q.flatten()
    cut = site.by_head(wide[None])[0]
    alone = torch.stack([x @ w.W_Q[h] + w.b_Q[h] for h in range(n_heads)])
    stored = walk.layer.parameters()
    rows = [
        [heads, width // heads, stored, *attention_flops(n, stored, width, heads)]
        for heads in dict.fromkeys((1, n_heads, 2 * n_heads))
        if width % heads == 0
    ]
    names = tuple(f"{row[0]} x {row[1]}" for row in rows)
    columns = ("heads", "d_head", "parameters", "projections", "scores", "exponentials")
    cost = Matrix("cost", (len(rows), len(columns)), names, columns, tuple(map(_floats, rows)))
    numbers: dict[str, float | None] = {
        "n_heads": n_heads,
        "d_head": site.d_head,
        "key_heads": walk.layer.own.k.shape[1],
    }
    checks = (
        walk.check("one wide projection, cut into heads", cut, walk.layer.own.q[0], "out"),
        walk.check("each head projected alone", alone, walk.layer.own.q[0], "out"),
    )
    return numbers, (cost,), checks


def _floats(row: list[int]) -> tuple[float, ...]:
    return tuple(map(float, row))


def _scores(walk: Walk) -> _Found:
    ours, h, site = walk.ours, walk.place, walk.layer.site
    products, scores = ours.attended.products[h], ours.attended.scores[h]
    by_length = len(walk.tokens) ** -0.5
    wrong = products * by_length
    if ours.bias is not None:
        wrong = wrong + ours.bias[h]
    wrong = masked_softmax(wrong, walk.allowed)
    pattern = ours.attended.pattern[h]
    seen = walk.allowed
    numbers: dict[str, float | None] = {
        "scale": ours.scale,
        "root_d_head": default_scale(site.d_head),
        "root_tokens": by_length,
        "spread_products": rounded(float(widest(products[seen]).std(correction=0))),
        "spread_scores": rounded(float(widest(scores[seen]).std(correction=0))),
        "entropy": rounded(float(entropy(pattern).mean())),
        "entropy_sequence_scale": rounded(float(entropy(wrong).mean())),
        "moved_by_sequence_scale": rounded(float(moved(pattern, wrong).mean())),
    }
    kept = {"q k^T": products, "scores": scores, "sequence scale": wrong}
    if ours.bias is not None:
        kept["bias"] = ours.bias[h]
    names = walk.tokens
    matrices = tuple(matrix(name, t, names, names, seen) for name, t in kept.items())
    own = walk.layer.record.scores
    check = walk.check(
        "scores of all heads",
        ours.attended.scores[:, seen],
        None if own is None else own[0].expand_as(ours.attended.scores)[:, seen],
        "out",
    )
    return numbers, matrices, (check,)


def later_keys(n: int, device: torch.device | None = None) -> Tensor:
    """Mark the keys that come after their query, (n, n)."""
    return torch.ones(n, n, dtype=torch.bool, device=device).triu(1)


def _mask(walk: Walk) -> _Found:
    """Padding, and what the other direction would change: the future hidden, or seen."""
    ours, h = walk.ours.attended, walk.place
    n = len(walk.tokens)
    later = later_keys(n, walk.x.device)
    causal = walk.layer.site.causal
    other = masked_softmax(ours.scores[h], None if causal else ~later)
    before = widest(ours.pattern[h])
    numbers: dict[str, float | None] = {
        "moved_by_other_direction": rounded(float(moved(before, other).mean())),
        "weight_on_later": rounded(float((before * later).sum(-1).mean())),
        "pads": 0,
    }
    names = walk.tokens
    matrices = [matrix("other direction", other, names, names)]
    if walk.padded is None:
        return numbers, tuple(matrices), ()
    layer = walk.padded.layer
    with_pads = compute(layer).attended
    own = layer.record.pattern
    unmasked = masked_softmax(with_pads.scores[h])
    pads = layer.allowed.shape[-1] - n
    numbers |= {
        "pads": pads,
        "weight_on_pads_without_mask": rounded(float(widest(unmasked[:n, n:]).sum(-1).mean())),
        "weight_on_pads": rounded(float(widest(with_pads.pattern[h, :n, n:]).sum(-1).max())),
    }
    every = (*names, *[_PAD] * pads)
    matrices.insert(0, matrix("mask", widest(layer.allowed[0, :n]), names, every))
    check = walk.check(
        f"pattern of all heads with {pads} positions of padding",
        with_pads.pattern[:, :n],
        None if own is None else own[0, :, :n],
        "pattern",
    )
    return numbers, tuple(matrices), (check,)


def _softmax(walk: Walk) -> _Found:
    every, own = walk.ours.attended.pattern, walk.layer.record.pattern
    pattern = widest(every[walk.place])
    columns = pattern.sum(0)
    numbers: dict[str, float | None] = {
        "row_sum_error": float((pattern.sum(-1) - 1).abs().max()),
        "column_sum_low": rounded(float(columns.min())),
        "column_sum_high": rounded(float(columns.max())),
        "entropy": rounded(float(entropy(pattern).mean())),
        "even": rounded(even_entropy(walk.allowed)),
        "strongest": rounded(float(pattern.max())),
    }
    check = walk.check("pattern of all heads", every, None if own is None else own[0], "pattern")
    return numbers, (matrix("pattern", pattern, walk.tokens, walk.tokens),), (check,)


def _z(walk: Walk) -> _Found:
    z, own, site = walk.ours.attended.z, walk.layer.record.z, walk.layer.site
    theirs = None
    if own is not None:
        theirs = site.by_head(own[..., : site.n_heads * site.d_head])[0]
    length = float(widest(z[walk.place]).norm(dim=-1).mean())
    numbers: dict[str, float | None] = {"length": rounded(length)}
    check = walk.check("z of all heads", z, theirs, "out")
    return numbers, (matrix("z", z[walk.place], walk.tokens),), (check,)


def _mix(walk: Walk) -> _Found:
    """Concatenate and multiply once, or multiply head by head and add: the same."""
    ours, site, own = walk.ours, walk.layer.site, walk.layer.record.out
    parts, out = walk.mixed
    beside = walk.layer.beside()
    others = [("b_O", ours.weights.b_O.expand_as(out))]
    if beside is not None:
        others.append(("beside attention", beside[0]))
    added = torch.cat([parts, torch.stack([other for _, other in others])])
    share = shares(added, out)
    size = widest(added).norm(dim=(-1, -2)) / widest(out).norm()
    names = (
        *(head_name(site.layer, head, site.stack) for head in site.head_ids),
        *(name for name, _ in others),
    )
    at_once = ours.attended.z.transpose(0, 1).flatten(1) @ ours.weights.W_O.flatten(0, 1)
    at_once = at_once + sum(other for _, other in others)
    numbers: dict[str, float | None] = {
        "share": rounded(float(share[walk.place])),
        "size": rounded(float(size[walk.place])),
        "even_share": rounded(1 / site.n_heads),
    }
    theirs = None if own is None else own[0]
    matrices = (
        matrix("heads", torch.stack([share, size], dim=1), names, ("share", "size")),
        matrix("z W_O", parts[walk.place], walk.tokens),
        matrix("output", out, walk.tokens),
    )
    checks = (
        walk.check("sum over heads, and b_O", out, theirs, "out"),
        walk.check("heads side by side, times W_O once", at_once, theirs, "out"),
    )
    return numbers, matrices, checks
