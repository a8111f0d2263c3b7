"""Outputs on README and pages of docs/ are what their commands print: look, or write them anew.

A page marks an example by a comment in front of its block, with the lines that it shows::

    <!-- output 12: headscope rank demo -->

The commands run in a folder that holds data and models by the names that pages use. To write all
outputs of some pages anew: ``python tests/page_outputs.py rank depth``.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE = re.compile(r"<!-- output (\d+): (headscope .+) -->\n+```text\n(.*?)^```$", re.M | re.S)


def desk(folder: Path) -> Path:
    """Link data and models into a folder."""
    shared = Path(os.environ["HEADSCOPE_SHARED"])
    named = [Path(os.environ[name]) for name in ("HEADSCOPE_MPNET", "HEADSCOPE_SMOLLM2")]
    for path in (*(shared / "data").iterdir(), *(shared / "models").iterdir(), *named):
        (folder / path.name).symlink_to(path)
    return folder


def printed(command: str, lines: int, folder: Path) -> str:
    """Run a command; return its first lines, and ``...`` where there are more."""
    program = [sys.executable, "-m", *shlex.split(command)]
    if not command.startswith("headscope list"):  # the others show progress
        program.append("--quiet")
    done = subprocess.run(
        program, cwd=folder, capture_output=True, text=True, check=True, timeout=900
    )
    output = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    more = ["..."] if len(output) > lines else []
    return "\n".join([*output[:lines], *more]) + "\n"


def main(names: list[str]) -> None:
    """Write the outputs of pages anew; without names, of all."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = desk(Path(temporary))
        for path in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
            if names and path.stem not in names:
                continue
            text = path.read_text(encoding="utf-8")
            for example in EXAMPLE.finditer(text):
                lines, command, old = example.groups()
                new = printed(command, int(lines), folder)
                print(f"{path.name}: {command}: {'as it was' if new == old else 'new'}")
                text = text.replace(example.group(), example.group().replace(old, new))
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
