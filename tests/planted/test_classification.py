"""Classification recovers every role that was planted by hand, and labels nothing else."""

import pytest
from planted_models import PlantedRole, build_planted, random_bert

import headscope


def label(role: PlantedRole) -> list[tuple[str, str]]:
    """What a head must be called: role and detail; nothing where none was planted."""
    detail = {
        "positional": f"{role.offset or 0:+d}",
        "syntactic": f"{role.relation} {role.direction}",
        "special": "last",
    }
    return [(role.kind, detail.get(role.kind, ""))] if role.kind != "none" else []


@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_recovers_every_planted_role_and_nothing_else(tmp_path, long):
    planted = build_planted(tmp_path / "planted", long=long)
    options = {"frequencies": planted.frequencies}
    result = headscope.classify(str(planted.folder), planted.treebank, **options)
    assert len(result.heads) == len(planted.roles)
    for head in result.heads:
        role = planted.roles[head.layer, head.head]
        assert [(one.role, one.detail) for one in head.labels] == label(role), head.name
        assert head.primary == role.kind
    folder = random_bert(tmp_path / "random", seed=int(long))  # random weights earn no label
    brief = {"limit": 150, "validate": False, **options}
    result = headscope.classify(str(folder), planted.treebank, **brief)
    assert not any({"syntactic", "rare"} & set(head.roles) for head in result.heads)
