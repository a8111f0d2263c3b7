"""One attention layer on one sentence: every step computed on its own, next to the model's own.

All heads of a layer at once, without the axis of examples::

    products = q k^T            scores = products * scale + bias       (n_heads, query_pos, key_pos)
    pattern  = softmax(scores where allowed)
    z        = pattern v                                               (n_heads, query_pos, d_head)
    head_outputs = z W_O, head by head
    out      = sum of head_outputs + b_O                               (query_pos, d_model)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.attention import AttentionWeights, default_scale, masked_softmax
from headscope.core.widest import widest
from headscope.models.anatomy.explain import AfterAttention, SentenceRun
from headscope.models.certificate.canonical import beside_heads
from headscope.models.layouts.maps import Heads, bias_of
from headscope.models.run.watched import gain_and_shift

# --- the mechanism --------------------------------------------------------------------------------


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * gain + shift of each token on its own."""
    gain, shift = gain_and_shift(norm)
    gain = gain.detach().to(x.dtype)
    shift = shift.detach().to(x.dtype)
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
    head_outputs: Tensor  # (n_heads, pos, d_model): what each head adds
    out: Tensor  # (pos, d_model): the sum of all

    @property
    def rotated(self) -> bool:
        """Whether positions turn q and k."""
        return not torch.equal(self.placed.q, self.heads.q)

    @property
    def positions(self) -> str:
        """``bias`` where positions are added to the scores, ``rotated``, or empty."""
        if self.bias is not None:
            return "bias"
        return "rotated" if self.rotated else ""


def compute(run: SentenceRun) -> Computed:
    """Compute one layer, step by step, from what it was called with and from its weights alone."""
    site = run.site
    weights = site.weights()

    # Queries, keys and values, and the positions in them or beside them.
    heads = site.canonical(run.inputs, weights)
    placed = site.as_scored(heads, run.inputs)
    bias = site.bias(placed, run.inputs)
    if bias is not None:
        bias = bias.expand(len(placed.q), site.n_heads, -1, -1)[0]
    heads = _without_examples(heads)
    placed = _without_examples(placed)

    # The pattern.
    products = placed.q @ placed.k.transpose(-1, -2)
    scale = default_scale(site.d_head) if site.scale is None else site.scale
    scores = products * scale
    if bias is not None:
        scores = scores + bias
    pattern = masked_softmax(scores, run.allowed[0])

    # What the heads add up to.
    z = pattern @ placed.v
    head_outputs = z @ weights.W_O
    out = head_outputs.sum(0) + weights.b_O
    beside = beside_heads(site, run.record.z)
    convolved = None if beside is None else beside[0]
    if convolved is not None:
        out = out + convolved
    return Computed(
        weights=weights,
        heads=heads,
        placed=placed,
        bias=bias,
        scale=scale,
        products=products,
        scores=scores,
        pattern=pattern,
        z=z,
        convolved=convolved,
        head_outputs=head_outputs,
        out=out,
    )


def _without_examples(heads: Heads) -> Heads:
    """Drop the axis of examples, of which there is one."""
    return Heads(heads.q[0], heads.k[0], heads.v[0])


@dataclass(frozen=True)
class ComputedAfter:
    """Our own numbers of what follows attention in the layer: (pos, d_model) but ``hidden``."""

    skip: Tensor  # The layer's input
    summed: Tensor  # The sum of skip and attention
    normed: Tensor  # The same after its LayerNorm
    hidden: Tensor  # (pos, d_ff): the units of the feed-forward network
    parameters: int  # Entries of its two maps
    layer_out: Tensor  # What the layer returns


def compute_after(after: AfterAttention, attention_out: Tensor) -> ComputedAfter:
    """Follow the layer from the output of attention, (pos, d_model), to its own output."""
    W_1 = after.up.weight.detach().t()
    W_2 = after.down.weight.detach().t()
    skip = after.layer_in[0]
    summed = skip + attention_out
    normed = layer_norm(summed, after.norm)
    hidden = after.activation(normed @ W_1 + bias_of(after.up).detach())
    network = hidden @ W_2 + bias_of(after.down).detach()
    layer_out = summed + network
    if not after.norm_first:
        layer_out = layer_norm(normed + network, after.last)
    return ComputedAfter(
        skip=skip,
        summed=summed,
        normed=normed,
        hidden=hidden,
        parameters=W_1.numel() + W_2.numel(),
        layer_out=layer_out,
    )


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
    word_rows = widest(pattern)[:, words]  # (n_heads, words, key_pos)
    above_mean = (word_rows - word_rows.mean(1, keepdim=True)).clamp(min=0)
    other_words = (apart & words)[words]  # (words, key_pos)
    return (above_mean * other_words).amax(-1).mean(-1)


def attention_flops(tokens: int, parameters: int, width: int, n_heads: int) -> tuple[int, int, int]:
    """Count floating-point operations: of the projections, of the scores with z, and exponentials.

    A multiplication with its addition counts as two. ``width`` is n_heads * d_head.
    """
    return 2 * tokens * parameters, 4 * tokens**2 * width, n_heads * tokens**2


def rounded(value: float | Tensor) -> float:
    """Return a number with four significant digits; a rounded zero has no sign."""
    return float(f"{float(value):.4g}") + 0.0


def mean_length(x: Tensor) -> float:
    """Return the mean length of the tokens' vectors."""
    return rounded(widest(x).norm(dim=-1).mean())
