"""What z holds: the same maps fitted by another way; planted heads: tests/planted."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hand_made import activations
from torch import Tensor

from headscope.analyses.flow import read_words
from headscope.analyses.flow.clustered import Clustered
from headscope.analyses.flow.read_words import LayerChunk, LayerSpaces, WordPositions
from headscope.analyses.flow.recovery import (
    ERRORS,
    FOLDS,
    PENALTIES,
    TARGETS,
    LayerMaps,
    LayerSums,
    explained,
)
from headscope.core.activations import Activations

D = 12
WIDTH = 4
WORDS = 7


def sentences(seed: int, n: int = 60) -> tuple[Tensor, WordPositions]:
    """States of n sentences: two special tokens around words, the last ones padded."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, WORDS + 2, D, generator=generator)
    content = torch.zeros(n, WORDS + 2, dtype=torch.bool)
    content[:, 1:-1] = True
    other = torch.randint(1, WORDS + 1, content.shape, generator=generator)
    return x, WordPositions(content, other)


def pattern_of(kind: str, x: Tensor) -> Tensor:
    """Make a pattern (batch, pos, pos): even, all on the next word, or drawn at random."""
    real = torch.ones(x.shape[:2])
    real[::3, -1] = 0.0  # a token of padding, and a special token less
    if kind == "even":
        pattern = real[:, None, :].expand(-1, x.shape[1], -1).clone()
    elif kind == "next":
        positions = torch.arange(x.shape[1])
        pattern = torch.zeros(len(x), x.shape[1], x.shape[1])
        pattern[:, positions, (positions + 1).clamp(max=WORDS)] = 1.0
    else:  # drawn at random, a little sharp
        generator = torch.Generator().manual_seed(5)
        scores = 2 * torch.randn(len(x), x.shape[1], x.shape[1], generator=generator)
        pattern = torch.softmax(scores, -1) * real[:, None, :]
    return pattern / pattern.sum(-1, keepdim=True)


def site(
    x: Tensor, words: WordPositions, W_V: Tensor, kinds: list[str], noise: float = 0.0
) -> Activations:
    """One layer's chunk; ``noise`` is added to z, as a share of it."""
    pattern = torch.stack([pattern_of(kind, x) for kind in kinds], 1)
    v = torch.einsum("bkd,hde->bhke", x, W_V) + 0.5
    z = pattern @ v
    z = z * (1 + noise * torch.randn(z.shape, generator=torch.Generator().manual_seed(len(x))))
    return activations(pattern, v=v, z=z)


def chunks(
    spaces: LayerSpaces, layer: Activations, x: Tensor, words: WordPositions
) -> Iterator[LayerChunk]:
    """One half of the sentences at once, the other head by head."""
    half = len(x) // 2
    slices = [(slice(0, half), slice(0, layer.n_heads))]
    slices += [(slice(half, len(x)), slice(head, head + 1)) for head in range(layer.n_heads)]
    for rows, heads in slices:
        chunk = activations(
            layer.pattern[rows, heads],
            examples=rows,
            heads=heads,
            n_heads=layer.n_heads,
            v=layer.v[rows, heads],
            z=layer.z[rows, heads],
        )
        yield LayerChunk(chunk, x, words, spaces)


def held_out(
    W_V: Tensor,
    kinds: list[str],
    noise: float = 0.0,
    fit: tuple[Tensor, WordPositions] | None = None,
) -> tuple[dict[str, Clustered], LayerMaps]:
    """Fit on sentences and measure on others; with ``fit``, on the same ones."""
    spaces = LayerSpaces.of(W_V, 0)
    sums = LayerSums(spaces)
    x, words = fit or sentences(0)
    folds = torch.arange(len(x)) % FOLDS
    for chunk in chunks(spaces, site(x, words, W_V, kinds, noise), x, words):
        sums.update(chunk, folds[chunk.examples])
    maps = sums.solve()
    x, words = fit or sentences(1)
    errors = torch.zeros(len(x), *ERRORS, len(kinds), dtype=torch.float64)
    for chunk in chunks(spaces, site(x, words, W_V, kinds, noise), x, words):
        errors[chunk.examples, ..., chunk.heads] = maps.errors(chunk)
    return explained(errors.numpy()), maps


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_head_without_values_tells_nothing(noise):
    """A z that is constant but for rounding in float32, which differs from one CPU to the next."""
    held, maps = held_out(torch.zeros(1, D, WIDTH), ["drawn"], noise)
    assert held["whole"].value[0] == pytest.approx(0.0, abs=0.02)
    assert np.isnan(held["value"].value[0])  # there is no space that it reads
    assert not maps.spaces.U.any()
    # Not even a little: the map is the mean, whatever the noise.
    assert not maps.weights[TARGETS["whole"][1]][0].any()


def test_every_number_by_a_slow_program():
    """One head, query by query in NumPy: normal equations, folds and means spelled out."""
    generator = torch.Generator().manual_seed(3)
    tall = torch.randn(D, WIDTH, generator=generator)
    square = torch.randn(WIDTH, WIDTH, generator=generator)
    W_V = (tall @ square)[None]
    held, maps = held_out(W_V, ["drawn"])
    G = maps.spaces.G[0].numpy()
    U = maps.spaces.U[0].numpy()
    V = G @ maps.spaces.to_V[0].numpy()
    np.testing.assert_allclose(V.T @ V, np.eye(WIDTH), atol=1e-12)
    fit = slow_rows(*sentences(0), W_V, U=U, G=G, V=V)
    test = slow_rows(*sentences(1), W_V, U=U, G=G, V=V)
    fold = fit["sentence"] % FOLDS
    for target, (predictor_index, target_index) in TARGETS.items():
        from_random = target in ("directions", "token_directions", "gaussian")
        predictor = "mixed" if from_random else "z"
        column = {"directions": "whole", "token_directions": "token"}.get(target, target)
        X = fit[predictor]
        Y = fit[column]
        errors = []
        for penalty in PENALTIES:
            squares = 0.0
            for f in range(FOLDS):
                left_out = np.flatnonzero(fold == f)
                rest = np.flatnonzero(fold != f)
                fitted = slow_ridge(X[rest], Y[rest], penalty)
                squares += ((Y[left_out] - fitted(X[left_out])) ** 2).sum()
            errors.append(squares)
        best = PENALTIES[int(np.argmin(errors))]
        chosen = maps.penalties[target_index][predictor_index].item()
        assert chosen == pytest.approx(best), target
        fitted = slow_ridge(X, Y, best)
        error = ((test[column] - fitted(test[predictor])) ** 2).sum()
        distance = ((test[column] - Y.mean(0)) ** 2).sum()
        assert held[target].value[0] == pytest.approx(1 - error / distance, abs=1e-5), target


def slow_ridge(X: np.ndarray, Y: np.ndarray, penalty: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map that is fitted on rows of X and Y."""
    x = X.mean(0)
    y = Y.mean(0)
    C = (X - x).T @ (X - x) / len(X)
    C += penalty * np.trace(C) / len(C) * np.eye(len(C))
    weight = np.linalg.solve(C, (X - x).T @ (Y - y) / len(X))
    return lambda rows: y + (rows - x) @ weight


def slow_rows(x: Tensor, words: WordPositions, W_V: Tensor, *, U, G, V) -> dict[str, np.ndarray]:
    """Return predictors, targets and the number of the sentence, by word."""
    pattern = pattern_of("drawn", x)
    columns: dict[str, list[np.ndarray]] = {}
    for s in range(len(x)):
        states = x[s].double().numpy()
        positions = [p for p in range(x.shape[1]) if words.content[s, p]]
        for query in positions:
            weights = pattern[s, query].double().numpy()
            a = sum(weights[k] * states[k] for k in range(len(states)))
            top = max(positions, key=lambda k: weights[k])
            for name, value in (
                ("z", a @ W_V[0].double().numpy() + 0.5),
                ("mixed", a @ G),
                ("whole", a),
                ("token", states[top]),
                ("value", states[top] @ U),
                ("gaussian", states[top] @ V),
                ("sentence", s),
                ("other", states[int(words.other[s, query])] @ U),
            ):
                columns.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in columns.items()}


def test_a_wide_target_is_seen_through_a_few_directions(monkeypatch):
    """A sketch of twelve directions chooses the penalty of the whole target, or one near it."""
    x = torch.randn(200, WORDS + 2, 40, generator=torch.Generator().manual_seed(2))
    _, words = sentences(0, 200)
    W_V = torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(3))
    penalties = []
    for directions in (40, 12):
        monkeypatch.setattr(read_words, "SKETCH", directions)
        _, maps = held_out(W_V, ["even", "next", "drawn"], fit=(x, words))
        penalties.append(torch.stack(maps.penalties[:2]).log10())
    assert (penalties[0] - penalties[1]).abs().max() <= 1.01  # two steps of the grid
