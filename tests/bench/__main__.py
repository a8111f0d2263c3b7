"""Every ratio of speed in one run, as one table.

From the repository, with nothing else on the machine: ``PYTHONPATH=tests python -m bench TREEBANK
PAIRS CALIBRATION --large FOLDER --decoder FOLDER --python PEERS/bin/python --write 1``. Whole
commands on the demo and, once each, on a larger model and a decoder (:mod:`commands`), then the
peers beside ours (:mod:`peers`); ``--write 1`` writes the tables of docs/measurements.md anew.
Without FOLDER or PEERS those parts are left out and named as not measured. It asserts nothing:
machines differ.
"""

import sys
import tempfile
from argparse import Namespace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import commands
import peers
from timing import load, options

COLUMNS = ("what", "seconds", "peak MiB", "ratio", "asked for")


def of_commands(model, settings, repeats, mark, sentences=0):
    """Yield rows of all whole commands on one model; writes their table of docs/measurements.md."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"model": model, "room": folder, "sentences": sentences}
        jobs = commands.commands(Namespace(**{**vars(settings), **own}))
        quiet = commands.measured(jobs, repeats)
    rows = list(commands.rows(jobs, quiet, {}))
    for row in rows:
        label = f"{row['command']}, {Path(model).name}"
        ratio = f"{row['of a bare pass']} of a bare pass" if row["of a bare pass"] else ""
        cells = (label, row["seconds"], row["peak MiB"], ratio, row["asked for"])
        yield dict(zip(COLUMNS, cells, strict=True))
    if settings.write:
        # None ran beside a program; what a bare pass takes has a row of its own.
        left_out = ("beside one program", "of a bare pass")
        shown = [name for name in rows[0] if name not in left_out]
        text = f"{peers.table(rows, shown)}\n\n{peers.runs_of(repeats)} on {peers.machine()}"
        if repeats > 1:
            text += ", of what takes a minute or more one run"
        text += f"; load {load()} at the end."
        peers.write_between(Path("docs/measurements.md"), text, mark)


def of_peers(settings):
    """Yield rows of the peers' times over ours; writes docs/measurements.md."""
    measured_rows, text = peers.measured(settings)
    for row in measured_rows:
        label = f"{row['what']}: {row['peer']} beside {row['headscope instead']}"
        seconds = f"{row.get('peer s', '')} / {row.get('headscope s', '')}"
        size = f"{row.get('peer MB', '')} / {row.get('headscope MB', '')}"
        ratio = row.get("peer / headscope", "")
        yield dict(zip(COLUMNS, (label, seconds, size, ratio, ""), strict=True))
    if settings.write:
        peers.write_between(Path("docs/measurements.md"), text, "peers")


def main():
    sizes = {"repeats": 3, "sentences": 300, "limit": 300.0}
    names = ("treebank?", "pairs?", "calibration?")
    settings = options(__doc__, *names, large="", decoder="", python="", write=0, **sizes)
    measured_rows = list(of_commands("demo", settings, settings.repeats, "commands"))
    if settings.large:
        measured_rows += of_commands(settings.large, settings, 1, "large")
    if settings.decoder:
        measured_rows += of_commands(settings.decoder, settings, 1, "decoder", sentences=1000)
    if settings.python:
        measured_rows += of_peers(
            Namespace(**vars(settings), only=[peer.job for peer in peers.PEERS])
        )
    print(peers.table(measured_rows, COLUMNS))
    parts = {
        "a larger model": settings.large,
        "a decoder": settings.decoder,
        "the peers": settings.python,
    }
    for name, value in parts.items():
        if not value:
            print(f"\nNot measured: {name}.")


if __name__ == "__main__":
    main()
