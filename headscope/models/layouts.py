"""Where each family keeps W_Q, W_K, W_V and W_O: one small adapter per attention layout.

A layout is recognised by its structure, not by the family's name, so families that share one
(bert, roberta, electra, xlm-roberta, camembert, ...) need nothing of their own. Which modules run,
in which order and how often (ALBERT runs one module in every layer) is not guessed but watched in
one tiny forward pass. Recognising a layout proves nothing: the certificate does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from headscope.attention import AttentionWeights
from headscope.models.hooks import run_order

#: Attribute of an attention module whose heads were removed: the original indices of the rest.
HEAD_IDS = "headscope_head_ids"


@dataclass(frozen=True)
class Layout:
    """The attribute names of one attention layout.

    Attributes
    ----------
    name : str
        The family that it is known from.
    q, k, v : str
        Attributes of the attention module.
    out : str
        Dotted path from the attention module, or from its parent when it starts with ``..``.
    """

    name: str
    q: str
    k: str
    v: str
    out: str

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Return the four projections if ``module`` has this layout."""
        start = parent if self.out.startswith("..") else module
        found = [getattr(module, name, None) for name in (self.q, self.k, self.v)]
        found.append(follow(start, self.out.removeprefix("..")))
        linears = [item for item in found if isinstance(item, nn.Linear)]
        return Projections(*linears) if len(linears) == len(found) else None


@dataclass(frozen=True)
class Projections:
    """The four linear maps of one attention module."""

    q: nn.Linear
    k: nn.Linear
    v: nn.Linear
    out: nn.Linear


#: Tried in order; the first that fits wins.
LAYOUTS = (
    Layout("bert", q="query", k="key", v="value", out="..output.dense"),
    Layout("albert", q="query", k="key", v="value", out="dense"),
    Layout("distilbert", q="q_lin", k="k_lin", v="v_lin", out="out_lin"),
    Layout("mpnet", q="q", k="k", v="v", out="o"),
)


@dataclass(frozen=True)
class AttentionSite:
    """One place where attention runs: a module in its role as one layer of one stack.

    Attributes
    ----------
    stack : str
        ``encoder`` (``decoder`` and ``cross`` are reserved for encoder-decoder models).
    layer : int
        Zero-based, in the order of execution within the stack.
    module : nn.Module
        The attention module of transformers; several layers may share one (ALBERT).
    projections : Projections
        Its four linear maps.
    n_heads, d_head : int
        Heads that it has now, and the width of each.
    head_ids : tuple of int
        The original index of each head: what it is called even after others were removed.
    """

    stack: str
    layer: int
    module: nn.Module
    projections: Projections
    n_heads: int
    d_head: int
    head_ids: tuple[int, ...]

    @property
    def scale(self) -> float | None:
        """What the module multiplies the scores by, or None for 1 / sqrt(d_head)."""
        scaling = getattr(self.module, "scaling", None)
        return float(scaling) if isinstance(scaling, int | float) else None

    def weights(self) -> AttentionWeights:
        """Return the canonical weights (views where possible), biases as zeros where absent."""
        p = self.projections
        W_Q, W_K, W_V = map(self._split_in, (p.q, p.k, p.v))
        b_Q, b_K, b_V = map(self._split_bias, (p.q, p.k, p.v))
        # (d_model, n_heads * d_head) -> (n_heads, d_head, d_model)
        W_O = p.out.weight.t().reshape(self.n_heads, self.d_head, p.out.out_features)
        return AttentionWeights(W_Q, W_K, W_V, b_Q, b_K, b_V, W_O, bias_of(p.out))

    def _split_in(self, linear: nn.Linear) -> Tensor:
        # nn.Linear keeps (out, in): (n_heads * d_head, d_model) -> (n_heads, d_model, d_head)
        shape = (self.n_heads, self.d_head, linear.in_features)
        return linear.weight.view(shape).transpose(1, 2)

    def _split_bias(self, linear: nn.Linear) -> Tensor:
        return bias_of(linear).view(self.n_heads, self.d_head)


def find_sites(model: nn.Module, run: Callable[[], object]) -> tuple[AttentionSite, ...]:
    """List the attention sites of a base model in the order in which ``run()`` executes them.

    ``run()`` does one forward pass on any input. Empty if no module has a known layout.
    """
    known = dict(attention_modules(model))
    sites = []
    for layer, module in enumerate(run_order(known, run)):
        d_head, ids = heads_of(module, known[module])
        sites.append(AttentionSite("encoder", layer, module, known[module], len(ids), d_head, ids))
    return tuple(sites)


def attention_modules(model: nn.Module) -> list[tuple[nn.Module, Projections]]:
    """List the modules of ``model`` that have a known layout, in the order of registration."""
    found = []
    for name, module in model.named_modules():
        parent = model.get_submodule(name.rpartition(".")[0])
        matches = (layout.match(module, parent) for layout in LAYOUTS)
        if (projections := next(filter(None, matches), None)) is not None:
            found.append((module, projections))
    return found


def heads_of(module: nn.Module, projections: Projections) -> tuple[int, tuple[int, ...]]:
    """Return the width of a head, and the original index of every head that a module has."""
    width = projections.q.out_features
    d_head = getattr(module, "attention_head_size", None)
    if not isinstance(d_head, int):
        d_head = width // getattr(module, "num_attention_heads", 1)
    every = tuple(range(width // d_head))
    ids = getattr(module, HEAD_IDS, every)
    return d_head, ids if isinstance(ids, tuple) and len(ids) == len(every) else every


def bias_of(linear: nn.Linear) -> Tensor:
    """Return the bias of a linear map, (out_features,); zeros where it has none."""
    bias: Tensor | None = linear.bias
    return linear.weight.new_zeros(linear.out_features) if bias is None else bias


def follow(module: nn.Module, path: str) -> object:
    """Return what lies at a dotted path below ``module``, or None."""
    found: object = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
