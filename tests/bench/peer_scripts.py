"""What peers.py runs: one job a process, one line of JSON out.

``python peer_scripts.py JOB GIVEN.json``. The peers' jobs run in the peers' own environment, where
headscope is not; ``classify``, ``rank`` and ``page`` are headscope's. ``GIVEN.json`` holds the
model's folder and the sentences with their trees.
"""

import contextlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np


def run_job(jobs):
    """Run the job that the command line names, of some functions by name."""
    warnings.simplefilter("ignore")
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    job = jobs[sys.argv[1]]
    inputs = json.loads(Path(sys.argv[2]).read_text())
    with contextlib.redirect_stdout(io.StringIO()):  # some peers print while they work
        result = job(inputs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak, **result}))


@contextlib.contextmanager
def clock(took, key=""):
    """Take the seconds of a block: on the clock, and of this process's processor time."""
    start = time.perf_counter(), time.process_time()
    yield
    now = time.perf_counter(), time.process_time()
    took[key] = {"seconds": now[0] - start[0], "cpu": now[1] - start[1]}


class HeadCounts:
    """Position, entropy, mass on special tokens, dependency relations, rarest word; by head."""

    def __init__(self):
        self.hits = Counter()

    def add(self, patterns, encoded, sentence):
        """Count one sentence; patterns are a layer's (n_heads, pos, pos) each."""
        word_of = np.array([-1 if word is None else word for word in encoded.word_ids()])
        for layer, heads in enumerate(patterns):
            for head, pattern in enumerate(heads):
                self._head((layer, head), np.asarray(pattern), word_of, sentence)

    def _head(self, layer_and_head, pattern, word_of, sentence):
        content = np.flatnonzero(word_of >= 0)
        argmax = content[pattern[np.ix_(content, content)].argmax(axis=1)]
        for r in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5):
            self.hits[layer_and_head, r] += int((argmax - content == r).sum())
        entropy = -(pattern * np.log(pattern + 1e-12)).sum(axis=1)
        self.hits[layer_and_head, "entropy"] += float(entropy[content].sum())
        self.hits[layer_and_head, "queries"] += len(content)
        self.hits[layer_and_head, "special"] += float(pattern[content][:, word_of < 0].sum())

        member = (word_of[None, :] == np.arange(len(sentence["words"]))[:, None]).astype(np.float32)
        attention = member @ pattern @ member.T / member.sum(axis=1, keepdims=True)
        np.fill_diagonal(attention, -1.0)
        best = attention.argmax(axis=1)
        tree = zip(sentence["heads"], sentence["relations"], strict=True)
        for word, (head, name) in enumerate(tree):
            if head >= 0:
                self.hits[layer_and_head, name, "to head"] += int(best[word] == head)
                self.hits[layer_and_head, name, "from head"] += int(best[head] == word)
        self.hits[layer_and_head, "rare"] += int((best == sentence["rarest"]).sum())

    def entropies(self):
        """Mean entropy of the rows of every head, in nats; heads in order."""
        places = sorted({key[0] for key in self.hits})
        return [self.hits[p, "entropy"] / self.hits[p, "queries"] for p in places]


def counted(inputs, patterns_of):
    """Time one pass over the sentences; ``patterns_of`` gets the patterns of one of them."""
    import torch

    tokenizer = tokenizer_of(inputs)
    counts = HeadCounts()
    took = {}
    with torch.no_grad(), clock(took):
        for sentence in inputs["sentences"]:
            encoded = tokenizer(sentence["words"], is_split_into_words=True, return_tensors="pt")
            counts.add(patterns_of(encoded), encoded, sentence)
    return {"took": took, "entropies": counts.entropies()}


def tokenizer_of(inputs):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(inputs["folder"])


def eager_model(inputs):
    from transformers import AutoModel

    return AutoModel.from_pretrained(inputs["folder"], attn_implementation="eager").eval()


def output_attentions(inputs):
    """Ask transformers for the patterns of one sentence after the other."""
    model = eager_model(inputs)

    def patterns_of(encoded):
        return (layer[0].numpy() for layer in model(**encoded, output_attentions=True).attentions)

    return counted(inputs, patterns_of)


def transformerlens(inputs):
    """Run a BERT that is handed over with its cache, and count in what it cached."""
    from transformer_lens.head_detector import HEAD_NAMES
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModel, BertForMaskedLM

    def boot(network):
        return TransformerBridge.boot_transformers(
            inputs["folder"], hf_model=network, tokenizer=tokenizer_of(inputs)
        )

    facts = [f"its head detector knows {', '.join(HEAD_NAMES)}"]
    try:
        boot(AutoModel.from_pretrained(inputs["folder"]))
    except Exception as error:
        said = " ".join(str(error).split())
        facts.append(f"without a task head: {type(error).__name__}: {said[:120]}")
    # It has an adapter for BERT with its masked-LM head; the head's weights change no pattern.
    bridge = boot(BertForMaskedLM.from_pretrained(inputs["folder"]))
    layers = range(bridge.cfg.n_layers)

    def patterns_of(encoded):
        _, cache = bridge.run_with_cache(encoded["input_ids"])
        return (cache[f"blocks.{layer}.attn.hook_pattern"][0].numpy() for layer in layers)

    return {**counted(inputs, patterns_of), "facts": facts}


def nnsight(inputs):
    """Trace a transformers model, and save what its attention modules return."""
    from nnsight import NNsight, save

    model = NNsight(eager_model(inputs))

    def patterns_of(encoded):
        with model.trace(**encoded):
            saved = save([layer.attention.self.output[1] for layer in model.encoder.layer])
        return (layer[0].numpy() for layer in saved)

    return counted(inputs, patterns_of)


def bertviz(inputs):
    """Draw one text of each length, and write the page."""
    import torch
    from bertviz import head_view

    model = eager_model(inputs)
    tokenizer = tokenizer_of(inputs)
    took = {}
    for length in inputs["lengths"]:
        with clock(took, length):
            words = " ".join(inputs["words"])
            encoded = tokenizer(words, truncation=True, max_length=length, return_tensors="pt")
            with torch.no_grad():
                attentions = model(**encoded, output_attentions=True).attentions
            tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
            page = head_view(attentions, tokens, html_action="return").data
            Path(inputs["room"], f"bertviz-{length}.html").write_text(page)
        took[length]["bytes"] = len(page.encode())
    # Lines of numbers are most of the page.
    code = "\n".join(line for line in page.splitlines() if len(line) < 10_000)
    code = re.sub(r"(?m)^\s*(?:\*|//|/\*).*$", "", code)
    hosts = sorted(set(re.findall(r"https?://([\w.]+)/[\w./-]*(?:\.min|\.js)", code)))
    return {"took": took, "facts": [f"loads scripts from {host}" for host in hosts]}


def weightwatcher(inputs):
    """Analyse every weight matrix."""
    from weightwatcher import WeightWatcher

    model = eager_model(inputs)
    took = {}
    with clock(took):
        table = WeightWatcher(model=model).analyze()
    by_head = [name for name in table.columns if "head" in name.lower()]
    fact = f"{len(table)} rows, one a matrix; columns about heads: {len(by_head)}"
    return {"took": took, "facts": [fact]}


def versions(inputs):
    """What is installed."""
    installed = {}
    peers = ("transformer-lens", "nnsight", "bertviz", "weightwatcher")
    for name in ("torch", "transformers", *peers):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return {"versions": installed}


def load_modules(*names):
    """Load before the clock what headscope loads late: imports are left out on both sides."""
    for name in names:
        importlib.import_module(name)


def classify(inputs):
    """Classify every head on the sentences."""
    import headscope
    from headscope.data.corpus import as_corpus
    from headscope.data.sentences import Sentence

    load_modules("headscope.analyses.classify.run", "scipy.stats", "wordfreq")
    loaded = headscope.load("demo")
    took = {}
    fields = [[tuple(s[k]) for k in ("words", "heads", "relations")] for s in inputs["sentences"]]
    corpus = as_corpus([Sentence(*columns) for columns in fields])
    with clock(took):
        result = headscope.classify(loaded, corpus, language="en")
    return {"took": took, "entropies": [head.entropy for head in result.heads]}


def rank(inputs):
    """Ranks of every head's products."""
    import headscope

    load_modules("headscope.analyses.rank.run")
    loaded = headscope.load("demo")
    took = {}
    with clock(took):
        headscope.rank(loaded)
    return {"took": took}


def page(inputs):
    """Classify the heads on one text of each length, and write the page."""
    import headscope
    from headscope.data.corpus import open_text
    from headscope.reports.page import report_html

    loaded = headscope.load("demo")
    took = {}
    folder = Path(inputs["room"])
    # Tokens of the text up to each word, with the two special ones.
    stops = 2 + np.cumsum([len(loaded.tokenizer.tokenize(word)) for word in inputs["words"]])
    for length in inputs["lengths"]:
        text = folder / f"text-{length}.txt"
        text.write_text(" ".join(inputs["words"][: int((stops <= length).sum())]) + "\n")
        with clock(took, length):
            chosen = {"corpus": open_text(text), "language": "en"}
            chosen |= {"control": False, "ablate": False}
            report = headscope.report(loaded, only=["classify"], settings={"classify": chosen})
            html = report_html(report).encode()
            (folder / f"headscope-{length}.html").write_bytes(html)
        took[length]["bytes"] = len(html)
    return {"took": took}


if __name__ == "__main__":
    run_job(globals())
