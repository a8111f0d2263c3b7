"""Windows of a corpus, dealt out to processes; and what the bar promises over uneven ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from headscope.core.processes import Deal, Processes, shared_by
from headscope.data.batches import buckets
from headscope.data.corpus import WINDOW, as_corpus, work
from headscope.session import texts
from headscope.session.texts import own_batches

Row = tuple[int, ...]  # A sentence: its number, as often as it has tokens.


class Process(Processes):
    """One of several, all of which are played in turn."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def lengths(kind: str) -> list[int]:
    """Tokens of each sentence; windows have 8."""
    drawn = np.random.default_rng(0).integers(3, 20, 100).tolist()
    return {
        "even": drawn,
        "long end": [*drawn[:90], *(7 * n for n in drawn[90:])],
        "long start": [*(9 * n for n in drawn[:12]), *drawn[12:]],
        "one window": drawn[:7],
        "one sentence": [5],
    }[kind]


def read(tokens: Sequence[int]) -> Iterator[Row]:
    return ((number,) * n for number, n in enumerate(tokens))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "WINDOW", 8)
    monkeypatch.setattr(texts, "BATCH_TOKENS", 40)


def windows_of(tokens: Sequence[int]) -> list[float]:
    return [sum(map(work, tokens[i : i + 8])) for i in range(0, len(tokens), 8)]


@pytest.mark.parametrize("kind", ["even", "long end", "long start", "one window", "one sentence"])
@pytest.mark.usefixtures("small")
def test_processes_share_the_batches_of_one(kind):
    tokens = lengths(kind)
    skipped = {number for number in range(len(tokens)) if number % 9 == 4}
    sizes = windows_of(tokens)
    #: The oracle, without windows of rows that are read on and left out.
    kept = [[row for row in read(tokens) if row[0] // 8 == w] for w in range(len(sizes))]
    one = [b for window in kept for b in buckets([r for r in window if r[0] not in skipped], 40)]
    for k in (1, 2, 3, 5, 16):
        found, done, encoded = [], [], []
        for rank in range(k):
            checked = []

            def encode(
                rows: list[Row], first: bool, checked: list[int] = checked, encoded=encoded
            ) -> Iterator[Row | None]:
                if first:
                    checked.append(rows[0][0])
                encoded.append(rows[0][0] // 8)
                return (None if row[0] in skipped else row for row in rows)

            with shared_by(Process(rank, k)):
                own = list(own_batches(read(tokens), sizes, encode))
            assert checked in ([], [0]), "only the first window of all is the first"
            assert own == [batch for batch in own if batch[1] in one], "in the order of one process"
            places = [one.index(batch) for _, batch in own]
            assert places == sorted(places)
            found += places
            done.append(own[-1][0] if own else 0.0)
        assert sorted(found) == list(range(len(one)))
        assert sum(done) == pytest.approx(sum(sizes))
        # A process has its share, or a batch too much.
        largest = max(sum(work(len(row)) for row in batch) for batch in one)
        assert max(done) <= 1.01 * sum(sizes) / k + 1.6 * largest
        if k == 1:
            assert encoded == sorted(set(encoded))
        elif kind == "even":
            assert len(encoded) <= len(sizes) + k * (k - 1), "a window for each, by all, at the end"


def test_a_process_is_given_its_share_or_pieces():
    with shared_by(Process(1, 2)):
        deal = Deal(100.0)
        assert [deal.mine(30.0), deal.mine(20.0)] == [False, True]
        assert deal.fits(30.0)
        assert not deal.fits(31.0)
        assert [deal.mine(n) for n in (10.0, 5.0, 5.0)] == [True, False, True]


def test_sizes_of_a_corpus_are_those_of_its_windows():
    lines = [f"{'a' * (1 + number % 5)} b" for number in range(2 * WINDOW + 10)]
    corpus = as_corpus(lines)
    sizes = [
        sum(len(line) / 4 + (len(line) / 4) ** 2 / 250 for line in lines[i : i + WINDOW])
        for i in range(0, len(lines), WINDOW)
    ]
    assert corpus.sizes_of(len(lines)) == pytest.approx(sizes)
    assert corpus.sizes_of(WINDOW) == pytest.approx(sizes[:1])
    assert corpus.sizes_of(WINDOW + 1) == pytest.approx([sizes[0], sizes[1] / WINDOW])
    assert corpus.sizes_of(len(lines) - 5) == pytest.approx([*sizes[:2], sizes[2] / 2])
    assert as_corpus(["a" * 40_000]).sizes == (10_000 * (1 + 512 / 250),)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.usefixtures("small")
def test_the_bar_promises_what_comes(k):
    """The last sentences are seven times as long, and their tokens take a little longer."""
    tokens = [*([5, 14, 23, 9] * 240), *([35, 98, 161, 63] * 16)]
    said, now, seen = [], 0.0, 0

    def left(done: float, total: float) -> float:
        """What a bar promises that goes by the share that is done."""
        return now * (total - done) / done

    with shared_by(Process(0, k)):
        sizes = windows_of(tokens)
        for done, batch in own_batches(read(tokens), sizes, lambda rows, _: rows):
            now += len(batch) * max(map(len, batch)) * (1 + max(map(len, batch)) / 400)
            seen += len(batch)
            said.append((now, left(done, sum(sizes) / k), left(seen, len(tokens) / k)))
    for share in (0.25, 0.5, 0.75):
        at, by_sizes, other = next(one for one in said if one[0] >= share * now)
        assert 1 / 1.3 <= by_sizes / (now - at) <= 1.3
        assert other < (now - at) / 1.3, "counting sentences would do"
