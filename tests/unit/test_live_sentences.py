"""What ``serve`` says in words, and what it may conclude from random sets."""

import pytest

from headscope.live.random_sets import RANDOM, RandomSets
from headscope.live.sentences import (
    LESS,
    LIKE_RANDOM,
    MORE,
    Lead,
    NumberChange,
    judged,
    said,
)

TWELVE = [f"L{layer}H{head}" for layer in (0, 1) for head in range(6)]
SETS = RandomSets([[]] * RANDOM)


def lead(*values, **more):
    return Lead(
        statement="The model says: negative 0.93", subject="negative", values=values, **more
    )


def values(full, without, low, high):
    """A lead's values, with as many random ones as there are sets."""
    return (full, without, low, *[(low + high) / 2] * (RANDOM - 2), high)


def test_the_answer_is_a_sentence_and_its_control():
    told = said(lead(*values(0.93, 0.58, 0.91, 0.95)), TWELVE, SETS)
    assert told.answer == "Without these 12 heads: negative falls from 0.93 to 0.58."
    assert told.control == (
        "19 random sets of 12 in the same layers: 0.91 to 0.95, so these heads matter here."
    )
    assert "2 of 20 cases" in told.note


def test_heads_inside_the_range_do_as_random_ones_and_nothing_is_said_of_chance():
    told = said(lead(*values(0.93, 0.92, 0.91, 0.95)), TWELVE, SETS)
    assert told.control.endswith(": 0.91 to 0.95, so these heads do as random ones do.")
    assert told.note == ""


def test_with_all_heads_on_the_sentence_invites():
    told = said(lead(0.93), [], RandomSets([]))
    assert told.answer == (
        "The model says: negative 0.93. Click a layer\u2019s name to switch it off."
    )
    assert told.control == told.note == ""


def test_of_two_texts_on_their_own_each_is_told():
    second = Lead(statement="after the second: \u201ca\u201d 0.40", subject="a", values=(0.4,))
    told = said(lead(0.93), [], RandomSets([]), of_second=second)
    assert told.answer.startswith(
        "The model says: negative 0.93; after the second: \u201ca\u201d 0.40. Click"
    )
    second = second._replace(values=values(0.4, 0.35, 0.3, 0.5))
    told = said(lead(*values(0.93, 0.58, 0.91, 0.95)), TWELVE, SETS, of_second=second)
    assert told.answer == (
        "Without these 12 heads, first text: negative falls from 0.93 to 0.58; "
        "second text: a falls from 0.40 to 0.35."
    )
    assert told.control == (
        "19 random sets of 12 in the same layers: 0.91 to 0.95 for the first text, so these heads "
        "matter here; 0.30 to 0.50 for the second, so these heads do as random ones do."
    )
    assert "2 of 20 cases" in told.note


@pytest.mark.parametrize(
    ("full", "without", "low", "high", "verdict"),
    [
        (0.93, 0.58, 0.91, 0.95, MORE),
        (0.50, 0.70, 0.40, 0.60, MORE),  # raised above all
        (0.50, 0.55, 0.30, 0.48, MORE),  # raised, where every random set lowers
        (0.50, 0.49, 0.30, 0.48, LESS),
        (0.50, 0.50, 0.52, 0.60, LESS),
        (0.50, 0.40, 0.40, 0.60, LIKE_RANDOM),  # a tie with the lowest is no difference
        (0.50, 0.3996, 0.4004, 0.60, LIKE_RANDOM),  # shown as equal numbers
    ],
)
def test_what_is_concluded_from_random_sets(full, without, low, high, verdict):
    assert judged(full, without, [low, high]) == verdict


def test_numbers_have_as_many_decimals_as_tell_them_apart():
    told = said(lead(*values(0.9312, 0.9294, 0.9302, 0.9308)), TWELVE, SETS)
    assert told.answer.endswith("falls from 0.931 to 0.929.")
    assert ": 0.930 to 0.931, so these heads matter here." in told.control
    assert said(lead(0.5, 0.5, *[0.5] * 19), TWELVE, SETS).answer.endswith("stays at 0.50.")
    assert "from \u22120.10 to \u22120.25." in said(lead(-0.1, -0.25), TWELVE, SETS).answer


def test_sets_that_are_all_there_are_are_said_to_be_so():
    others = RandomSets([[]] * 11)
    told = said(lead(0.9, 0.5, *[0.8] * 11), ["L2H3"], others)
    assert told.answer == "Without L2H3: negative falls from 0.90 to 0.50."
    assert told.control == (
        "The 11 other heads of its layer, one at a time: 0.80, "
        "so this head matters more here than each of them."
    )
    assert "2 of 12 cases" in told.note
    alike = said(lead(0.9, 0.8, *[0.8] * 11), ["L2H3"], others)
    assert alike.control.endswith("so this head does as the others do.")


def test_sets_from_all_layers_are_called_so_and_no_sets_too():
    anywhere = RandomSets([[]] * RANDOM, anywhere=True)
    told = said(lead(*values(0.9, 0.5, 0.7, 0.8)), TWELVE, anywhere)
    assert told.control.startswith("19 random sets of 12 heads from all layers: 0.70 to 0.80")
    none = said(lead(0.9, 0.5), TWELVE, RandomSets([]))
    assert none.control.startswith("There are no random sets to compare with")


def test_changes_are_counted_in_whole_numbers():
    tags = Lead("Tags: Paris LOC", "tags change", values=[0, 3, *[1] * 19], counted=9)
    told = said(tags, TWELVE, SETS)
    assert told.answer == "Without these 12 heads: 3 of 9 tags change."
    assert ": 1, so these heads matter here." in told.control


def several(*pairs):
    """A lead of several numbers, (full, without) each, whose random sets change by 0.2 to 0.5."""
    numbers = [NumberChange(name, *pair) for name, pair in zip("abcd", pairs, strict=False)]
    largest = max(number.size for number in numbers)
    values = (0.0, largest, 0.2, *[0.3] * (RANDOM - 2), 0.5)
    return Lead("The model says: a 1.00", "the largest change", values, several=numbers)


@pytest.mark.parametrize(
    ("numbers", "answer"),
    [
        (
            [(1.0, 1.1), (-0.5, 0.12), (0.3, 0.3)],
            "b changes most of 3 numbers, by 0.62 (from \u22120.50 to 0.12); "
            "1 of the 2 others changes.",
        ),
        (
            [(1.0, 1.1), (0.5, 0.62), (0.3, 0.29)],
            "b changes most of 3 numbers, by 0.12 (from 0.50 to 0.62); the 2 others change too.",
        ),
        (
            [(1.0, 1.001), (0.5, 0.5)],
            "a changes most of 2 numbers, by 0.001 (from 1.000 to 1.001); the other stays.",
        ),
        ([(1.0, 1.0001), (0.5, 0.5)], "none of the 2 numbers changes."),
    ],
)
def test_of_several_numbers_the_one_that_changes_most_is_told(numbers, answer):
    assert said(several(*numbers), TWELVE, SETS).answer == f"Without these 12 heads: {answer}"


def test_of_several_numbers_the_largest_changes_are_compared():
    told = said(several((1.0, 1.1), (-0.5, 0.12)), TWELVE, SETS)
    assert told.control == (
        "19 random sets of 12 in the same layers: their largest change is 0.20 to 0.50, "
        "so these heads matter here."
    )
