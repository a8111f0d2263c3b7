"""One bar for a run of several parts."""

from __future__ import annotations

from headscope.pipeline.prune.steps import Steps, stages


def test_parts_fill_one_bar_after_another() -> None:
    seen: list[tuple[str, int, int]] = []
    parts = stages(lambda *told: seen.append(told), [("", 2.0), ("encoder", 3.0), ("cross", 1.0)])
    for total in (2.0, 3.0, 1.0):
        tell = next(parts)
        steps = Steps(tell, {"measured": 1.0}, total)
        for _ in range(int(total) + 1):  # one more than was planned
            steps.did("measured")
        tell("gates", 1, 9)
    assert [told[1] for told in seen if told[0] == "all"] == [1, 2, 2, 3, 4, 5, 5, 6, 6]
    assert {told[2] for told in seen if told[0] == "all"} == {6}
    assert [told[0] for told in seen if told[0] != "all"] == [
        "gates",
        "encoder, gates",
        "cross, gates",
    ]


def test_a_run_of_one_part_tells_what_it_always_told() -> None:
    seen: list[tuple[str, int, int]] = []
    (tell,) = stages(lambda *told: seen.append(told), [("", 2.4)])
    tell("all", 1, 2)
    assert seen == [("all", 1, 2)]
