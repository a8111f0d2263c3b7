"""The cases: cases.toml has those that are written one by one; those of every command follow."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TINY = ("bert", "modernbert", "marian")
COMMANDS = (
    "attribute",
    "classify",
    "compare",
    "depth",
    "diff",
    "explain",
    "flow",
    "insights",
    "linear",
    "list",
    "prune",
    "rank",
    "report",
    "schema",
    "shrink",
    "export",
    "serve",
    "spectrum",
    "symmetric",
    "transfer",
    "validate",
)
_HERE = Path(__file__).parent


class Case(NamedTuple):
    """Commands that run one after the other in one folder; ``model`` names their record."""

    model: str
    name: str
    steps: list[str]

    @property
    def id(self) -> str:
        return f"{self.model}/{self.name}"


def all_cases() -> Iterator[Case]:
    """Yield every case of every model."""
    tables = tomllib.loads((_HERE / "cases.toml").read_text("utf-8"))
    quick = tables.pop("quick")
    other = tables.pop("quick-marian")
    for model in TINY:
        for command, words in (quick | (other if model == "marian" else {})).items():
            line = re.sub(r"\bM\b", model, f"{command} {words}")
            folder = "" if "-o " in line or command == "validate" else " -o out"
            yield Case(model, command, [line + folder])
            if model == "bert":
                for form in ("json", "csv"):
                    yield Case(model, f"{command}-{form}", [f"{line} --format {form}"])
    for model, table in tables.items():
        of_model = {c: w.replace("M", model, 1) for c, w in quick.items()}
        if model == "marian":
            of_model |= {command: words.replace("M", model, 1) for command, words in other.items()}
        for name, lines in table.items():
            steps = [lines] if isinstance(lines, str) else lines
            full = [s.replace("...", of_model.get(s.partition(" ")[0], "")) for s in steps]
            yield Case(model, name, full)
    for command in COMMANDS:
        yield Case("wrong", f"option-{command}", [f"{command} bert --no-such-option"])
        if command in quick:
            text = " text" if command == "explain" else ""
            yield Case("wrong", f"model-{command}", [f"{command} nowhere{text} -o out"])
            yield Case("wrong", f"config-{command}", [f"{command} bert{text} --config slip.toml"])
            yield Case("wrong", f"value-{command}", [f"{command} bert{text} --dtype many"])
        yield Case("words", f"help-{command}", [f"{command} --help"])
        yield Case("words", f"config-{command}", [f"config show {command}"])
    for line in ("--help", "--version", "config --help", "config show --help", "config show"):
        yield Case("words", line.strip("-").replace(" ", "-"), [line])
    for kind in ("", "methods", "tasks", "roles", "families", "limits"):
        forms = [f"list {kind}{form}" for form in ("", " --format json", " --format csv")]
        yield Case("words", f"list-{kind or 'all'}", forms)
    for path in sorted((_HERE.parents[1] / "headscope" / "configs").glob("*.toml")):
        yield Case("words", f"config-file-{path.stem}", [f"config show --config {path.stem}"])
