"""One attention layer on one sentence: every step computed on its own, from the layer's weights.

:func:`compute` does it for attention, :func:`compute_after` for what follows in the layer. What the
model itself computed is a :class:`SentenceRun`: ``site`` is the attention of the layer, ``inputs``
what it was called with, ``record`` what it computed, ``allowed`` which keys each query may see. The
steps of ``explain`` compare the two. The small functions at the end say what the numbers mean.

All heads of a layer at once, without the axis of examples::

    products = q k^T            scores = products * scale + bias       (n_heads, query_pos, key_pos)
                                (with a soft cap: capped(products * scale))
    pattern  = softmax(scores where allowed)
    z        = pattern v                                               (n_heads, query_pos, d_head)
    head_outputs = z W_O, head by head
    out      = sum of head_outputs + b_O                               (query_pos, d_model)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.attention import AttentionWeights, capped, default_scale, masked_softmax
from headscope.core.widest import widest
from headscope.models.anatomy.explain import AfterAttention, SentenceRun
from headscope.models.certificate.canonical import beside_heads
from headscope.models.layouts.maps import Heads, bias_of
from headscope.models.run.watched import gain_and_shift

#: Of a LayerNorm that does not say which (OLMo 1).
_EPSILON = 1e-5

# --- the mechanism --------------------------------------------------------------------------------


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return (x - mean) / sqrt(variance + epsilon) * gain + shift of each token on its own."""
    gain, shift = gain_and_shift(norm)
    gain = gain.detach().to(x.dtype)
    shift = shift.detach().to(x.dtype)
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    epsilon = getattr(norm, "eps", _EPSILON)
    return centred / (variance + epsilon).sqrt() * gain + shift


@dataclass(frozen=True)
class Computed:
    """Our own numbers of one layer, all heads, without the axis of examples."""

    weights: AttentionWeights
    heads: Heads  # q, k, v (n_heads, pos, d_head) as the weights make them
    placed: Heads  # the same with positions in them (rotated), where the family puts them there
    bias: Tensor | None  # (n_heads, query_pos, key_pos): what the family adds to the scores
    scale: float
    products: Tensor  # (n_heads, query_pos, key_pos): q k^T
    scores: Tensor  # (n_heads, query_pos, key_pos): products with scale, soft cap and bias
    pattern: Tensor  # (n_heads, query_pos, key_pos): scores after mask and softmax
    z: Tensor  # (n_heads, query_pos, d_head): weighted sums of values
    convolved: Tensor | None  # (pos, d_model): what ConvBERT sends through W_O besides z
    head_outputs: Tensor  # (n_heads, pos, d_model): what each head adds
    out: Tensor  # (pos, d_model): the sum of all, and b_O

    @property
    def rotated(self) -> bool:
        """Whether positions turn q and k."""
        return not torch.equal(self.placed.q, self.heads.q)

    @property
    def normed(self) -> bool:
        """Whether a norm changes how long queries are, which a rotation does not."""
        before = torch.linalg.vector_norm(widest(self.heads.q), dim=-1)
        after = torch.linalg.vector_norm(widest(self.placed.q), dim=-1)
        return not torch.allclose(before, after, rtol=1e-2)

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

    # Queries, keys and values; then with the positions in them (rotated), or the positions as a
    # bias that is added to the scores.
    heads = site.canonical(run.inputs, weights)  # x W + b, head by head
    placed = site.as_scored(heads, run.inputs)
    bias = site.bias(placed, run.inputs)  # [1 or examples, n_heads or 1, query_pos, key_pos]
    if bias is not None:
        n_examples = len(placed.q)
        bias = bias.expand(n_examples, site.n_heads, -1, -1)[0]  # there is one example
    heads = _without_examples(heads)
    placed = _without_examples(placed)

    # The pattern.
    products = placed.q @ placed.k.transpose(-1, -2)
    scale = default_scale(site.d_head) if site.scale is None else site.scale
    scores = capped(products * scale, site.softcap)
    if bias is not None:
        scores = scores + bias
    pattern = masked_softmax(scores, run.allowed[0])

    # What the heads add up to.
    z = pattern @ placed.v
    head_outputs = z @ weights.W_O
    out = head_outputs.sum(0) + weights.b_O

    # ConvBERT sends the output of a convolution through W_O beside z. It is taken from the model.
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
    """Our own numbers of what follows attention in the layer."""

    skip: Tensor  # (pos, d_model): the layer's input
    summed: Tensor  # (pos, d_model): the sum of skip and attention
    normed: Tensor  # (pos, d_model): ``summed`` after its LayerNorm
    hidden: Tensor  # (pos, d_ff): the units of the feed-forward network
    parameters: int  # Entries of the network's two maps
    layer_out: Tensor  # (pos, d_model): what the layer returns


def compute_after(after: AfterAttention, attention_out: Tensor) -> ComputedAfter:
    """Follow the layer from the output of attention, (pos, d_model), to its own output.

    ``after`` has the modules of this part of the layer: ``up`` and ``down``, the two maps of the
    feed-forward network; ``norm``, the LayerNorm of the sum with the skip; ``last``, that after the
    network in a post-LN layer (``norm_first`` is False).
    """
    W_1 = after.up.weight.detach().t()  # [d_model, d_ff]
    W_2 = after.down.weight.detach().t()  # [d_ff, d_model]
    skip = after.layer_in[0]  # of the only example
    summed = skip + attention_out
    normed = layer_norm(summed, after.norm)
    hidden = after.activation(normed @ W_1 + bias_of(after.up).detach())
    network = hidden @ W_2 + bias_of(after.down).detach()
    layer_out = summed + network  # pre-LN
    if not after.norm_first:  # post-LN
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
    """Share of each row's weight that lies elsewhere in another pattern, 0 to 1.

    [0.6, 0.4, 0.0] and [0.6, 0.1, 0.3] -> 0.3.
    """
    return (widest(pattern) - widest(other)).abs().sum(-1) / 2


def links(pattern: Tensor, words: Tensor) -> Tensor:
    """How clearly a head links each word to one other word, and different words to different ones.

    For each word, the largest weight on another word that is two or more positions away, after
    subtracting what that other word gets from all words on average; then the mean over words. A
    head that looks at a neighbour, at a special token or at one word from everywhere scores low,
    however sharp it is.

    Shapes: ``pattern`` (n_heads, pos, pos); ``words`` (pos,) is True where a token is part of a
    word, False for special tokens. Returns (n_heads,).
    """
    if not bool(words.any()):
        return torch.zeros(len(pattern), dtype=torch.float64)
    position = torch.arange(len(words), device=words.device)
    is_apart = (position[:, None] - position).abs() >= 2  # (query_pos, key_pos)
    is_other_word = (is_apart & words)[words]  # (word queries, key_pos)
    word_rows = widest(pattern)[:, words]  # (n_heads, word queries, key_pos)
    mean_row = word_rows.mean(1, keepdim=True)  # what each key gets from all words on average
    above_mean = (word_rows - mean_row).clamp(min=0)
    largest = (above_mean * is_other_word).amax(-1)  # (n_heads, word queries)
    return largest.mean(-1)


def attention_flops(tokens: int, parameters: int, width: int, n_heads: int) -> tuple[int, int, int]:
    """Count floating-point operations: of the projections, of the scores with z, and exponentials.

    A multiplication with its addition counts as two. ``parameters`` are the entries of W_Q, W_K,
    W_V and W_O; ``width`` is n_heads * d_head.
    """
    projections = 2 * tokens * parameters
    scores = 2 * tokens**2 * width
    z = 2 * tokens**2 * width
    exponentials = n_heads * tokens**2
    return projections, scores + z, exponentials


def rounded(value: float | Tensor) -> float:
    """Return a number with four significant digits."""
    return float(f"{float(value):.4g}") + 0.0  # -0.0 + 0.0 is 0.0: a zero has no sign


def mean_length(x: Tensor) -> float:
    """Return the mean Euclidean length of the tokens' vectors, (..., pos, width)."""
    return rounded(widest(x).norm(dim=-1).mean())
