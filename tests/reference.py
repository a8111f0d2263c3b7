"""A slow, literal reading of docs/definitions/roles.md: the oracle of the head classification.

One sentence at a time, no padding, transformers' own eager attention, float64, plain loops.
It shares no code with the package.  Where that page is silent the docstrings state the reading.
The labels are `reference_labels`, which uses the small parts of this page.
"""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Key = tuple[str, str]

OFFSETS = [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]
UP = "dep->head"
DOWN = "head->dep"


@dataclass(frozen=True)
class Sentence:
    """Words are the rows with integer ids; `heads` are 1-based, 0 is the root or left out."""

    forms: list[str]
    heads: list[int]
    relations: list[str]
    text: str
    begins: list[int]  # Where each word begins in the text

    def only(self, words: list[int]) -> "Sentence":
        """The sentence without the other words, and without the edges to and from them."""
        numbers = {word + 1: new_number for new_number, word in enumerate(words, start=1)}
        return Sentence(
            [self.forms[word] for word in words],
            [numbers.get(self.heads[word], 0) for word in words],
            [self.relations[word] for word in words],
            self.text,
            [self.begins[word] for word in words],
        )


def read_treebank(path: str | Path) -> list[Sentence]:
    """Read CoNLL-U: "words = rows with integer ids; deprel cut at ':'".

    The words stand in the comment `# text = ` one after the other.
    """
    sentences = []
    for block in Path(path).read_text(encoding="utf-8").split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if line and line[0] != "#"]
        words = [row for row in rows if row[0].isdigit()]
        if words:
            forms = [row[1] for row in words]
            heads = [int(row[6]) for row in words]
            relations = [row[7].split(":")[0] for row in words]
            (text,) = (x[9:] for x in block.split("\n") if x.startswith("# text = "))
            begins = []
            stop = 0
            for form in forms:
                begins.append(text.index(form, stop))
                stop = begins[-1] + len(form)
            sentences.append(Sentence(forms, heads, relations, text, begins))
    return sentences


@dataclass(frozen=True)
class Encoded:
    """One sequence: token ids and, for every token, the index of its word (None = special)."""

    ids: list[int]
    word_of: list[int | None]
    sentence: Sentence  # Its words that have a piece
    kept: list[int]  # Which of the file's words these are

    @property
    def queries(self) -> list[int]:
        """Queries: non-special tokens only."""
        return [i for i, word in enumerate(self.word_of) if word is not None]

    @property
    def special(self) -> list[int]:
        return [i for i, word in enumerate(self.word_of) if word is None]

    def pieces(self, word: int) -> list[int]:
        return [i for i, other in enumerate(self.word_of) if other == word]

    def is_usable(self, max_length: int) -> bool:
        """False when longer than the limit or when no word yields a piece: skipped, counted."""
        return len(self.ids) <= max_length and bool(self.kept)


def is_punctuation(form: str) -> bool:
    """Every character's Unicode category starts with P or S (UPOS is not used)."""
    return all(unicodedata.category(char)[0] in "PS" for char in form)


def lowest_argmax(row: Sequence[float], keys: Iterable[int]) -> int:
    """The argmax of `row` over `keys`; ties (within 64 roundings of float32) go to the lowest."""
    among = sorted(keys)
    if not among:
        return -1
    least = max(row[key] for key in among) * (1 - 64 / 2**23)
    return next(key for key in among if row[key] >= least)


@dataclass(frozen=True)
class Trial:
    """A hit when the argmax of word `query` is one of `targets`."""

    relation: str
    direction: str
    query: int
    targets: frozenset[int]


def syntactic_trials(sentence: Sentence) -> list[Trial]:
    """dep->head: one trial per edge; head->dep: one per (head, relation); roots skipped."""
    if len(sentence.forms) < 2:
        return []
    trials = []
    dependents: dict[tuple[int, str], list[int]] = {}
    for dependent, relation in enumerate(sentence.relations):
        head = sentence.heads[dependent] - 1
        if head >= 0:
            trials.append(Trial(relation, UP, dependent, frozenset([head])))
            dependents.setdefault((head, relation), []).append(dependent)
    for (head, relation), words in dependents.items():
        trials.append(Trial(relation, DOWN, head, frozenset(words)))
    return trials


def best_offset(trials: Sequence[Trial]) -> int:
    """The single best fixed word offset on these trials.

    Ties: the smallest absolute value, then the negative one.
    """
    hits: dict[int, int] = {}
    for trial in trials:
        for target in trial.targets:
            offset = target - trial.query
            hits[offset] = hits.get(offset, 0) + 1
    return min(hits, key=lambda offset: (-hits[offset], abs(offset), offset))


def baseline_hit(trial: Trial, offset: int) -> bool:
    return trial.query + offset in trial.targets


@dataclass(frozen=True)
class RareTarget:
    """The word indices a sentence's rare-word queries are scored against."""

    words: int
    rarest: frozenset[int]
    two_rarest: frozenset[int]


def rare_target(
    forms: Sequence[str], frequency: Callable[[str], float], frequent: set[str]
) -> RareTarget | None:
    """The rarest words, or None when the sentence is skipped for this score.

    "the rarest word (ties: all of them) among words with at least one letter or digit; sentences
    whose rarest word is among the 500 most frequent words of the source are skipped".
    """
    lower = [form.lower() for form in forms]
    candidates = [w for w, form in enumerate(lower) if any(char.isalnum() for char in form)]
    if len(forms) < 2 or not candidates:
        return None
    value = {word: frequency(lower[word]) for word in candidates}
    ordered = sorted(value.values())
    second = ordered[1] if len(ordered) > 1 else ordered[0]
    rarest = frozenset(word for word in candidates if value[word] == ordered[0])
    if any(lower[word] in frequent for word in rarest):
        return None
    two_rarest = frozenset(word for word in candidates if value[word] <= second)
    return RareTarget(len(forms), rarest, two_rarest)


#: Sums over the corpus for one head, by name, or by name and offset.
Counts = defaultdict[Any, float]


def count_sentence(counts: Counts, pattern: Matrix, encoded: Encoded) -> None:
    """Add one sentence's pattern (n x n, special tokens included) to one head's counts."""
    rows: list[list[float]] = pattern.tolist()
    queries = encoded.queries
    special = encoded.special
    ids = encoded.ids
    forms = encoded.sentence.forms
    marks = [j for j, w in enumerate(encoded.word_of) if w is not None and is_punctuation(forms[w])]
    # "Content argmax": argmax over non-special keys.
    argmax = {i: lowest_argmax(rows[i], queries) for i in queries}
    for i, chosen in argmax.items():
        row = rows[i]
        counts["queries"] += 1
        # Hits over queries whose target i+r is non-special; mass over i+r anywhere in the sequence.
        for r in OFFSETS:
            if i + r in argmax:
                counts["offset queries", r] += 1
                counts["offset hits", r] += chosen == i + r
            if 0 <= i + r < len(rows):
                counts["mass queries", r] += 1
                counts["mass", r] += row[i + r]
        counts["confidence"] += max(row[j] for j in queries)
        counts["entropy"] += -sum(p * math.log(p) for p in row if p > 0)
        counts["special_mass"] += sum(row[j] for j in special)
        counts["punctuation_mass"] += sum(row[j] for j in marks)
        counts["cls_mass"] += row[special[0]] if special else 0.0
        counts["sep_mass"] += row[special[-1]] if special else 0.0
        # self: content argmax is the diagonal; duplicate: it is another token with the same id.
        counts["self_rate"] += chosen == i
        if any(ids[j] == ids[i] for j in argmax if j != i):
            counts["duplicate queries"] += 1
            counts["duplicate hits"] += chosen != i and ids[chosen] == ids[i]


def ratio(numerator: float, denominator: float) -> float:
    """A rate; 0 when there was nothing to count."""
    return numerator / denominator if denominator else 0.0


def summarise(counts: Counts) -> dict[str, Any]:
    """All raw numbers of one head that need no words.

    Positional: `score` = max over r, `offset` = that r (ties: smallest absolute value, then
    negative).
    """
    rates = {r: ratio(counts["offset hits", r], counts["offset queries", r]) for r in OFFSETS}
    best = min(OFFSETS, key=lambda r: (-rates[r], abs(r), r))
    means = ("confidence", "entropy", "special_mass", "cls_mass", "sep_mass", "punctuation_mass")
    return {
        "positional": {
            "rates": rates,
            "mass": {r: ratio(counts["mass", r], counts["mass queries", r]) for r in OFFSETS},
            "score": rates[best],
            "offset": best,
        },
        **{name: ratio(counts[name], counts["queries"]) for name in (*means, "self_rate")},
        "duplicate": ratio(counts["duplicate hits"], counts["duplicate queries"]),
    }


class Model:
    """A tokenizer and a model with transformers' own eager attention, in float32."""

    def __init__(self, model_dir: str | Path) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        load: Any = AutoModel
        options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(model_dir))
        self.model = load.from_pretrained(str(model_dir), **options).eval()

    def encode(self, sentence: Sentence) -> Encoded:
        """Read the text; a piece belongs to the last word that begins before it or with it."""
        encoding = self.tokenizer(sentence.text, return_offsets_mapping=True)
        words: list[int | None] = []
        for token, (begin, stop) in zip(
            encoding["input_ids"], encoding["offset_mapping"], strict=True
        ):
            before = [
                word for word, word_begin in enumerate(sentence.begins) if word_begin <= begin
            ]
            special = token in self.tokenizer.all_special_ids and stop == 0
            words.append(None if special else before[-1])
        with_piece = sorted({word for word in words if word is not None})
        of_kept = [None if word is None else with_piece.index(word) for word in words]
        return Encoded(list(encoding["input_ids"]), of_kept, sentence.only(with_piece), with_piece)

    def patterns(self, encoded: Encoded) -> list[Matrix]:
        """One (heads, n, n) float64 array per layer."""
        import torch

        with torch.no_grad():
            output = self.model(
                input_ids=torch.tensor([encoded.ids]), output_attentions=True, return_dict=True
            )
        return [layer[0].numpy().astype(np.float64) for layer in output.attentions]


def measure(model_dir: str | Path, sentences: Sequence[Sentence]) -> dict[str, Any]:
    """Measure every head: {"sentences", "skipped", "queries", "heads"}.

    "heads" maps (layer, head) to `summarise`'s dictionary.  "sentences" counts those measured,
    "skipped" those over config.max_position_embeddings or without a word that yields a piece.
    """
    model = Model(model_dir)
    limit = int(model.model.config.max_position_embeddings)
    heads: dict[tuple[int, int], Counts] = {}
    used = skipped = queries = 0
    for sentence in sentences:
        encoded = model.encode(sentence)
        if not encoded.is_usable(limit):
            skipped += 1
            continue
        used += 1
        queries += len(encoded.queries)
        for layer, patterns in enumerate(model.patterns(encoded)):
            for head, pattern in enumerate(patterns):
                counts = heads.setdefault((layer, head), Counts(float))
                count_sentence(counts, pattern, encoded)
    return {
        "sentences": used,
        "skipped": skipped,
        "queries": queries,
        "heads": {key: summarise(counts) for key, counts in heads.items()},
    }
