"""What is said of a head first: the words that it links, or the place where it looks."""

from types import SimpleNamespace

import numpy as np
import pytest

import headscope
from headscope.analyses.explain.view import _control, _lead

N = 8


def shifted(by: int, weight: float) -> np.ndarray:
    """Attention of this weight to the token so far away, and of the rest to all tokens evenly."""
    pattern = np.zeros((N, N))
    for query in range(N):
        inside = 0 <= query + by < N
        pattern[query] = (1 - weight * inside) / N
        if inside:
            pattern[query, query + by] += weight
    return pattern


def to_end(key: int, weight: float) -> np.ndarray:
    pattern = np.full((N, N), (1 - weight) / N)
    pattern[:, key] += weight
    return pattern


def said(pattern: np.ndarray, link: float = 0.0, *, chosen: bool = False) -> str:
    heads = [SimpleNamespace(name="L2H1", link=link)]
    patterns = {"L2H1": pattern.tolist()}
    return _lead(SimpleNamespace(name="L2H1", heads=heads, patterns=patterns, chosen=chosen))


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        (shifted(-1, 0.9), "the previous token: 91%"),
        (shifted(1, 0.9), "the next token: 91%"),
        (shifted(-2, 0.9), "the token before the previous one: 91%"),
        (shifted(0, 0.9), "the token itself: 91%"),
        (to_end(0, 0.8), "the first token: 82%"),
        (to_end(N - 1, 0.8), "the last token: 82%"),
    ],
)
def test_a_head_that_looks_at_a_place_is_said_to(pattern, where):
    expected = f"L2H1 looks at {where} of a token's attention lies there, on average over this "
    assert said(pattern) == f"{expected}sentence, whatever its words."
    assert said(pattern, 0.3).endswith(
        "Of words, each word gives its favourite 0.30 more attention than other words give it."
    )


def test_other_heads_link_words():
    even = np.full((N, N), 1 / N)
    words = "each word gives its favourite 0.20 more attention than other words give it."
    assert said(even, 0.2) == f"L2H1: {words}"
    chosen = said(shifted(-1, 0.9), 0.2, chosen=True)
    assert chosen == f"L2H1 links the words of this sentence most clearly: {words}"


def control(pattern: np.ndarray, link: float, other_links: list[float], *, chosen: bool) -> str:
    heads = [SimpleNamespace(name="L2H1", link=link, even=3.0)]
    heads += [SimpleNamespace(name=f"L3H{i}", link=x) for i, x in enumerate(other_links)]
    patterns = {"L2H1": pattern.tolist()}
    return _control(SimpleNamespace(name="L2H1", heads=heads, patterns=patterns, chosen=chosen))


def test_the_second_line_says_what_other_heads_do():
    even = np.full((N, N), 1 / N)
    others = "In the model's other 3 heads that is 0.04 at the median and 0.15 at most (L3H1)."
    for chosen in (True, False):
        assert control(even, 0.2, [0.01, 0.15, 0.04], chosen=chosen) == others
    assert control(even, 0.001, [0.001], chosen=True) == ""
    place = "Spread evenly, a token's attention to any one place is about 12%."
    assert control(shifted(-1, 0.9), 0.0, [0.1], chosen=False) == place
    both = control(shifted(-1, 0.9), 0.3, [0.01, 0.15, 0.04], chosen=False)
    assert both == f"{place} {others}"


def test_a_previous_token_head_of_the_real_model(demo):
    result = headscope.explain(demo, "The cat sat on the mat.", head="L0H2", validate=False)
    assert str(result).startswith("L0H2 looks at the previous token: 100% of a token's attention")
