"""The largest trees, against every tree there is and against networkx."""

from __future__ import annotations

import itertools

import networkx
import pytest
import torch

from headscope.measures.flow.arborescence import largest_trees


def every_tree(n: int, root: int) -> list[tuple[int, ...]]:
    """All ways to give each word a head so that all of them lead to the root."""
    found = []
    for heads in itertools.product(range(n), repeat=n):
        tree = tuple(-1 if word == root else head for word, head in enumerate(heads))
        if tree not in found and all(reaches(tree, word, root) for word in range(n)):
            found.append(tree)
    return found


def reaches(tree: tuple[int, ...], word: int, root: int) -> bool:
    for _ in tree:
        if word == root:
            return True
        word = tree[word]
    return word == root


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_no_other_tree_scores_more(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    scores = torch.randn(40, n, n, generator=generator, dtype=torch.float64)
    roots = torch.randint(n, (40,), generator=generator)
    for matrix, root, found in zip(scores, roots, largest_trees(scores, roots), strict=True):
        scored = {
            sum(float(matrix[head, word]) for word, head in enumerate(tree) if head >= 0): tree
            for tree in every_tree(n, int(root))
        }
        assert tuple(found.tolist()) == scored[max(scored)]


@pytest.mark.parametrize(("n", "sharp"), [(6, 1.0), (9, 6.0), (17, 8.0)])
def test_many_cycles_in_cycles(n: int, sharp: float) -> None:
    """Sharp rows run in many cycles that have to be broken one inside the other."""
    generator = torch.Generator().manual_seed(n)
    scores = torch.softmax(sharp * torch.randn(24, n, n, generator=generator), -1).double()
    roots = torch.randint(n, (24,), generator=generator)
    for matrix, root, found in zip(scores, roots, largest_trees(scores, roots), strict=True):
        graph = networkx.DiGraph()
        for head, word in itertools.permutations(range(n), 2):
            if word != root:
                graph.add_edge(head, word, weight=float(matrix[head, word]))
        edges = networkx.maximum_spanning_arborescence(graph).edges
        assert {word: head for head, word in edges} == {
            word: head for word, head in enumerate(found.tolist()) if word != root
        }


def test_a_cycle_is_broken_where_it_costs_least() -> None:
    """1 and 2 want each other; entering at 2 loses 9 for 5, entering at 1 loses 10 for 8."""
    scores = torch.tensor([[0.0, 8.0, 5.0], [0.0, 0.0, 9.0], [0.0, 10.0, 0.0]])
    assert largest_trees(scores[None], torch.tensor([0])).tolist() == [[-1, 0, 1]]


def test_graphs_do_not_disturb_each_other() -> None:
    """Alone, or among others that need more steps: the same trees; ties are trees as well."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.softmax(8 * torch.randn(30, 11, 11, generator=generator), -1)
    scores[3:6] = 0.0
    roots = torch.randint(11, (30,), generator=generator)
    together = largest_trees(scores, roots)
    alone = [largest_trees(scores[i : i + 1], roots[i : i + 1])[0] for i in range(30)]
    assert torch.equal(together, torch.stack(alone))
    for tree, root in zip(together.tolist(), roots.tolist(), strict=True):
        assert all(reaches(tuple(tree), word, root) for word in range(11))
