from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from headscope.measures.classify.syntactic import Syntactic
from headscope.processes.sharing import (
    Array,
    Processes,
    alone,
    current,
    in_order,
    merged,
    own_file,
    share,
    shared_by,
    summed,
    texts_in_order,
)


class Recorded(Processes):
    """A process beside others, of which is known what they will say."""

    def __init__(self, rank: int, others: Mapping[int, Mapping[str, Array]]) -> None:
        self.rank, self.size, self._others = rank, len(others) + 1, others

    def gather(self, arrays: Mapping[str, Array], what: str) -> list[dict[str, Array]]:
        return [
            dict(arrays) if rank == self.rank else dict(self._others[rank])
            for rank in range(self.size)
        ]


def test_every_item_belongs_to_one_process():
    shares = []
    for rank in range(3):
        with shared_by(Recorded(rank, {other: {} for other in {0, 1, 2} - {rank}})):
            shares.append(list(share("abcdefg")))
    assert shares == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert current().size == 1
    assert list(share("abc")) == ["a", "b", "c"]


def test_one_process_gets_its_own_things_back_and_files_have_its_name():
    part, sums, path = torch.ones(2), Syntactic(1, 1), Path("out/.classify.state.safetensors")
    assert summed("x", part)[0] is part
    assert merged(sums, lambda: Syntactic(1, 1), "x") is sums
    assert own_file(path) == path
    with shared_by(Recorded(1, {0: {}})):
        assert own_file(path) == Path("out/.classify.state.2-of-2.safetensors")
        with alone():
            assert current().size == 1
            assert list(share("ab")) == ["a", "b"]
        assert current().size == 2


def syntactic(**trials: int) -> Syntactic:
    """Sums of some relations, in the order in which they were seen."""
    sums = Syntactic(1, 1)
    place = sums.relations.indices((0, name, "dep->head") for name in trials)
    sums._grow()
    sums.trials[place] = list(trials.values())
    return sums


def test_tensors_are_added_in_the_order_of_ranks():
    # The order decides about the last bit: (1e16 + 1) - 1e16 is 0, (1e16 - 1e16) + 1 is 1.
    others = {0: {"0": np.array([1e16])}, 2: {"0": np.array([-1e16])}}
    with shared_by(Recorded(1, others)):
        (total,) = summed("x", torch.tensor([1.0], dtype=torch.float64))
    assert total.tolist() == [0.0]


def test_sums_with_names_are_merged_by_name():
    class Named:
        """Syntactic sums whose state holds the names too."""

        def __init__(self, sums: Syntactic) -> None:
            self.sums = sums

        def state(self) -> dict[str, Array]:
            names = [name for _, name, _ in self.sums.relations.names]
            return {name: self.sums.trials[i : i + 1] for i, name in enumerate(names)}

        def load_state(self, state: dict[str, Array]) -> None:
            self.sums = syntactic(**{name: int(array[0]) for name, array in state.items()})

        def merge(self, other: Named) -> None:
            self.sums.merge(other.sums)

    with shared_by(Recorded(0, {1: {"obj": np.array([4]), "nsubj": np.array([10])}})):
        found = merged(Named(syntactic(nsubj=1, det=2)), lambda: Named(Syntactic(1, 1)), "x")
    sums = {name: int(array[0]) for name, array in found.state().items()}
    assert sums == {"nsubj": 11, "det": 2, "obj": 4}


def test_batches_and_texts_come_back_in_their_order():
    with shared_by(Recorded(0, {1: {"1": np.array([1.0]), "10": np.array([10.0])}})):
        parts = in_order("x", {0: torch.tensor([0.0]), 2: torch.tensor([2.0])})
        assert [float(part) for part in parts] == [0.0, 1.0, 2.0, 10.0]
    with shared_by(Recorded(0, {1: {"1": np.frombuffer("é".encode(), dtype=np.uint8)}})):
        assert texts_in_order("x", {0: "a", 2: ""}) == ["a", "é", ""]
