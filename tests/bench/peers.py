"""How do headscope's commands compare with what a user would take instead? Side by side in one run.

docs/peers.md says how to run it. Every job runs in a process of its own, in turn with headscope's,
several times; the table has medians. Timed is the job alone: imports and the loading of the model
are left out on both sides, headscope's certificate is not. A peer that is not installed, or fails,
is a row that says so. It asserts nothing about time: machines differ.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

from timing import options

SCRIPTS = Path(__file__).with_name("peer_scripts.py")
LENGTHS = (128, 512)


#: Its job in peer_scripts.py, headscope's beside it.
Peer = namedtuple("Peer", "job title package ours what")
PEERS = [
    Peer(*(cell.strip() for cell in line.split("|")))
    for line in """
output_attentions | a script, transformers | transformers | classify | {sentences} sentences
transformerlens | TransformerLens | transformer-lens | classify | {sentences}, from its cache
nnsight | nnsight | nnsight | classify | {sentences}, from its trace
bertviz | BertViz | bertviz | page | page of {length} tokens
weightwatcher | WeightWatcher | weightwatcher | rank | ranks of weights
""".strip().splitlines()
]
COLUMNS = (
    "peer",
    "what",
    "headscope instead",
    "peer s",
    "headscope s",
    "peer / headscope",
    "of processor time",
    "peer MB",
    "headscope MB",
    "page",
    "found",
)


def run(python, job, inputs, limit, scripts=SCRIPTS):
    """Run one job of a file of scripts; ``error`` says how it failed."""
    words = [str(word) for word in (python, scripts, job, inputs)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"cut off after {limit:.0f} s"}
    except OSError as error:
        return {"error": str(error)}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"ended with code {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def side_by_side(peer, settings, data):
    """Run the peer and headscope in turn; a peer that fails is not asked again."""
    peer_runs = []
    ours = []
    for _ in range(settings.repeats):
        if not any("error" in result for result in peer_runs):
            peer_runs.append(run(settings.python, peer.job, data, settings.limit))
        ours.append(run(sys.executable, peer.ours, data, settings.limit))
        if "error" in ours[-1]:
            raise SystemExit(f"headscope's {peer.ours}: {ours[-1]['error']}")
    return peer_runs, ours


def make_given(folder, treebank, n):
    """Write what all jobs are given: sentences of the built-in sample, and one long text."""
    import wordfreq

    from headscope.data.corpus import as_corpus
    from headscope.models.load.source import demo_folder

    sentences = []
    corpus = list(as_corpus(treebank))
    for s in corpus[:n]:
        rarity = [wordfreq.word_frequency(word.lower(), "en") for word in s.words]
        tree = {"heads": list(s.heads or ()), "relations": list(s.relations or ())}
        rarest = rarity.index(min(rarity))
        sentences.append({"words": list(s.words), "rarest": rarest, **tree})
    words = [word for sentence in corpus for word in sentence.words][:1000]
    inputs = {"folder": str(demo_folder()), "room": str(folder), "lengths": LENGTHS}
    path = folder / f"given-{len(sentences)}.json"
    path.write_text(json.dumps({**inputs, "sentences": sentences, "words": words}))
    return len(sentences), path


def rows_of(peer, peer_runs, ours, version, sentences):
    """Yield what the columns of the table say of a peer: one row, or one a length of text."""
    title = f"{peer.title} {version}".strip()
    instead = "page of `classify`" if peer.ours == "page" else f"`{peer.ours}`"
    failed = next((result["error"] for result in peer_runs if "error" in result), None)
    if failed is None:
        note = "; ".join([*agreement(peer_runs[0], ours[0]), *peer_runs[0].get("facts", ())])
    else:
        note = f"failed: {failed}"
    note = note.replace("|", "\\|")
    lengths = peer_runs[0]["took"] if failed is None else LENGTHS[:1]
    for length in lengths:
        description = peer.what.format(sentences=sentences, length=length)
        row = {"peer": title, "what": description, "headscope instead": instead, "found": note}
        yield {
            **row,
            **({"peer / headscope": "failed"} if failed else figures(peer_runs, ours, length)),
        }


def figures(peer_runs, ours, length):
    """Medians of both sides, and their ratios."""
    medians = []
    for runs in (peer_runs, ours):
        costs = [{"MB": one["peak_mb"], **one["took"][length]} for one in runs]
        medians.append({name: statistics.median(f[name] for f in costs) for name in costs[0]})
    ratio = medians[0]["seconds"] / medians[1]["seconds"]
    cpu_ratio = medians[0]["cpu"] / medians[1]["cpu"]
    shown = {"peer / headscope": f"**{ratio:.1f}**"}
    shown["of processor time"] = f"{cpu_ratio:.1f}"
    for name, median in zip(("peer", "headscope"), medians, strict=True):
        shown |= {f"{name} s": f"{median['seconds']:.2f}", f"{name} MB": f"{median['MB']:.0f}"}
    if "bytes" in medians[0]:
        sizes = [median["bytes"] / 1e6 for median in medians]
        shown["page"] = "{:.2f} / {:.2f} MB".format(*sizes)
    return shown


def agreement(peer_run, ours):
    """Say whether both found the same mean entropies of the heads' rows."""
    if "entropies" in peer_run:
        pairs = zip(peer_run["entropies"], ours["entropies"], strict=True)
        far = max(abs(a - b) for a, b in pairs)
        yield f"entropies differ by {far:.0e}"


def table(rows, columns):
    cells = ([row.get(name, "") for name in columns] for row in rows)
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_between(path, text, mark):
    """Put the table between the markers ``mark`` of a page."""
    begin = f"<!-- {mark}:begin -->"
    end_mark = f"<!-- {mark}:end -->"
    page = path.read_text()
    if begin not in page or end_mark not in page:
        raise SystemExit(f"{path} has no {begin} and {end_mark}")
    before = page.partition(begin)[0]
    after = page.partition(end_mark)[2]
    path.write_text(f"{before}{begin}\n{text}\n{end_mark}{after}")


def machine():
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else ()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = (names or [platform.processor()])[0]
    return f"{os.cpu_count()} cores, {model}, {time.strftime('%-d %B %Y')}"


def runs_of(repeats):
    return f"Medians of {repeats} runs in turn" if repeats > 1 else "One run each"


def measured(settings):
    """Run every peer beside headscope; returns the rows, and the page's table with its source."""
    start = time.perf_counter()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = [make_given(Path(folder), None, settings.sentences)]
        if settings.treebank:  # all of it, for what counts sentence by sentence
            data.append(make_given(Path(folder), settings.treebank, None))
        versions = run(settings.python, "versions", data[0][1], settings.limit).get("versions", {})
        for peer in PEERS:
            inputs = data if peer.ours == "classify" else data[:1]
            for n, path in inputs:
                if peer.job in settings.only:
                    print(f"{peer.title} ...", file=sys.stderr, flush=True)
                    results = side_by_side(peer, settings, path)
                    rows += rows_of(peer, *results, versions.get(peer.package, ""), n)
    results = ("torch", "transformers")
    shown = ", ".join(f"{name} {versions.get(name, 'not installed')}" for name in results)
    text = (
        f"{table(rows, COLUMNS)}\n\n{runs_of(settings.repeats)} on {machine()}; the "
        f"peers' {shown}; the whole run took {time.perf_counter() - start:.0f} s."
    )
    return rows, text


def main():
    sizes = {"repeats": 3, "sentences": 300, "limit": 300.0}  # seconds that one job may take
    chosen = {"only": [peer.job for peer in PEERS], "treebank": "", **sizes}
    settings = options(__doc__, python="python", write="", **chosen)
    text = measured(settings)[1]
    print(text)
    if settings.write:
        write_between(Path(settings.write), text, "peers")


if __name__ == "__main__":
    main()
