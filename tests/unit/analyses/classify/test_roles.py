"""A role is a file: what each has to say, and that a new file is a new role everywhere."""

import sys
from pathlib import Path

import pytest

from headscope.analyses.classify import roles
from headscope.analyses.classify.roles import NO_ROLE, ROLES, roles_of
from headscope.core.roles import SELF_ATTENTION

NEW_ROLE = """
from headscope.core.roles import Role

ROLES = (
    Role(
        rank=65,
        key="sink",
        name="sink",
        mark="sink",
        colour="#000000",
        style="bold",
        light="#ffffff",
        dark="#000000",
        keys=lambda batch: batch.content,
        threshold=0.5,
    ),
)
"""


def test_roles_stand_in_the_order_of_their_ranks():
    ranks = [role.rank for role in ROLES]
    assert ranks == sorted(set(ranks))
    assert max(ranks) < NO_ROLE.rank
    assert len({role.key for role in ROLES}) == len({role.name for role in ROLES}) == len(ROLES)


@pytest.mark.parametrize("role", ROLES, ids=[role.key for role in ROLES])
def test_a_role_is_earned_in_one_way_and_says_what_it_is(role):
    """By a mean that has a threshold, or by a test, which says when it cannot be made."""
    assert bool(role.quantity) != bool(role.judge)
    assert bool(role.quantity) == bool(role.threshold)
    assert role.judge is None or role.untestable is not None
    assert role.words
    assert role.mark or role.legend, "a map without a mark needs words below it"
    assert len(role.mark) <= 5


def test_a_new_file_is_a_new_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sink.py").write_text(NEW_ROLE)
    monkeypatch.setattr(roles, "__path__", [*roles.__path__, str(tmp_path)])
    try:
        found_here = {role.key for role in roles._in_this_folder()}
    finally:
        sys.modules.pop("headscope.analyses.classify.roles.sink", None)
    assert found_here == {"sink", *(role.key for role in ROLES)}


def test_labels_of_pairs_take_the_place_of_syntactic_roles_in_an_encoder():
    names = [role.key for role in roles_of("encoder", labels=("a", "b"))]
    assert names[:4] == ["positional", "pair:a", "pair:b", "rare"]
    assert "pair:a" in {role.key for role in roles_of("cross", labels=("a",))}
    assert "syntactic" in {role.key for role in roles_of("encoder", "cross", labels=("a",))}
    decoder = roles_of("decoder")
    assert all(set(role.stacks) & set(SELF_ATTENTION) for role in decoder)
