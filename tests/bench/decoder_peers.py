"""How fast are the statistics of a decoder's patterns here, in TransformerLens and in nnsight?

From the repository, with nothing else on the machine: ``python tests/bench/decoder_peers.py MODEL
TREEBANK --python PEERS/bin/python`` (peers-requirements.txt has the versions). All measure the same
three numbers of every head on the same sentences (decoder_scripts.py), each in a process of its
own, in turn, ``--repeats`` times. A peer gets what headscope gets: the same batches of similar
lengths, all cores, no gradients, hooks that keep only sums, no head of the language model, and the
end of the run behind the last pattern where it can do so; below it stands the simple way of its
introduction. Timed is the pass; loading, and headscope's certificate, have a column. The largest
difference of the numbers is printed. It asserts nothing about time: machines differ.
"""

import json
import statistics
import sys
import tempfile
from collections import namedtuple
from itertools import islice
from pathlib import Path

import numpy as np
from peers import machine, run, runs_of, table, write_between
from timing import load, options

SCRIPTS = Path(__file__).with_name("decoder_scripts.py")

#: Its job in decoder_scripts.py; the package whose version is shown.
Way = namedtuple("Way", "job title package")
WAYS = [
    Way(*(cell.strip() for cell in line.split("|")))
    for line in """
headscope | headscope, these numbers alone |
classify | headscope `classify`: all roles, controls, certificate |
script | transformers, batches | transformers
transformerlens | TransformerLens, hooks on batches | transformer-lens
nnsight | nnsight, a trace for each batch | nnsight
script_by_text | transformers, text by text | transformers
transformerlens_by_text | TransformerLens, `run_with_cache` text by text | transformer-lens
nnsight_by_text | nnsight, a trace for each text | nnsight
""".strip().splitlines()
]
COLUMNS = (
    "way",
    "pass s",
    "of headscope's",
    "processor s",
    "loading s",
    "certificate s",
    "peak MiB",
    "largest difference",
)


def make_given(folder, settings):
    """Write what all jobs are given: the model's folder, and the token ids of every batch."""
    from transformers import AutoTokenizer

    from headscope.data.batches import buckets
    from headscope.data.corpus import as_corpus

    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    texts = list(islice(as_corpus(settings.treebank).lines(), settings.sentences))
    batches = list(buckets(tokenizer(texts)["input_ids"]))
    inputs = {
        "folder": str(settings.model),
        "treebank": str(settings.treebank),
        "sentences": len(texts),
        "batches": batches,
    }
    path = folder / "given.json"
    path.write_text(json.dumps(inputs))
    n_tokens = sum(len(ids) for batch in batches for ids in batch)
    return path, f"{len(texts)} sentences, {n_tokens:,} tokens in {len(batches)} batches"


def difference(result, reference):
    """Largest difference of a statistic of a head from headscope's."""
    gaps = np.abs(np.array(result["statistics"]) - np.array(reference["statistics"]))
    return float(gaps.max())


def row(way, results, reference, version):
    """The row of one way; ``reference`` are headscope's results."""
    title = f"{way.title} ({version})" if version else way.title
    failed = next((result["error"] for result in results if "error" in result), None)
    if failed is not None:
        return {"way": title, "pass s": f"failed: {failed}".replace("|", "\\|")}

    def median(part, kind="seconds", of=results):
        return statistics.median(result["took"].get(part, {kind: 0.0})[kind] for result in of)

    certificate = median("certificate")
    seconds = median("pass")
    loading = median("load") + median("wrap")
    return {
        "way": title,
        "pass s": f"{seconds:.1f}",
        "of headscope's": f"{seconds / median('pass', of=reference):.2f} x",
        "processor s": f"{median('pass', 'cpu'):.1f}",
        "loading s": f"{loading:.1f}",
        "certificate s": f"{certificate:.1f}" if certificate else "",
        "peak MiB": f"{statistics.median(result['peak_mb'] for result in results):,.0f}",
        "largest difference": f"{difference(results[0], reference[0]):.0e}",
    }


def main():
    chosen = {"python": "python", "sentences": 300, "repeats": 3, "limit": 1200.0, "write": ""}
    names = [way.job for way in WAYS]
    settings = options(__doc__, "model", "treebank", only=names, mark="decoder-peers", **chosen)
    results = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        given, size = make_given(Path(folder), settings)
        asked = run(settings.python, "versions", given, settings.limit, scripts=SCRIPTS)
        versions = asked.get("versions", {})
        before = load()
        for _ in range(settings.repeats):
            for name in names:
                earlier = results[name]
                if name not in settings.only or any("error" in result for result in earlier):
                    continue
                python = sys.executable if name in ("headscope", "classify") else settings.python
                print(f"{name} ...", file=sys.stderr, flush=True)
                earlier.append(run(python, name, given, settings.limit, scripts=SCRIPTS))
                if name == "headscope" and "error" in earlier[-1]:
                    raise SystemExit(f"headscope: {earlier[-1]['error']}")
    measured = [way for way in WAYS if results[way.job]]
    reference = results["headscope"] or results[measured[0].job]
    rows = [
        row(way, results[way.job], reference, versions.get(way.package, "")) for way in measured
    ]
    text = (
        f"{table(rows, COLUMNS)}\n\n{settings.model.name}, {size}. {runs_of(settings.repeats)} on "
        f"{machine()}, load {before} at the start; the peers' torch "
        f"{versions.get('torch', 'unknown')}, transformers "
        f"{versions.get('transformers', 'unknown')}."
    )
    print(text)
    if settings.write:
        write_between(Path(settings.write), text, settings.mark)


if __name__ == "__main__":
    main()
