"""What is made of a kept thing is made once, and of anything else every time."""

from headscope.core.once import keeping, once


class Thing:
    """Something that work is done on."""


def test_only_what_is_kept_is_made_once_and_no_longer_than_the_run():
    made, mine, other = [], Thing(), Thing()

    def make():
        made.append(len(made))
        return made[-1]

    assert [once(mine, "a", make) for _ in range(2)] == [0, 1]
    with keeping(mine):
        assert [once(mine, "a", make) for _ in range(3)] == [2, 2, 2]
        assert [once(mine, "b", make), once(mine, "a", make)] == [3, 2]
        assert [once(other, "a", make) for _ in range(2)] == [4, 5]
        with keeping(other), keeping(mine):
            assert [once(mine, "a", make), once(other, "a", make)] == [2, 6]
        assert once(other, "a", make) == 7
        assert once(mine, "a", make) == 2
    assert once(mine, "a", make) == 8
