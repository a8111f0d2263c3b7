"""Options become arguments in one way, whether they come as flags or from a table of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import typer.main

import headscope
from headscope.cli import settings, shared_options
from headscope.cli.app import app
from headscope.cli.arguments import OptionError, arguments, section_settings, table_arguments
from headscope.cli.command import Call, model_command
from headscope.cli.prune import RepairName
from headscope.cli.rank import Biases
from headscope.errors import InputError


@pytest.mark.parametrize(
    ("command", "values", "expected"),
    [
        ("rank", {"biases": "include", "share": "sigma"}, {"biases": True, "share": "sigma"}),
        ("rank", {"biases": Biases.exclude, "rtol": None}, {"biases": False}),
        (
            "rank",
            {"share_projections": "48, 96", "fresh": True},
            {"share_projections": (48, 96), "fresh": True},
        ),
        (
            "depth",
            {"no_validate": True, "log": True, "length": 8},
            {"validate": False, "length": 8},
        ),
        ("depth", {"format": "csv", "quiet": True, "debug": True, "model": "m"}, {}),
        (
            "spectrum",
            {"resume": False, "output": Path("o")},
            {"resume": False, "state": Path("o/.spectrum.state.safetensors")},
        ),
        ("rank", {"output": Path("o")}, {}),
        (
            "prune",
            {"method": ["fisher"], "repair": [RepairName.none]},
            {"methods": ["fisher"], "repairs": ["none"]},
        ),
        (
            "prune",
            {"fraction": [0.5], "keep_roles": "a, b,"},
            {"fractions": [0.5], "keep_roles": ["a", "b"]},
        ),
        ("prune", {"no_roles": True}, {"roles": False}),
        ("prune", {"no_roles": False, "roles": Path("r")}, {"roles": Path("r")}),
        (
            "report",
            {"only": "rank,", "fresh": True, "text": Path("t"), "limit": 3},
            {"only": ["rank"]},
        ),
        (
            "classify",
            {"thresholds": {"rare": 0.3, "q": 0.1}, "threshold": [" rare = 0.2"]},
            {"thresholds": headscope.Thresholds(rare=0.2, q=0.1)},
        ),
        (
            "insights",
            {"threshold": ["most=0.6"], "treebank": Path("t")},
            {"thresholds": headscope.InsightThresholds(most=0.6)},
        ),
        ("classify", {"thresholds": {}, "threshold": []}, {}),
    ],
)
def test_options_become_arguments(
    command: str, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert arguments(command, values) == expected


@pytest.mark.parametrize(
    ("command", "values", "flag", "table"),
    [
        ("rank", {"share_projections": "4,x"}, "'4,x' is not", "[rank] share_projections: '4,x'"),
        ("prune", {"keep_roles": ","}, "name a role", "[prune] keep_roles: name a role"),
        (
            "prune",
            {"roles": Path("r"), "no_roles": True},
            "give --roles or --no-roles, not both",
            "[prune] sets roles and no_roles",
        ),
        (
            "classify",
            {"text": Path("t"), "treebank": Path("t")},
            "give --treebank or --text, not both",
            "[classify] sets treebank and text",
        ),
    ],
)
def test_slips_are_told_where_they_stand(
    command: str, values: dict[str, Any], flag: str, table: str
) -> None:
    with pytest.raises(OptionError) as slip:
        arguments(command, values)
    assert flag in slip.value.on_command_line().message
    with pytest.raises(InputError) as failure:
        table_arguments(command, values)
    assert table in str(failure.value)


def test_sections_take_their_table_and_the_flags(tmp_path: Path) -> None:
    text, trees, path = tmp_path / "a.txt", tmp_path / "a.conllu", tmp_path / "mine.toml"
    text.write_text("the cat\n")
    trees.write_text("1\tcat\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    path.write_text(
        f"[classify]\ntext = '{text}'\nlanguage = 'en'\noutput = 'o'\ndtype = 'float64'\n"
        "[depth]\ndtype = 'float32'\nlog = true\n[prune]\nlimit = 3\nsave = 'x'\n"
    )
    here, names = (
        typer.Context(typer.main.get_command(app)),
        ("validate", "classify", "rank", "depth", "prune"),
    )
    settings.read_settings(path, here)
    found = section_settings(here, names, {"treebank": None, "text": None, "limit": None})
    assert found["classify"].pop("corpus").name == str(text)
    assert found == {
        "validate": {},
        "rank": {},
        "classify": {"language": "en"},
        "depth": {"dtype": "float32"},
        "prune": {"limit": 3},
    }
    found = section_settings(here, names, {"treebank": trees, "text": text, "limit": 9})
    assert found["classify"].pop("corpus").name == str(trees)
    assert found["classify"] == {"language": "en", "limit": 9}
    assert found["rank"] == {"text": text, "limit": 9}
    assert found["depth"] == {"text": text, "dtype": "float32"}
    assert found["prune"] == {"limit": 3}


def test_a_new_command_has_the_shared_options_around_its_own() -> None:
    @model_command("words")
    def tiny(
        call: Call,
        size: Annotated[int, typer.Option(help="Of it.")] = 3,
        seed: shared_options.Seed = 0,
        dtype: shared_options.DtypeOption = shared_options.Dtype.float64,
    ) -> None:
        """Measure something."""
        called.append((call, size))

    called: list[tuple[Call, int]] = []
    group = typer.Typer(add_completion=False)
    group.command("tiny")(tiny)
    command = typer.main.get_command(group)
    assert [param.name for param in command.params] == [
        *("model", "size", "seed", "format", "dtype", "device", "revision", "allow_pickle"),
        *("config", "quiet", "debug"),
    ]
    command(["m", "--size", "4"], standalone_mode=False)
    [(call, size)] = called
    assert (call.command, call.unit, size) == ("tiny", "words", 4)
    assert call.arguments() == {
        "size": 4,
        "seed": 0,
        "dtype": "float64",
        "device": "auto",
        "allow_pickle": False,
    }
