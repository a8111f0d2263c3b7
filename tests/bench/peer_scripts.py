"""What peers.py runs in the peers' own environment: one job a process, one line of JSON out.

``python peer_scripts.py JOB GIVEN.json``. Nothing of headscope is imported here. ``GIVEN.json``
holds the model's folder and the sentences with their trees.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: Patterns of one sentence: a layer's (n_heads, pos, pos) each.
Patterns = Iterable[Any]


def main() -> None:
    warnings.simplefilter("ignore")
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    job, given = JOBS[sys.argv[1]], json.loads(Path(sys.argv[2]).read_text())
    with contextlib.redirect_stdout(io.StringIO()):  # some peers print while they work
        found = job(given)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"peak_mb": peak, **found}))


class Clock:
    """Seconds since it was made: on the clock, and of this process's processor time."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return both."""
        now = time.perf_counter(), time.process_time()
        return dict(zip(("seconds", "cpu"), np.subtract(now, self._start).tolist(), strict=True))


class HeadCounts:
    """Position, entropy, mass on special tokens, dependency relations, rarest word; by head."""

    def __init__(self) -> None:
        self.hits: dict[Any, float] = {}

    def add(self, patterns: Patterns, encoded: Any, sentence: dict[str, Any]) -> None:
        """Count one sentence."""
        word_of = np.array([-1 if word is None else word for word in encoded.word_ids()])
        for layer, heads in enumerate(patterns):
            for head, pattern in enumerate(heads):
                self._head((layer, head), np.asarray(pattern), word_of, sentence)

    def _more(self, key: Any, value: float) -> None:
        self.hits[key] = self.hits.get(key, 0.0) + value

    def _head(self, place: Any, pattern: Any, word_of: Any, sentence: dict[str, Any]) -> None:
        content = np.flatnonzero(word_of >= 0)
        argmax = content[pattern[np.ix_(content, content)].argmax(axis=1)]
        for r in (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5):
            self._more((place, r), int((argmax - content == r).sum()))
        entropy = -(pattern * np.log(pattern + 1e-12)).sum(axis=1)
        self._more((place, "entropy"), float(entropy[content].sum()))
        self._more((place, "queries"), len(content))
        self._more((place, "special"), float(pattern[content][:, word_of < 0].sum()))
        self._words(place, pattern, word_of, sentence)

    def _words(self, place: Any, pattern: Any, word_of: Any, sentence: dict[str, Any]) -> None:
        member = (word_of[None, :] == np.arange(len(sentence["words"]))[:, None]).astype(np.float32)
        attention = member @ pattern @ member.T / member.sum(axis=1, keepdims=True)
        np.fill_diagonal(attention, -1.0)
        best = attention.argmax(axis=1)
        for word, (head, name) in enumerate(
            zip(sentence["heads"], sentence["relations"], strict=True)
        ):
            if head >= 0:
                self._more((place, name, "to head"), int(best[word] == head))
                self._more((place, name, "from head"), int(best[head] == word))
        self._more((place, "rare"), int((best == sentence["rarest"]).sum()))

    def entropies(self) -> list[float]:
        """Mean entropy of the rows of every head, in nats; heads in order."""
        places = sorted({key[0] for key in self.hits})
        return [self.hits[p, "entropy"] / self.hits[p, "queries"] for p in places]


def counted(given: dict[str, Any], patterns_of: Callable[[Any], Patterns]) -> dict[str, Any]:
    """Time one pass over the sentences; ``patterns_of`` gets the patterns of one of them."""
    tokenizer = tokenizer_of(given)
    counts = HeadCounts()
    clock = Clock()
    for sentence in given["sentences"]:
        encoded = tokenizer(sentence["words"], is_split_into_words=True, return_tensors="pt")
        counts.add(patterns_of(encoded), encoded, sentence)
    return {**clock.read(), "entropies": counts.entropies()}


def tokenizer_of(given: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(given["folder"])


def eager_model(given: dict[str, Any]) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(given["folder"], attn_implementation="eager").eval()


def output_attentions(given: dict[str, Any]) -> dict[str, Any]:
    """Ask transformers for the patterns of one sentence after the other."""
    import torch

    model = eager_model(given)

    def patterns_of(encoded: Any) -> Iterator[Any]:
        with torch.no_grad():
            attentions = model(**encoded, output_attentions=True).attentions
        return (layer[0].numpy() for layer in attentions)

    return counted(given, patterns_of)


def transformerlens(given: dict[str, Any]) -> dict[str, Any]:
    """Run a BERT that is handed over with its cache, and count in what it cached."""
    import torch
    from transformer_lens.head_detector import HEAD_NAMES
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModel, BertForMaskedLM

    def boot(network: Any) -> Any:
        return TransformerBridge.boot_transformers(
            given["folder"], hf_model=network, tokenizer=tokenizer_of(given)
        )

    bare = refusal(lambda: boot(AutoModel.from_pretrained(given["folder"])))
    # It has an adapter for BERT with its masked-LM head; the head's weights change no pattern.
    bridge = boot(BertForMaskedLM.from_pretrained(given["folder"]))
    layers = range(bridge.cfg.n_layers)

    def patterns_of(encoded: Any) -> Iterator[Any]:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(encoded["input_ids"])
        return (cache[f"blocks.{layer}.attn.hook_pattern"][0].numpy() for layer in layers)

    fact = f"its head detector knows {', '.join(HEAD_NAMES)}"
    return {**counted(given, patterns_of), "facts": [fact, *bare]}


def nnsight(given: dict[str, Any]) -> dict[str, Any]:
    """Trace a transformers model, and save what its attention modules return."""
    import torch
    from nnsight import NNsight, save

    model = NNsight(eager_model(given))

    def patterns_of(encoded: Any) -> Iterator[Any]:
        with model.trace(**encoded):
            saved = save([layer.attention.self.output[1] for layer in model.encoder.layer])
        return (layer[0].numpy() for layer in saved)

    with torch.no_grad():
        return counted(given, patterns_of)


def bertviz(given: dict[str, Any]) -> dict[str, Any]:
    """Draw one text of each length, and write the page."""
    import torch
    from bertviz import head_view

    model, tokenizer = eager_model(given), tokenizer_of(given)
    pages = {}
    for length in given["lengths"]:
        clock = Clock()
        words = " ".join(given["words"])
        encoded = tokenizer(words, truncation=True, max_length=length, return_tensors="pt")
        with torch.no_grad():
            attentions = model(**encoded, output_attentions=True).attentions
        tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        page = head_view(attentions, tokens, html_action="return").data
        (Path(given["room"]) / f"bertviz-{length}.html").write_text(page)
        pages[str(length)] = {**clock.read(), "bytes": len(page.encode())}
    # Lines of numbers are most of the page.
    code = "\n".join(line for line in page.splitlines() if len(line) < 10_000)
    code = re.sub(r"(?m)^\s*(?:\*|//|/\*).*$", "", code)
    hosts = sorted(set(re.findall(r"https?://([\w.]+)/[\w./-]*(?:\.min|\.js)", code)))
    return {"pages": pages, "facts": [f"loads scripts from {host}" for host in hosts]}


def weightwatcher(given: dict[str, Any]) -> dict[str, Any]:
    """Analyse every weight matrix."""
    from weightwatcher import WeightWatcher

    model = eager_model(given)
    clock = Clock()
    table = WeightWatcher(model=model).analyze()
    took = clock.read()
    by_head = [name for name in table.columns if "head" in name.lower()]
    fact = f"{len(table)} rows, one a matrix; columns about heads: {len(by_head)}"
    return {**took, "facts": [fact]}


def refusal(run: Callable[[], Any]) -> list[str]:
    """Say how something fails; nothing if it does not."""
    try:
        run()
    except Exception as error:
        said = " ".join(str(error).split())
        return [f"without a task head: {type(error).__name__}: {said[:120]}"]
    return []


def versions(given: dict[str, Any]) -> dict[str, Any]:
    """What is installed."""
    found = {}
    names = "torch transformers transformer-lens nnsight bertviz weightwatcher"
    for name in names.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {"versions": found}


JOBS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    job.__name__: job
    for job in (
        *(output_attentions, transformerlens, nnsight, bertviz, weightwatcher),
        versions,
    )
}

if __name__ == "__main__":
    main()
