"""How long does a user wait, from command to answer? Whole commands beside what bounds them.

Run from the repository, with nothing else on the machine:
``python tests/bench/commands.py [TREEBANK] [PAIRS] [CALIBRATION] --write docs/measurements.md``.
Each command runs in a process of its own, all in turn, quiet and then, where it takes less than a
minute, beside one spinning program; the table has medians. ``classify`` stands beside its own
imports and a bare pass over the same sentences; ``python -m bench`` times the peers of
docs/measurements.md too, so that one command writes every ratio anew. PAIRS and CALIBRATION are
STS-B's test and training parts. ``--model FOLDER`` measures another model than the demo, and
``--mark large`` writes its table below that of the demo: seconds and peaks beside those of a bare
pass, which is the model's own over the same text with all its imports. ``--sentences N`` reads the
first N of the treebank alone.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

from peers import machine, runs_of, table, write_between
from timing import competitors, cost, in_turn, load, median_cost, options

from headscope.models.load.source import find_source

LOADING = "imports and loading"
BARE_PASS = "imports and a bare pass"
ATTRIBUTED = ("A man is playing a guitar.", "Somebody makes music.")
PROMPTED = ("The capital of France is", "--target", " Paris", "--against", " London")
#: What was asked for on two cores; peaks at most three times the weights and 600 MB.
GOALS = {
    "classify": "bare pass + 0.5 s",
    "classify, the sample": "7 s",
    "rank": "WeightWatcher",
    **dict.fromkeys(("depth", "flow", "linear", "symmetric"), "12 s"),
    **{f"{name}, a task of 400 pairs": "60 s" for name in ("linear", "symmetric")},
    "prune --max-drop 0.5": "120 s",
    "report, quick": "20 s",
}
LARGE_GOALS = {
    "classify": "1.1 x bare pass + 1 s",
    "classify, the sample": "35 s",
    **dict.fromkeys(("depth", "flow", "linear", "symmetric"), "60 s"),
    "prune --max-drop 0.5": "480 s",
    "report, quick": "100 s",
}
DECODER_GOALS = {
    "validate": "25 s",
    "classify": "loading + 1.15 x the pass + 1 s",
    "spectrum": "40 s",
}
IMPORTS = """
import headscope.cli.app, headscope.analyses.classify.run, headscope.analyses.classify.view
import scipy.stats, wordfreq
from transformers import AutoModel, AutoTokenizer
"""
#: What any script has to do first.
LOAD = (
    IMPORTS
    + """
import torch
from headscope.data.corpus import as_corpus
from headscope.models.load.source import find_source
folder = find_source(MODEL).folder
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
loading = {"dtype": torch.float32}
try:
    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa", **loading).eval()
except ValueError:
    model = AutoModel.from_pretrained(folder, **loading).eval()
model.config.use_cache = False
"""
)
#: And then: tokenise, sort by length, and one pass of the model itself.
BARE = (
    LOAD
    + """
texts = list(as_corpus(TREEBANK).lines())[:SENTENCES]
texts = texts[:: max(1, len(texts) // LINES)][:LINES]
ids = [one for one in tokenizer(texts, truncation=True)["input_ids"] if one]
ids.sort(key=len)
with torch.inference_mode():
    while ids:
        n = max(1, 1024 // len(ids[-1]))
        batch = tokenizer.pad({"input_ids": ids[-n:]}, return_tensors="pt")
        del ids[-n:]
        model(**batch)
"""
)


def commands(settings):
    """Every whole command by its name in the table: the words after ``python``, and its goal."""
    ours = ["-m", "headscope"]
    ewt = ["--treebank", str(settings.treebank)] if settings.treebank else []
    if ewt and settings.sentences:
        ewt += ["--limit", str(settings.sentences)]
    treebank = repr(str(settings.treebank or "")) + " or None"
    model = settings.model
    decodes = is_decoder(model)
    goals = GOALS if settings.model == "demo" else LARGE_GOALS
    if decodes:
        goals = DECODER_GOALS
    load_model = LOAD.replace("MODEL", repr(model))
    bare = BARE.replace("MODEL", repr(model)).replace(
        "SENTENCES", str(settings.sentences or "None")
    )
    lines = bare.replace("TREEBANK", "None").replace("LINES", "64")
    all_commands = {
        "imports": ["-c", IMPORTS],
        LOADING: ["-c", load_model],
        BARE_PASS: ["-c", bare.replace("TREEBANK", treebank).replace("LINES", "10**9")],
        "the same, 64 lines of the sample": ["-c", lines],
        "validate": [*ours, "validate", model],
        "classify": [*ours, "classify", model, *ewt],
        "classify, the sample": [*ours, "classify", model],
        **{name: [*ours, name, model] for name in ("rank", "spectrum", "depth", "flow")},
        "attribute": [*ours, "attribute", model, *(PROMPTED if decodes else ATTRIBUTED)],
        **{name: [*ours, name, model] for name in ("linear", "symmetric")},
    }
    if settings.pairs and not decodes:
        task = ["--task", "similarity", "--data", str(settings.pairs)]
        for name in ("linear", "symmetric"):
            some = [*task, "--limit", "400"]
            if model == "demo":
                all_commands[f"{name}, a task of 400 pairs"] = [*ours, name, model, *some]
        if settings.calibration:
            drop = ["--calibration", str(settings.calibration), "--max-drop", "0.5"]
            few = () if model == "demo" else ("--limit", "400")
            all_commands["prune --max-drop 0.5"] = [*ours, "prune", model, *task, *drop, *few]
    quick = [*ours, "report", model, "--config", "quick", "-o", settings.room]
    all_commands["report, quick"] = quick
    return {name: (words, goals.get(name, "")) for name, words in all_commands.items()}


def is_decoder(model):
    """Whether a model's folder says that it predicts the next token."""
    path = find_source(model).folder / "config.json"
    architectures = json.loads(path.read_text()).get("architectures") or ()
    return any(name.endswith("ForCausalLM") for name in architectures)


def most_memory(model):
    """Peak that a command may have, in MiB: three times the float32 weights, and 0.6 GB."""
    import torch
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        network = AutoModel.from_config(AutoConfig.from_pretrained(find_source(model).folder))
    weights = 4 * sum(parameter.numel() for parameter in network.parameters())
    return (3 * weights + 600e6) / 2**20


def measured(jobs, repeats):
    """Median cost of each command, run in turn; of what takes a minute or more, one run."""
    runs = {name: partial(cost, words) for name, (words, _) in jobs.items()}
    costs = in_turn(runs, 1)
    short = {name: run for name, run in runs.items() if costs[name][0].wall < 60}
    again = in_turn(short, repeats - 1)
    return {name: median_cost([*first, *again.get(name, ())]) for name, first in costs.items()}


def rows(jobs, quiet, beside):
    bare = quiet.get(BARE_PASS)
    loading = quiet.get(LOADING)
    for name, (_, goal) in jobs.items():
        one = quiet[name]
        other = beside.get(name)
        if goal == DECODER_GOALS["classify"] and bare and loading:
            allowed = loading.wall + 1.15 * (bare.wall - loading.wall) + 1
            goal = f"{goal}: {allowed:.1f} s"
        yield {
            "command": name,
            "seconds": f"{one.wall:.1f}",
            "processor seconds": f"{one.cpu:.1f}",
            "peak MiB": f"{one.peak:,.0f}",
            "of a bare pass": f"{one.wall / bare.wall:.2f} x, {one.peak / bare.peak:.2f} x"
            if bare
            else "",
            "beside one program": f"{other.wall / one.wall:.2f} x" if other else "",
            "asked for": goal,
        }


def main():
    settings = {"repeats": 3, "only": [""], "write": "", "busy": 1, "model": "demo"}
    names = ("treebank?", "pairs?", "calibration?")
    chosen_options = options(__doc__, *names, **settings, mark="commands", sentences=0)
    with tempfile.TemporaryDirectory() as chosen_options.room:
        jobs = {
            name: job
            for name, job in commands(chosen_options).items()
            if any(pattern in name for pattern in chosen_options.only)
        }
        before = load()
        # Files come from the disk.
        cost(["-m", "headscope", "classify", chosen_options.model, "--limit", "1"])
        quiet = measured(jobs, chosen_options.repeats)
        beside = {}
        if chosen_options.busy:
            short = {name: job for name, job in jobs.items() if quiet[name].wall < 60}
            with competitors(chosen_options.busy):
                beside = measured(short, 1)
    measured_rows = list(rows(jobs, quiet, beside))
    text = (
        f"{table(measured_rows, list(measured_rows[0]))}\n\n{runs_of(chosen_options.repeats)} on "
        f"{machine()}, load {before} at the start; beside one spinning program one run "
        "of what takes less than a minute. A peak may reach three times the float32 weights and "
        f"0.6 GB, here {most_memory(chosen_options.model):,.0f} MiB."
    )
    print(text)
    if chosen_options.write:
        write_between(Path(chosen_options.write), text, chosen_options.mark)


if __name__ == "__main__":
    main()
