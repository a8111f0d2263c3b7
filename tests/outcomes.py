"""What a run of the command line left behind, and how tests look at it."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ended:
    """How a run ended: its code, or minus the signal that killed it; and what it said."""

    code: int
    stdout: str
    stderr: str
    seconds: float = 0.0

    @property
    def flat(self) -> str:
        """Stdout without line breaks."""
        return " ".join(self.stdout.split())

    @property
    def json(self) -> Any:
        """The result of a run that went well: strict JSON, and nothing on stderr."""
        assert (self.code, self.stderr) == (0, ""), self
        return strict_json(self.stdout)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The lines of a run that printed CSV."""
        assert self.code == 0, self
        return read_rows(self.stdout)


Command = Callable[..., Ended]


def strict_json(text: str) -> Any:
    """Read one JSON document without NaN and infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in the JSON")

    return json.loads(text, parse_constant=refuse)


def read_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def refused(ended: Ended, *words: str, code: int = 1) -> None:
    """Nothing on stdout and one sentence on stderr, which holds all words; typer frames its own.

    ``code`` is 2 for what the command line alone shows to be wrong, and 1 for files and models.
    """
    assert (ended.code, ended.stdout) == (code, ""), ended
    assert "Traceback" not in ended.stderr
    if code == 2 and not ended.stderr.startswith("headscope: "):
        assert "Error" in ended.stderr
    else:
        assert ended.stderr.startswith("headscope: ")
        assert ended.stderr.count("\n") == 1, ended.stderr
    said = " ".join(ended.stderr.replace("│", " ").split())
    for word in words:
        assert word in said or word in ended.stderr, (word, ended.stderr)


def fits(text: str) -> None:
    """No line is longer than 80 columns, but for code to paste, and none needs colour."""
    lines = [line for line in text.splitlines() if "read_results(" not in line]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in text
