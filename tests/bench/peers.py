"""How do headscope's commands compare with what a user would take instead? Side by side in one run.

Once, in an environment of the peers' own::

    python -m venv PEERS && PEERS/bin/pip install -r tests/bench/peers-requirements.txt

Then, from the repository and headscope's environment::

    python tests/bench/peers.py --python PEERS/bin/python --write docs/peers.md --readme README.md

Every job runs in a process of its own, in turn with headscope's, several times; the table has
medians. Timed is the job alone: imports and the loading of the model are left out on both sides,
headscope's certificate is not. A peer that is not installed, or fails, is a row that says so. It
asserts nothing about time: machines differ.
"""

import argparse
import dataclasses
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from peer_scripts import Clock

os.environ["HF_HUB_OFFLINE"] = "1"

SCRIPTS = Path(__file__).with_name("peer_scripts.py")
BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
LENGTHS = (128, 512)


@dataclasses.dataclass(frozen=True)
class Peer:
    """A program to compare with.

    ``job`` is its name in peer_scripts.py, ``package`` whose version is shown, ``ours`` the job of
    this file beside it, and ``cannot`` is what the peer leaves to its user, in README's words.
    """

    job: str
    title: str
    package: str
    ours: str
    what: str
    cannot: str

    @property
    def instead(self) -> str:
        return "page of `classify`" if self.ours == "page" else f"`{self.ours}`"


#: job | title | package | ours | what | what it leaves to its user
PEERS = tuple(
    Peer(*(cell.strip() for cell in line.split("|")))
    for line in """
output_attentions | a script, transformers | transformers | classify | \
 head statistics, {sentences} sentences | \
 no baseline, interval or proof; a text's patterns are held all at once
transformerlens | TransformerLens | transformer-lens | classify | the same from its cache | \
 takes no BERT without a task head; no dependency relations
nnsight | nnsight | nnsight | classify | the same from its trace | measures nothing itself
bertviz | BertViz | bertviz | page | page of {length} tokens | \
 no statistics over a corpus; the page loads scripts from a CDN
weightwatcher | WeightWatcher | weightwatcher | rank | ranks of weights | \
 knows no heads: one row a matrix
""".strip().splitlines()
)


def classify(given: dict[str, Any]) -> dict[str, Any]:
    """Classify every head on the sentences."""
    import headscope
    from headscope.data.corpus import as_corpus
    from headscope.data.sentence import Sentence

    loaded = headscope.load("demo")
    corpus = as_corpus(
        [
            Sentence(tuple(s["words"]), tuple(s["heads"]), tuple(s["relations"]))
            for s in given["sentences"]
        ]
    )
    clock = Clock()
    result = headscope.classify(loaded, corpus, language="en")
    return {**clock.read(), "entropies": [head.entropy for head in result.heads]}


def rank(given: dict[str, Any]) -> dict[str, Any]:
    """Ranks of every head's products."""
    import headscope

    loaded = headscope.load("demo")
    clock = Clock()
    headscope.rank(loaded)
    return clock.read()


def page(given: dict[str, Any]) -> dict[str, Any]:
    """Classify the heads on one text of each length, and write the page."""
    import headscope
    from headscope.data.corpus import open_text
    from headscope.show.page.html import report_html

    loaded = headscope.load("demo")
    room, pages = Path(given["room"]), {}
    for length in LENGTHS:
        text = room / f"text-{length}.txt"
        text.write_text(_cut(given["words"], length, loaded) + "\n")
        clock = Clock()
        chosen = {"corpus": open_text(text), "language": "en", "control": False, "ablate": False}
        report = headscope.report(loaded, only=["classify"], settings={"classify": chosen})
        html = report_html(report).encode()
        (room / f"headscope-{length}.html").write_bytes(html)
        pages[str(length)] = {**clock.read(), "bytes": len(html)}
    return {"pages": pages}


def _cut(words: Sequence[str], length: int, loaded: Any) -> str:
    """Join as many words as fit ``length`` tokens."""
    taken: list[str] = []
    used = 2
    for word in words:
        used += len(loaded.tokenizer.tokenize(word))
        if used > length:
            break
        taken.append(word)
    return " ".join(taken)


OURS = {job.__name__: job for job in (classify, rank, page)}


def run(command: Sequence[str | Path], limit: float) -> dict[str, Any]:
    """Run one job; ``error`` says how it failed."""
    try:
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"error": f"cut off after {limit:.0f} s"}
    except OSError as error:
        return {"error": str(error)}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"ended with code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def side_by_side(
    peer: Peer, python: Path, given: Path, repeats: int, limit: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run the peer and headscope in turn; a peer that fails is not asked again."""
    theirs: list[dict[str, Any]] = []
    ours: list[dict[str, Any]] = []
    for _ in range(repeats):
        if not any("error" in found for found in theirs):
            theirs.append(run([python, SCRIPTS, peer.job, given], limit))
        ours.append(run([sys.executable, Path(__file__), "--ours", peer.ours, given], limit))
        if "error" in ours[-1]:
            raise SystemExit(f"headscope's {peer.ours}: {ours[-1]['error']}")
    return theirs, ours


def make_given(folder: Path, sentences: int) -> Path:
    """Write what all jobs are given: sentences of the built-in sample, and one long text."""
    import wordfreq

    from headscope.data.corpus import as_corpus
    from headscope.models.demo import demo_folder

    corpus = list(as_corpus(None))
    chosen = [
        {
            "words": list(s.words),
            "heads": list(s.heads or ()),
            "relations": list(s.relations or ()),
            "rarest": min(
                range(len(s.words)),
                key=lambda i, s=s: wordfreq.word_frequency(s.words[i].lower(), "en"),
            ),
        }
        for s in corpus[:sentences]
    ]
    path = folder / "given.json"
    words = [word for sentence in corpus for word in sentence.words][:1000]
    path.write_text(
        json.dumps(
            {
                "folder": str(demo_folder()),
                "room": str(folder),
                "sentences": chosen,
                "words": words,
                "lengths": LENGTHS,
                "packages": ["torch", *(peer.package for peer in PEERS)],
            }
        )
    )
    return path


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table; figures are medians, or missing with the reason in ``note``."""

    peer: str
    what: str
    instead: str
    note: str
    cannot: str
    figures: tuple[float, ...] | None = None
    sizes: tuple[float, float] | None = None


def rows_of(
    peer: Peer, theirs: list[dict[str, Any]], ours: list[dict[str, Any]], version: str, many: int
) -> list[Row]:
    title = f"{peer.title} {version}".strip()
    what = peer.what.format(sentences=many, length="{length}")
    row = partial(Row, title, instead=peer.instead, cannot=peer.cannot)
    failed = next((found["error"] for found in theirs if "error" in found), None)
    if failed is not None:
        return [row(what=what.format(length=LENGTHS[0]), note=failed)]
    peaks = _medians((theirs, ours), "peak_mb")
    facts = "; ".join(theirs[0].get("facts", ()))
    if "pages" not in theirs[0]:
        took = _medians((theirs, ours), "seconds", "cpu")
        note = "; ".join(filter(None, (agreement(theirs[0], ours[0]), facts)))
        return [row(what=what, figures=(*took, *peaks), note=note)]
    rows = []
    for length in LENGTHS:
        pages = [[found["pages"][str(length)] for found in side] for side in (theirs, ours)]
        took, sizes = _medians(pages, "seconds", "cpu"), _medians(pages, "bytes")
        figures = (*took, *peaks)
        rows.append(row(what=what.format(length=length), figures=figures, sizes=sizes, note=facts))
    return rows


def _medians(sides: Sequence[Sequence[dict[str, Any]]], *names: str) -> tuple[float, ...]:
    """Return the medians of each quantity: theirs, then ours."""
    return tuple(statistics.median(f[name] for f in side) for name in names for side in sides)


def agreement(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """Say whether both found the same mean entropies of the heads' rows."""
    if "entropies" not in theirs:
        return ""
    pairs = zip(theirs["entropies"], ours["entropies"], strict=True)
    return f"mean entropies of heads differ by {max(abs(a - b) for a, b in pairs):.0e} at most"


HEADINGS = (
    *("peer", "what", "headscope instead", "peer s", "headscope s", "peer / headscope"),
    *("the same of processor time", "peer MB", "headscope MB", "page", "found"),
)


def table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, ("---",) * len(HEADINGS)]
    for row in rows:
        figures, size = ("",) * 6, ""
        if row.figures is not None:
            theirs, ours, their_cpu, our_cpu, *peaks = row.figures
            figures = (
                f"{theirs:.2f}",
                f"{ours:.2f}",
                f"**{theirs / ours:.1f}**",
                f"{their_cpu / our_cpu:.1f}",
                *(f"{peak:.0f}" for peak in peaks),
            )
        if row.sizes is not None:
            size = " / ".join(f"{size / 1e6:.2f}" for size in row.sizes) + " MB"
        note = row.note if row.figures is not None else f"failed: {row.note}"
        lines.append((row.peer, row.what, row.instead, *figures, size, note.replace("|", "\\|")))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def short_table(rows: Sequence[Row]) -> str:
    """Lay out README's table: the ratio of times, pages, and what the peer cannot do."""
    headings = ("instead of headscope", "for", "its time / ours", "page, its / ours", "cannot")
    lines = [headings, ("---",) * len(headings)]
    for row in rows:
        ratio = "failed" if row.figures is None else f"{row.figures[0] / row.figures[1]:.1f}"
        size = "" if row.sizes is None else " / ".join(f"{s / 1e6:.1f}" for s in row.sizes) + " MB"
        lines.append((row.peer, row.what, ratio, size, row.cannot))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_between(path: Path, text: str) -> None:
    """Put the table between the markers of a page."""
    page = path.read_text()
    if BEGIN not in page or END not in page:
        raise SystemExit(f"{path} has no {BEGIN} and {END}")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def machine() -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        )
        if Path("/proc/cpuinfo").exists()
        else iter(()),
        platform.processor(),
    )
    return f"{os.cpu_count()} cores, {cpu}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="interpreter of the peers' environment")
    parser.add_argument("--only", nargs="*", choices=[peer.job for peer in PEERS])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that one job may take")
    parser.add_argument("--write", type=Path, help="page whose table is written anew")
    parser.add_argument("--readme", type=Path, help="page whose short table is written anew")
    parser.add_argument("--ours", nargs=2, metavar=("JOB", "GIVEN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        job, given = arguments.ours
        found = OURS[job](json.loads(Path(given).read_text()))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"peak_mb": peak, **found}))
        return
    if arguments.python is None:
        parser.error("name the interpreter of the peers' environment: --python PEERS/bin/python")
    with tempfile.TemporaryDirectory() as folder:
        rows, footer = measured(arguments, Path(folder))
    text = f"{table(rows)}\n\n{footer}"
    print(text)
    if arguments.write:
        write_between(arguments.write, text)
    if arguments.readme:
        write_between(arguments.readme, short_table(rows))


def measured(arguments: argparse.Namespace, folder: Path) -> tuple[list[Row], str]:
    start = time.perf_counter()
    given = make_given(folder, arguments.sentences)
    found = run([arguments.python, SCRIPTS, "versions", given], arguments.limit)
    versions = found.get("versions", {})
    rows: list[Row] = []
    for peer in PEERS:
        if arguments.only and peer.job not in arguments.only:
            continue
        print(f"{peer.title} ...", file=sys.stderr, flush=True)
        theirs, ours = side_by_side(
            peer, arguments.python, given, arguments.repeats, arguments.limit
        )
        version = versions.get(peer.package, "")
        rows += rows_of(peer, theirs, ours, version, arguments.sentences)
    both = ("torch", "transformers")
    shown = ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in both)
    took = time.perf_counter() - start
    return rows, (
        f"Medians of {arguments.repeats} runs in turn on {machine()}; the peers' "
        f"{shown}; the whole run took {took:.0f} s."
    )


if __name__ == "__main__":
    main()
