"""Words as nodes, hubs, rates over sentences, trees that know nothing, and the largest trees."""

import itertools

import networkx
import numpy as np
import pytest
import torch

from headscope.analyses.flow.graph import Clustered, HubSums, WordNodes, in_degree, top_share
from headscope.analyses.flow.trees import (
    BASELINES,
    GoldTrees,
    TreeCounts,
    TreeSearch,
    candidates,
    choose_heads,
    largest_trees,
    simple_trees,
    summed,
)
from headscope.data.files import Sentence


def two_sentences(causal: bool = False) -> WordNodes:
    """[CLS] a bb bb c [SEP], and [CLS] a [SEP] with padding."""
    node = torch.tensor([[0, 1, 2, 2, 3, 4], [0, 1, 2, -1, -1, -1]])
    content = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 1, 0, 0, 0, 0]]).bool()
    names = (("[CLS]", "a", "bb", "c", "[SEP]"), ("[CLS]", "a", "[SEP]"))
    return WordNodes(node, content, torch.zeros_like(node), names, causal)


def test_weights_to_a_word_are_summed_and_from_a_word_averaged():
    nodes = two_sentences()
    pattern = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    graph = nodes.fold(pattern)
    for s, names in enumerate(nodes.names):
        places = [(nodes.node[s] == n).nonzero()[:, 0].tolist() for n in range(len(names))]
        for i, j in np.ndindex(len(names), len(names)):
            block = pattern[s][:, places[i]][:, :, places[j]]
            torch.testing.assert_close(graph[s, :, i, j], block.sum(2).mean(1))
    assert not graph[1, :, 3:].any()
    assert nodes.is_word.tolist() == [[False, True, True, True, False], [False, True] + [False] * 3]
    even = nodes.even  # looks at pieces, and not ahead
    torch.testing.assert_close(even[0, 1], torch.tensor([1.0, 1, 2, 1, 1]) / 6)
    torch.testing.assert_close(even[1, 1, :3], torch.ones(3) / 3)
    seen = two_sentences(causal=True).even
    torch.testing.assert_close(seen[0, 1], torch.tensor([0.5, 0.5, 0, 0, 0]))


def test_in_degree_counts_what_other_words_give():
    nodes = two_sentences()
    graph = torch.zeros(2, 1, 5, 5)
    graph[0, 0, :, 0] = 0.75  # everything looks at [CLS] ...
    graph[0, 0, range(5), range(5)] = 0.25  # ... and at itself
    graph[1, 0, 1, 2] = 1.0
    received, even = in_degree(graph, nodes)
    assert received[:, 0].tolist() == [[3 * 0.75, 0, 0, 0, 0], [0, 0, 1, 0, 0]]  # not [SEP]
    assert even[1].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 0])
    assert top_share(received, torch.tensor([5, 3])).tolist() == [[1.0], [1.0]]
    shares = top_share(torch.tensor([[[1.0, 3.0, 2.0, 2.0]]]), torch.tensor([15]))
    assert shares.item() == pytest.approx(5 / 8)  # a tenth of 15 nodes are 2


def test_hubs_are_found_and_held_against_chance():
    nodes = two_sentences()
    graph = torch.zeros(2, 2, 5, 5)
    graph[:, 0, :, 0] = 1.0
    graph[0, 1, :, 3] = 1.0
    graph[1, 1, :, 2] = 1.0
    first = HubSums()
    for _ in range(8):
        first.update(graph, nodes)
    hubs = first.most_frequent()
    assert hubs == ["[CLS]", "[SEP]"]  # of two that are equally frequent the first by name
    again = HubSums()
    again.update(graph, nodes)
    hit, chance = again.rates(hubs)
    assert hit.value.tolist() == [1.0, 0.5]
    assert chance.value.tolist() == pytest.approx([(1 / 5 + 1 / 3) / 2] * 2)
    received, even, ratio, count = first.of("[CLS]")
    assert (received, count) == ((3 + 1) / 2 / 2, 16)
    assert ratio.value.item() == pytest.approx(received / even)
    assert set(first.most(5, least=8)) == {"[CLS]", "c"}  # "a" receives nothing
    assert first.most(5, least=17) == []
    assert first.of("elsewhere") is None


def test_rates_over_sentences_are_ratio_estimates():
    """Intervals are as wide as a bootstrap over sentences says, those of differences too."""
    random = np.random.default_rng(0)
    whole = random.integers(1, 9, (50, 1)).astype(float)
    part = random.binomial(whole.astype(int), [0.2, 0.7], (50, 2)).astype(float)
    found = Clustered.ratio(part, whole)
    np.testing.assert_allclose(found.value, part.sum(0) / whole.sum())
    gap = Clustered(found.value[:1], found.influence[:, :1], found.units[:1]) - found.mean()
    drawn = random.integers(0, 50, (4000, 50))
    rates = part[drawn].sum(1) / whole[drawn].sum(1)
    assert found.half_width() == pytest.approx(2.01 * rates.std(0), rel=0.1)
    assert gap.half_width()[0] == pytest.approx(2.01 * (rates[:, 0] - rates.mean(1)).std(), rel=0.1)
    assert gap.value[0] == pytest.approx((found.value[0] - found.value[1]) / 2)
    assert np.isinf(Clustered.ratio(part[:7], whole[:7]).half_width()).all()
    assert np.isfinite(Clustered.ratio(part[:8], whole[:8]).half_width()).all()
    # Numbers that are not known are left out of a mean.
    part, whole = np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[2.0, 0.0], [2.0, 0.0]])
    found = Clustered.ratio(part, whole)
    assert (np.isnan(found.value[1]), found.mean().value[0]) == (True, 0.75)


def gold(*heads: list[int], punctuation: int | None = None) -> GoldTrees:
    relations = [["punct" if i == punctuation else "dep" for i in range(len(h))] for h in heads]
    parts = zip(heads, relations, strict=True)
    return GoldTrees.of([Sentence(("a",) * len(h), tuple(h), tuple(r)) for h, r in parts])


def test_trees_that_know_only_the_root_and_attachment_without_punctuation():
    found = simple_trees(gold([1, -1, 1, 2]))
    for name, heads in {
        "previous": [1, 1, 2],
        "next": [1, 3, 1],
        "offset -2": [1, 0, 1],
        "root": [1, 1, 1],
    }.items():  # what stands at the root is not scored
        assert found[name][0, [0, 2, 3]].tolist() == heads
    counts = TreeCounts()
    counts.update(gold([1, -1, 1, 2], punctuation=3), {"x": torch.tensor([[1, -1, 0, 2]])})
    counts.update(gold([-1, 0], punctuation=None), {"x": torch.tensor([[-1, 0]])})
    assert counts.attachment("x").value[0] == pytest.approx(3 / 4)
    assert counts.attachment("x", punctuation=False).value[0] == pytest.approx(2 / 3)


def test_without_relations_no_word_is_punctuation():
    tree = GoldTrees.of([Sentence(("a", "b"), (1, -1)), Sentence(("a", "b", "c"), (-1, 0, 0))])
    assert tree.scored[0].equal(tree.scored[1])


def planted_graph(tree: GoldTrees, seed: int) -> torch.Tensor:
    """Four heads: noise, half of the edges from the dependent, the other half, all reversed."""
    n_sentences, n = tree.heads.shape
    generator = torch.Generator().manual_seed(seed)
    graph = 0.1 * torch.rand(n_sentences, 4, n, n, generator=generator)
    for s in range(n_sentences):
        for word, head in enumerate(tree.heads[s].tolist()):
            if head >= 0:
                graph[s, 1 + word % 2, word, head] += 1.0
    return graph


def random_gold(seed: int, n: int = 9, sentences: int = 20) -> GoldTrees:
    none = torch.full((sentences, n), 0)
    none[:, 0] = -1
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(sentences, 1, n, n, generator=generator)
    return gold(*gold(*none.tolist()).largest(scores)[:, 0].tolist())


def test_heads_that_hold_half_of_the_tree_each_are_found_and_added_up():
    search = TreeSearch(0)
    first, second = random_gold(1), random_gold(2)
    search.update(planted_graph(first, 1), first)
    search.choose()
    swapped = ([0, 1], gold(*second.heads[2:4].tolist()))
    search.update(planted_graph(second, 2), second, swapped)
    assert set(search.chosen) == {1, 2}
    assert search.best in (1, 2)
    assert search.counts.attachment("combination").value[0] == 1.0
    assert 0.4 < search.counts.attachment("best").value[0] < 0.8
    assert search.swapped.attachment("combination").value[0] < 0.6
    baselines = [search.baseline(name).value[0] for name in BASELINES]
    assert search.baseline(search.strongest).value[0] == max(baselines)
    assert search.counts.attachment("heads").value.argmax() == search.best


def test_directions_are_told_apart():
    trees = random_gold(1)
    graph = planted_graph(trees, 1)[:, 1:2] + planted_graph(trees, 1)[:, 2:3]
    both = trees.hits(trees.largest(candidates(graph)))[:, 0].sum(0)
    assert both[0] == trees.scored[0].sum() > 2 * both[1]
    turned = trees.hits(trees.largest(candidates(graph.mT)))[:, 0].sum(0)
    assert turned[1] == both[0]
    assert choose_heads([(trees, graph.mT)], turned) == (1,)
    torch.testing.assert_close(summed(graph, (0, 1))[:, 0], graph[:, 0] + graph[:, 0].mT)


@pytest.mark.parametrize(("n", "sharp"), [(1, 1.0), (6, 1.0), (17, 8.0)])
def test_the_largest_trees_are_networkx(n, sharp):
    """Sharp rows run in many cycles that have to be broken one inside the other."""
    generator = torch.Generator().manual_seed(n)
    scores = torch.softmax(sharp * torch.randn(24, n, n, generator=generator), -1).double()
    roots = torch.randint(n, (24,), generator=generator)
    trees = largest_trees(scores, roots, torch.full((24,), n))
    for matrix, root, found in zip(scores, roots, trees, strict=True):
        graph = networkx.DiGraph()
        graph.add_nodes_from(range(n))
        for head, word in itertools.permutations(range(n), 2):
            if word != root:
                graph.add_edge(head, word, weight=float(matrix[head, word]))
        edges = networkx.maximum_spanning_arborescence(graph).edges
        assert {word: head for head, word in edges} == {
            word: head for word, head in enumerate(found.tolist()) if word != root
        }


def test_sentences_of_several_lengths_have_the_trees_that_each_has_alone():
    """Among others that need more steps as well; where scores are equal they are trees too."""

    def reaches(tree: list[int], word: int, root: int) -> bool:
        for _ in tree:
            word = word if word == root else tree[word]
        return word == root

    generator = torch.Generator().manual_seed(3)
    trees = [random_gold(n, n, 1).heads[0].tolist() for n in (9, 2, 14, 5, 9)]
    scores = torch.softmax(8 * torch.randn(5, 3, 14, 14, generator=generator), -1)
    scores[:, 0] = 0.0
    together = gold(*trees).largest(scores)
    assert gold(*trees).scored[0].sum(1).tolist() == [8, 1, 13, 4, 8]
    for tree, own, found in zip(trees, scores, together, strict=True):
        n, root = len(tree), tree.index(-1)
        assert torch.equal(found[:, :n], gold(tree).largest(own[None, :, :n, :n])[0])
        assert (found[:, root] == -1).all()
        assert all(reaches(found[0].tolist(), word, root) for word in range(n))
