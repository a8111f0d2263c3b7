"""What z holds: the same maps fitted by another way; planted heads: tests/planted."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hand_made import activations
from torch import Tensor

from headscope.analyses.flow import recovery
from headscope.analyses.flow.clustered import Clustered
from headscope.analyses.flow.recovery import (
    ERRORS,
    FOLDS,
    PENALTIES,
    TARGETS,
    LayerChunk,
    LayerMaps,
    LayerSpaces,
    LayerSums,
    WordPositions,
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
    real = torch.ones(x.shape[:2])
    real[::3, -1] = 0.0  # a token of padding, and a special token less
    if kind == "even":
        pattern = real[:, None, :].expand(-1, x.shape[1], -1).clone()
    elif kind == "next":
        step = torch.arange(x.shape[1])
        pattern = torch.zeros(len(x), x.shape[1], x.shape[1])
        pattern[:, step, (step + 1).clamp(max=WORDS)] = 1.0
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
    spaces: LayerSpaces, every: Activations, x: Tensor, words: WordPositions
) -> Iterator[LayerChunk]:
    """One half of the sentences at once, the other head by head."""
    half = len(x) // 2
    n_heads = every.n_heads
    one_by_one = [(slice(half, len(x)), slice(head, head + 1)) for head in range(n_heads)]
    for rows, heads in ((slice(0, half), slice(0, n_heads)), *one_by_one):
        v, pattern, z = (part[rows, heads] for part in (every.v, every.pattern, every.z))
        part = activations(pattern, rows=rows, heads=heads, n_heads=n_heads, v=v, z=z)
        yield LayerChunk(part, x, words, spaces)


def held_out(
    W_V: Tensor,
    kinds: list[str],
    noise: float = 0.0,
    fit: tuple[Tensor, WordPositions] | None = None,
) -> tuple[dict[str, Clustered], LayerMaps]:
    """Fit on sentences and measure on others."""
    spaces = LayerSpaces.of(W_V, 0)
    sums = LayerSums(spaces)
    x, words = fit or sentences(0)
    folds = torch.arange(len(x)) % FOLDS
    for chunk in chunks(spaces, site(x, words, W_V, kinds, noise), x, words):
        sums.update(chunk, folds[chunk.rows])
    maps = sums.solve()
    x, words = fit or sentences(1)
    errors = torch.zeros(len(x), *ERRORS, len(kinds), dtype=torch.float64)
    for chunk in chunks(spaces, site(x, words, W_V, kinds, noise), x, words):
        errors[chunk.rows, ..., chunk.heads] = maps.errors(chunk)
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
    left, right = (torch.randn(n, WIDTH, generator=generator) for n in (D, WIDTH))
    W_V = (left @ right)[None]
    held, maps = held_out(W_V, ["drawn"])
    G, U, to_V = (part[0].numpy() for part in (maps.spaces.G, maps.spaces.U, maps.spaces.to_V))
    directions = {"G": G, "U": U, "V": G @ to_V}
    np.testing.assert_allclose(directions["V"].T @ directions["V"], np.eye(WIDTH), atol=1e-12)
    fit, test = (_rows(*sentences(seed), W_V, **directions) for seed in (0, 1))
    fold = fit["sentence"] % FOLDS
    for target in TARGETS:
        random = target in ("directions", "token_directions", "gaussian")
        given = "mixed" if random else "z"
        name = {"directions": "whole", "token_directions": "token"}.get(target, target)
        errors = [
            sum(
                (_left(fit, fold != f, fit, fold == f, given, name, penalty) ** 2).sum()
                for f in range(FOLDS)
            )
            for penalty in PENALTIES
        ]
        best = PENALTIES[int(np.argmin(errors))]
        predictor, column = TARGETS[target]
        assert maps.penalties[column][predictor].item() == pytest.approx(best), target
        left = _left(fit, fold >= 0, test, test["sentence"] >= 0, given, name, best)
        expected = 1 - (left**2).sum() / ((test[name] - fit[name].mean(0)) ** 2).sum()
        assert held[target].value[0] == pytest.approx(expected, abs=1e-5), target


def _left(fit, fitted, test, tested, given: str, name: str, penalty: float) -> np.ndarray:
    """What a map fitted on some rows leaves of others."""
    X = fit[given][fitted]
    Y = fit[name][fitted]
    x = X.mean(0)
    y = Y.mean(0)
    C = (X - x).T @ (X - x) / len(X)
    C += penalty * np.trace(C) / len(C) * np.eye(len(C))
    weight = np.linalg.solve(C, (X - x).T @ (Y - y) / len(X))
    return np.asarray(test[name][tested] - y - (test[given][tested] - x) @ weight)


def _rows(x: Tensor, words: WordPositions, W_V: Tensor, *, U, G, V) -> dict[str, np.ndarray]:
    pattern = pattern_of("drawn", x)
    found: dict[str, list[np.ndarray]] = {}
    for s in range(len(x)):
        states = x[s].double().numpy()
        positions = [p for p in range(x.shape[1]) if words.content[s, p]]
        for query in positions:
            row = pattern[s, query].double().numpy()
            a = sum(row[k] * states[k] for k in range(len(states)))
            top = max(positions, key=lambda k: row[k])
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
                found.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in found.items()}


def test_a_wide_target_is_seen_through_a_few_directions(monkeypatch):
    """A sketch of twelve directions chooses the penalty of the whole target, or one near it."""
    x = torch.randn(200, WORDS + 2, 40, generator=torch.Generator().manual_seed(2))
    _, words = sentences(0, 200)
    W_V = torch.randn(3, 40, 4, generator=torch.Generator().manual_seed(3))
    penalties = []
    for directions in (40, 12):
        monkeypatch.setattr(recovery, "SKETCH", directions)
        _, maps = held_out(W_V, ["even", "next", "drawn"], fit=(x, words))
        penalties.append(torch.stack(maps.penalties[:2]).log10())
    assert (penalties[0] - penalties[1]).abs().max() <= 1.01  # two steps of the grid
