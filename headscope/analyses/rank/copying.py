r"""Does a head write the token that it looks at? Eigenvalues of W_E W_V W_O W_U.

The product maps the token looked at to the logits that the head adds (vocabulary x vocabulary). Its
eigenvalues other than 0 are those of W_O W_U W_E W_V, which has d_head rows and columns. Positive
ones mean that tokens raise their own logits; the copying score is

    sum(lambda) / sum(|lambda|),    1 all copying, -1 all suppressing, 0 neither.

References
----------
Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, "Summarizing OV/QK matrices".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headscope.analyses.rank.result import Copying, HeadRank, LayerRank
from headscope.models.anatomy.readout import token_maps
from headscope.models.run.loaded import LoadedModel
from headscope.stats.spectra import Factors
from headscope.stats.statistics import finite

DRAWS = 400  # Random heads of the control.


def copying_scores(W_V: Tensor, W_O_T: Tensor, tokens: Tensor) -> Tensor:
    """Return sum(lambda) / sum(|lambda|) of each head; NaN where all eigenvalues are 0.

    Shapes: ``W_V``, ``W_O_T`` (n_heads, d_model, d_head), ``tokens`` = W_U W_E (d_model, d_model).
    """
    values = torch.linalg.eigvals(W_O_T.mT @ (tokens @ W_V))
    scores: Tensor = values.sum(-1).real / values.abs().sum(-1)
    return scores


def with_copying(
    loaded: LoadedModel,
    heads: Sequence[HeadRank],
    layers: Sequence[LayerRank],
    factors: Mapping[int, Factors],
    seed: int,
) -> tuple[list[HeadRank], Copying]:
    """Score the heads of the stack that predicts tokens, and random heads in their place.

    The score does not depend on the scale of W_V and W_O, so the random ones need no norms.
    """
    maps = token_maps(loaded)
    tokens, d_model = maps.product(), maps.embedding.shape[1]
    stack = "decoder" if loaded.encoder_decoder else loaded.stacks[0]
    scores: dict[str, float | None] = {}
    shapes = set()
    for row, layer in enumerate(layers):
        if layer.stack == stack and layer.heads:
            own = factors[row].exact()
            W_V = own.W_V[:, :d_model]  # without the row that biases add
            shapes.add(W_V.shape[-1])
            names = (
                head.name for head in heads if (head.stack, head.layer) == (stack, layer.layer)
            )
            values = copying_scores(W_V, own.W_O_T, tokens).tolist()
            scores |= {name: finite(value) for name, value in zip(names, values, strict=True)}
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for d_head in sorted(shapes):
        for _ in range(DRAWS // 20):  # a few heads at a time
            pair = torch.randn(2, 20, d_model, d_head, generator=generator, dtype=torch.float64)
            drawn.append(copying_scores(pair[0], pair[1], tokens))
    random = torch.cat(drawn) if drawn else torch.zeros(1, dtype=torch.float64)
    low, high = random.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    known = [score for score in scores.values() if score is not None]
    control = Copying(
        stack=stack,
        own_unembedding=maps.own,
        draws=len(random),
        random_mean=float(random.mean()),
        random_low=low,
        random_high=high,
        heads=len(known),
        above=sum(score > high for score in known),
        below=sum(score < low for score in known),
    )
    return [replace(head, copying=scores.get(head.name)) for head in heads], control
