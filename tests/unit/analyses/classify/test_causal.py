"""A decoder's self-attention: every row is held against the keys that it may see."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hand_made import activations
from judging import judged

from headscope.analyses.classify.corpus_batches import Batches, first_replaced
from headscope.analyses.classify.rows import OFFSETS, RowReducer
from headscope.analyses.classify.sums import HeadMeasures
from headscope.data.batches import Batch, collate
from headscope.data.sentences import Sentence
from headscope.data.word_pieces import EncodedSentence
from tests.reference import lowest_argmax

N_HEADS = 4


@dataclasses.dataclass
class Line:
    """One sentence: its tokens, which of them are special, which are punctuation, its patterns."""

    ids: list[int]
    special: list[bool]
    punctuation: list[bool]
    pattern: np.ndarray


def make_lines(begins_special: bool, lengths: Sequence[int]) -> list[Line]:
    """Random causal patterns with equal weights, repeated tokens and full stops.

    Lengths are without the special token.
    """
    rng = np.random.default_rng(0)
    lines = []
    for length in lengths:
        n = length + begins_special
        special = [begins_special, *[False] * (n - 1)] if n else []
        marks = [not x and bool(rng.random() < 0.2) for x in special]
        weights = rng.integers(0, 4, (N_HEADS, n, n)) * np.tri(n)
        weights[:, range(n), range(n)] += weights.sum(-1) == 0
        pattern = weights / weights.sum(-1, keepdims=True)
        ids = [99 if x else int(rng.integers(5)) for x in special]
        lines.append(Line(ids, special, marks, pattern))
    return lines


def collated(lines: Sequence[Line]) -> Batch:
    encoded = []
    for line in lines:
        content = ~np.array(line.special)
        marks = np.array(line.punctuation)[content]
        words = tuple("." if mark else "w" for mark in marks)
        word_of = np.where(content, content.cumsum() - 1, -1)
        first = np.flatnonzero(content)
        sentence = Sentence(words, None, None)
        encoded.append(EncodedSentence(np.array(line.ids), word_of, first, sentence, None))
    return collate(encoded, 0, causal=True)


def measured(lines: Sequence[Line]) -> HeadMeasures:
    """All lines in one batch; sites of other stacks are passed over."""
    batch = collated(lines)
    n = batch.size[1]
    pattern = torch.zeros(len(lines), N_HEADS, n, n, dtype=torch.float64)
    for row, line in enumerate(lines):
        pattern[row, :, : len(line.ids), : len(line.ids)] = torch.from_numpy(line.pattern)
        pattern[row, :, len(line.ids) :, 0] = 1.0  # padding attends, too
    sums = HeadMeasures(1, N_HEADS)
    reducer = RowReducer(1, N_HEADS, sums.update, "decoder")
    reducer.start(batch)
    for stack in ("encoder", "decoder", "cross"):
        shown = pattern if stack == "decoder" else torch.full_like(pattern, math.nan)
        reducer.observe(activations(shown, stack))
        reducer.finish(stack, 0)
    return sums


def slow(lines: Sequence[Line], head: int) -> dict[str, float]:
    """Every number of one head, row by row from the definitions; NaN without a row."""
    values: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        values.setdefault(name, []).append(float(value))

    for line in lines:
        for i, row in enumerate(line.pattern[head]):
            if line.special[i] or i < 2:
                continue
            keys = [j for j in range(1, i + 1) if not line.special[j]]
            looks_at = lowest_argmax(row, keys)
            entropy = -sum(p * math.log(p) for p in row if p > 0)
            note("confidence", max(row[j] for j in keys))
            note("entropy", entropy)
            if i + 1 >= 2:
                note("relative_entropy", entropy / math.log(i + 1))
            if i + 1 >= 20:
                note("long_entropy", entropy / math.log(i + 1))
            if i >= 4:
                note("first_token", row[0])
                note("uniform first_token", 1 / (i + 1))
            for name, marks in (("special", line.special), ("punctuation", line.punctuation)):
                note(f"{name}_mass", sum(row[j] for j in range(i + 1) if marks[j]))
                note(f"uniform {name}_mass", sum(marks[: i + 1]) / (i + 1))
            note("self_rate", looks_at == i)
            note("uniform self_rate", 1 / len(keys))
            copies = [j for j in keys if j != i and line.ids[j] == line.ids[i]]
            if copies:
                note("duplicate_rate", looks_at in copies)
                note("uniform duplicate_rate", len(copies) / len(keys))
            note("chance", 1 / len(keys))
            for r in OFFSETS:
                if i + r in keys:
                    note(f"rate {r}", looks_at == i + r)
                if 0 <= i + r <= i:
                    note(f"mass {r}", row[i + r])
    return {name: float(np.mean(numbers)) for name, numbers in values.items()}


MEANS = ("confidence", "entropy", "relative_entropy", "long_entropy")
RATES = ("special_mass", "punctuation_mass", "self_rate", "duplicate_rate")
SINK = "first_token"


@pytest.mark.parametrize("begins_special", [True, False])
def test_numbers_equal_a_loop_over_rows(begins_special):
    lines = make_lines(begins_special, (1, 2, 5, 9, 21, 24, 30))
    sums = measured(lines)
    for head in judged(sums, "decoder", [range(N_HEADS)]):
        expected = slow(lines, head.head)
        for name in MEANS + RATES:
            assert getattr(head, name) == pytest.approx(expected[name], abs=1e-6), name
        assert head.first_token.weight.value == pytest.approx(expected[SINK], abs=1e-6)
        assert head.first_token.uniform == pytest.approx(expected[f"uniform {SINK}"])
        assert head.positional.chance == pytest.approx(expected["chance"])
        for r in OFFSETS:
            rate_and_mass = (head.positional.rates[str(r)], head.positional.mass[str(r)])
            if r > 0:  # nobody can look there
                assert rate_and_mass == (None, None)
            else:
                assert rate_and_mass == pytest.approx(
                    (expected[f"rate {r}"], expected[f"mass {r}"])
                )
    # Expectations under uniform attention are those of what a row sees.
    all_queries, duplicate = sums.profile.queries[[0, 8]].tolist()
    for name, total in zip(RATES, sums.profile.uniform, strict=False):
        queries = duplicate if name == "duplicate_rate" else all_queries
        assert float(total) / queries == pytest.approx(expected[f"uniform {name}"]), name


def test_even_attention_is_broad_the_previous_token_a_position_and_the_first_a_sink():
    lines = make_lines(True, [25] * 60)
    for line in lines:
        n = len(line.ids)
        even = np.tri(n) / np.arange(1, n + 1)[:, None]
        before = np.eye(n, k=-1)
        first = np.eye(n)
        # The first content token sees a special token and itself alone.
        before[:2] = np.eye(n)[:2]
        first[:] = first[0]
        line.pattern = np.stack([even, before, first, first])
    heads = judged(measured(lines), "decoder", [range(N_HEADS)])
    assert [head.roles for head in heads[:3]] == [
        ("broad",),
        ("positional",),
        ("first_token", "special"),
    ]
    assert (heads[0].relative_entropy, heads[0].long_entropy) == pytest.approx((1.0, 1.0))
    assert (heads[0].name, heads[0].syntactic, heads[0].rare) == ("decoder:L0H0", (), None)
    assert heads[1].labels[0].detail == "-1"
    sink, special = heads[2].labels
    assert sink.detail == ""  # nothing was read with another first token
    assert special.detail in ("first", "last")  # there is one special token


def test_another_first_token_is_drawn_whatever_batch_a_sentence_is_in():
    """From the content of all sentences, never the sentence's own; a skipped one stays out."""
    rng = np.random.default_rng(0)
    items = []
    for length in (3, 8, 5, 4):
        word_of = np.arange(length) - 1  # a special token, and then words
        ids = np.array([99, *rng.integers(5, size=length - 1)])
        sentence = Sentence(("w",) * (length - 1), None, None)
        items.append(EncodedSentence(ids, word_of, np.arange(1, length), sentence, None))
    batches = Batches(
        n_items=5,
        read=lambda: iter(items),
        encode=lambda rows, check: [*rows, None],
        collate=lambda rows: rows,
    )
    changed = list(first_replaced(batches, seed=0).encode(items, True))
    assert changed.pop() is None
    content = {int(token) for item in items for token in item.ids[1:]}
    for before, after in zip(items, changed, strict=True):
        assert int(after.ids[0]) in content - {99}
        assert after.ids[1:].tolist() == before.ids[1:].tolist()
        assert before.ids[0] == 99
    reversed_items = first_replaced(batches, seed=0).encode(items[::-1], True)
    assert [item.ids.tolist() for item in [*reversed_items][-2::-1]] == [
        item.ids.tolist() for item in changed
    ]
