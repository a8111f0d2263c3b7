"""What calibration data share with evaluation data is found sentence by sentence, and left out."""

import pytest

from headscope.data.corpus import as_plain
from headscope.data.examples import Examples, lines_without_shared, without_shared


def pairs(*both: str) -> Examples:
    first, second = zip(*(text.split("|") for text in both), strict=True)
    return Examples("pairs", "", first=first, second=second, scores=tuple(range(len(both))))


TEST = pairs("A man plays.|Someone  makes music.", "It rained.|It was wet.")


def test_either_side_of_a_pair_counts_whatever_its_case_and_white_space():
    train = pairs(
        "Someone makes music. |A dog ran.",  # the second side of a test pair, now the first
        "A cat sat.|It\trained.",
        "A cat sat.|A dog ran.",
        "IT RAINED.|A dog ran.",  # case counts no more than white space does
        "She sat.|A dog ran.",
    )
    found = without_shared(train, TEST)
    assert found.examples.first == ("A cat sat.", "She sat.")
    assert found.examples.scores == (2, 4)
    assert (found.dropped, found.shared, found.sentences, found.same) == (3, 2, 4, False)
    nothing = without_shared(train.pick([2, 4]), TEST)
    assert (nothing.dropped, nothing.shared, nothing.same) == (0, 0, False)


def test_where_nothing_would_be_left_everything_stays_and_is_told():
    found = without_shared(TEST, TEST)
    assert (found.examples, found.dropped, found.shared, found.same) == (TEST, 0, 4, True)


@pytest.mark.parametrize("ordered", [False, True], ids=["retrieval", "rerank"])
def test_queries_and_documents_count(ordered):
    """A query goes if it is shared, or if no relevant document of its own is left."""
    train = Examples(
        "train",
        "",
        first=("what rained", "who plays", "where", "why"),
        documents=("It rained.", "A man plays.", "Here.", "There.", "So."),
        relevance=({2: 1.0}, {1: 1.0, 3: 0.0}, {1: 1.0, 3: 2.0}, {4: 1.0}),
        candidates=((0, 2), (1, 3), (1, 3, 4), (4, 0)) if ordered else None,
    )
    test = Examples("test", "", first=("what rained", "how"), documents=("A man plays.", "Now."))
    found = without_shared(train, test)
    # The second query loses its only relevant document; "why" keeps two that can be ordered.
    assert found.examples.first == ("where", "why")
    assert found.examples.documents == ("It rained.", "Here.", "There.", "So.")
    assert found.examples.relevance == ({2: 2.0}, {3: 1.0})
    assert found.examples.candidates == (((2, 3), (3, 0)) if ordered else None)
    assert (found.dropped, found.shared) == (2 + 1, 2)


def test_lines_of_a_text():
    text = as_plain(["It rained.", "One.", " It was wet.", "Two."])
    assert list(lines_without_shared(text, TEST).lines()) == ["One.", "Two."]
    assert lines_without_shared(text, TEST).n_sentences == 2
    same = as_plain(["It rained."])
    assert lines_without_shared(same, TEST) is same
