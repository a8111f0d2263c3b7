"""A slow, literal reading of docs/definitions/roles.md: the oracle of the head classification.

One sentence at a time, no padding, transformers' own eager attention, float64, plain loops.
It shares no code with the package.  Where that page is silent the docstrings state the reading.
The labels are `reference_labels` and `reference_roles`, which use the small parts of this page.
"""

import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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
    """Words are the rows with integer ids; `heads` are 1-based, 0 is the root."""

    forms: list[str]
    heads: list[int]
    relations: list[str]


def read_treebank(path: str | Path) -> list[Sentence]:
    """Read CoNLL-U: "words = rows with integer ids; deprel cut at ':'"."""
    sentences = []
    for block in Path(path).read_text(encoding="utf-8").split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if line and line[0] != "#"]
        words = [row for row in rows if row[0].isdigit()]
        if words:
            forms = [row[1] for row in words]
            heads = [int(row[6]) for row in words]
            relations = [row[7].split(":")[0] for row in words]
            sentences.append(Sentence(forms, heads, relations))
    return sentences


@dataclass(frozen=True)
class Encoded:
    """One sequence: token ids and, for every token, the index of its word (None = special)."""

    ids: list[int]
    word_of: list[int | None]
    sentence: Sentence

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
        """False when longer than the limit or when a word yields no piece: skipped, counted."""
        words = range(len(self.sentence.forms))
        return len(self.ids) <= max_length and all(self.pieces(word) for word in words)


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
    candidates: frozenset[int]
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
    return RareTarget(len(forms), frozenset(candidates), rarest, two_rarest)


def expected_null_hits(target: RareTarget, argmax: Sequence[int]) -> float:
    """Expected hits on r words drawn without replacement from the c candidates (r rarest words).

    The drawn words are no queries, so a word q with argmax a scores P(a drawn and q not drawn):
    0 if a is no candidate, r/c if q is no candidate, else r/c * (c - r)/(c - 1).
    """
    drawn, pool = len(target.rarest), len(target.candidates)
    total = 0.0
    for query in range(target.words):
        if argmax[query] in target.candidates:
            if query in target.candidates:
                total += drawn / pool * (pool - drawn) / (pool - 1)
            else:
                total += drawn / pool
    return total


@dataclass
class HeadCounts:
    """Sums over the corpus for one head."""

    queries: int = 0
    offset_hits: dict[int, int] = field(default_factory=lambda: dict.fromkeys(OFFSETS, 0))
    offset_queries: dict[int, int] = field(default_factory=lambda: dict.fromkeys(OFFSETS, 0))
    mass_sum: dict[int, float] = field(default_factory=lambda: dict.fromkeys(OFFSETS, 0.0))
    mass_queries: dict[int, int] = field(default_factory=lambda: dict.fromkeys(OFFSETS, 0))
    trial_hits: list[bool] = field(default_factory=list)
    rare_sentences: int = 0
    rare_queries: int = 0
    rare_hits: int = 0
    two_rarest_hits: int = 0
    chance_sum: float = 0.0
    null_hits: float = 0.0
    null_queries: int = 0
    confidence: float = 0.0
    entropy: float = 0.0
    special_mass: float = 0.0
    cls_mass: float = 0.0
    sep_mass: float = 0.0
    punctuation_mass: float = 0.0
    self_hits: int = 0
    duplicate_hits: int = 0
    duplicate_queries: int = 0


def count_sentence(
    counts: HeadCounts, pattern: Matrix, encoded: Encoded, target: RareTarget | None
) -> None:
    """Add one sentence's pattern (n x n, special tokens included) to one head's counts."""
    rows: list[list[float]] = pattern.tolist()
    queries = encoded.queries
    # "Content argmax": argmax over non-special keys.
    argmax = {i: lowest_argmax(rows[i], queries) for i in queries}
    counts.queries += len(queries)
    count_positional(counts, rows, argmax)
    count_masses(counts, rows, encoded)
    count_same(counts, argmax, encoded)
    if len(encoded.sentence.forms) >= 2:
        chosen = word_argmax(word_attention(pattern, encoded))
        count_trials(counts, chosen, syntactic_trials(encoded.sentence))
        if target is not None:
            count_rare(counts, chosen, target)


def count_positional(counts: HeadCounts, rows: list[list[float]], argmax: dict[int, int]) -> None:
    """Hits over queries whose target i+r is non-special; mass over i+r anywhere in the sequence."""
    for i, chosen in argmax.items():
        for r in OFFSETS:
            if i + r in argmax:
                counts.offset_queries[r] += 1
                counts.offset_hits[r] += chosen == i + r
            if 0 <= i + r < len(rows):
                counts.mass_queries[r] += 1
                counts.mass_sum[r] += rows[i][i + r]


def count_masses(counts: HeadCounts, rows: list[list[float]], encoded: Encoded) -> None:
    """Confidence (max over non-special keys), entropy of the full row, masses; all queries."""
    queries, special = encoded.queries, encoded.special
    forms = encoded.sentence.forms
    marks = [j for j, w in enumerate(encoded.word_of) if w is not None and is_punctuation(forms[w])]
    for i in queries:
        row = rows[i]
        counts.confidence += max(row[j] for j in queries)
        counts.entropy += -sum(p * math.log(p) for p in row if p > 0)
        counts.special_mass += sum(row[j] for j in special)
        counts.punctuation_mass += sum(row[j] for j in marks)
        if special:
            counts.cls_mass += row[special[0]]
            counts.sep_mass += row[special[-1]]


def count_same(counts: HeadCounts, argmax: dict[int, int], encoded: Encoded) -> None:
    """self: content argmax is the diagonal; duplicate: it is another token with the same id."""
    ids = encoded.ids
    for i, chosen in argmax.items():
        counts.self_hits += chosen == i
        if any(ids[j] == ids[i] for j in argmax if j != i):
            counts.duplicate_queries += 1
            counts.duplicate_hits += chosen != i and ids[chosen] == ids[i]


def word_attention(pattern: Matrix, encoded: Encoded) -> Matrix:
    """Sum over the attended word's pieces, mean over the attending word's; not renormalised."""
    size = len(encoded.sentence.forms)
    pieces = [encoded.pieces(word) for word in range(size)]
    attention = np.zeros((size, size), dtype=np.float64)
    for query in range(size):
        mean = pattern[pieces[query]].mean(axis=0)
        for key in range(size):
            attention[query, key] = sum(mean[j] for j in pieces[key])
    return attention


def word_argmax(attention: Matrix) -> list[int]:
    """Every word's most attended word, the diagonal excluded; ties: the lowest index."""
    size = len(attention)
    rows: list[list[float]] = attention.tolist()
    return [lowest_argmax(rows[q], [k for k in range(size) if k != q]) for q in range(size)]


def count_trials(counts: HeadCounts, argmax: Sequence[int], trials: Sequence[Trial]) -> None:
    """One hit or miss per trial, in the order of the corpus' trials."""
    for trial in trials:
        counts.trial_hits.append(argmax[trial.query] in trial.targets)


def count_rare(counts: HeadCounts, argmax: Sequence[int], target: RareTarget) -> None:
    """Every word is a query and a key, but a rarest word is no query."""
    counts.rare_sentences += 1
    for query in range(target.words):
        if query not in target.rarest:
            counts.rare_queries += 1
            counts.rare_hits += argmax[query] in target.rarest
            counts.two_rarest_hits += argmax[query] in target.two_rarest
            counts.chance_sum += len(target.rarest) / (target.words - 1)
    counts.null_hits += expected_null_hits(target, argmax)
    counts.null_queries += target.words - len(target.rarest)


def ratio(numerator: float, denominator: float) -> float:
    """A rate; 0 when there was nothing to count."""
    return numerator / denominator if denominator else 0.0


def summarise(counts: HeadCounts, trials: Sequence[Trial]) -> dict[str, Any]:
    """All raw numbers of section 1 for one head."""
    total = counts.queries
    return {
        "queries": total,
        "positional": summarise_positional(counts),
        "syntactic": summarise_syntactic(counts.trial_hits, trials),
        "rare": summarise_rare(counts),
        "confidence": ratio(counts.confidence, total),
        "entropy": ratio(counts.entropy, total),
        "special_mass": ratio(counts.special_mass, total),
        "cls_mass": ratio(counts.cls_mass, total),
        "sep_mass": ratio(counts.sep_mass, total),
        "punctuation_mass": ratio(counts.punctuation_mass, total),
        "self_rate": ratio(counts.self_hits, total),
        "duplicate": ratio(counts.duplicate_hits, counts.duplicate_queries),
        "duplicate_queries": counts.duplicate_queries,
    }


def summarise_positional(counts: HeadCounts) -> dict[str, Any]:
    """`score` = max over r, `offset` = that r (ties: smallest absolute value, then negative)."""
    rates = {r: ratio(counts.offset_hits[r], counts.offset_queries[r]) for r in OFFSETS}
    offset = min(OFFSETS, key=lambda r: (-rates[r], abs(r), r))
    return {
        "rates": rates,
        "hits": dict(counts.offset_hits),
        "queries": dict(counts.offset_queries),
        "mass": {r: ratio(counts.mass_sum[r], counts.mass_queries[r]) for r in OFFSETS},
        "score": rates[offset],
        "offset": offset,
    }


def summarise_syntactic(hits: Sequence[bool], trials: Sequence[Trial]) -> dict[Key, dict[str, Any]]:
    """Per (relation, direction): the head against the best fixed offset on the same trials."""
    groups: dict[Key, list[int]] = {}
    for index, trial in enumerate(trials):
        groups.setdefault((trial.relation, trial.direction), []).append(index)
    result: dict[Key, dict[str, Any]] = {}
    for key, members in sorted(groups.items()):
        result[key] = compare([hits[i] for i in members], [trials[i] for i in members])
    return result


def compare(hits: Sequence[bool], trials: Sequence[Trial]) -> dict[str, Any]:
    """Accuracy, baseline, and the paired counts of McNemar's test."""
    offset = best_offset(trials)
    base = [baseline_hit(trial, offset) for trial in trials]
    return {
        "trials": len(trials),
        "hits": sum(hits),
        "accuracy": sum(hits) / len(trials),
        "baseline": sum(base) / len(trials),
        "baseline_hits": sum(base),
        "baseline_offset": offset,
        "both": sum(h and b for h, b in zip(hits, base, strict=True)),
        "only_head": sum(h and not b for h, b in zip(hits, base, strict=True)),
        "only_baseline": sum(b and not h for h, b in zip(hits, base, strict=True)),
    }


def summarise_rare(counts: HeadCounts) -> dict[str, Any]:
    queries = counts.rare_queries
    return {
        "sentences": counts.rare_sentences,
        "queries": queries,
        "hits": counts.rare_hits,
        "rate": ratio(counts.rare_hits, queries),
        "two_rarest": ratio(counts.two_rarest_hits, queries),
        "chance": ratio(counts.chance_sum, queries),
        "null": ratio(counts.null_hits, counts.null_queries),
    }


class Model:
    """A tokenizer and a model with transformers' own eager attention, in float32."""

    def __init__(self, model_dir: str | Path, control_seed: int | None = None) -> None:
        import torch
        from transformers import AutoConfig, AutoModel, AutoTokenizer

        path = str(model_dir)
        load: Any = AutoModel
        options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        if control_seed is None:
            self.model = load.from_pretrained(path, **options)
        else:  # the same model with random weights
            torch.manual_seed(control_seed)
            self.model = load.from_config(AutoConfig.from_pretrained(path), **options)
        self.model.eval()

    def encode(self, sentence: Sentence) -> Encoded:
        encoding = self.tokenizer(sentence.forms, is_split_into_words=True)
        return Encoded(list(encoding["input_ids"]), list(encoding.word_ids()), sentence)

    def patterns(self, encoded: Encoded) -> list[Matrix]:
        """One (heads, n, n) float64 array per layer."""
        import torch

        with torch.no_grad():
            output = self.model(
                input_ids=torch.tensor([encoded.ids]), output_attentions=True, return_dict=True
            )
        return [layer[0].numpy().astype(np.float64) for layer in output.attentions]


def measure(
    model_dir: str | Path,
    sentences: Sequence[Sentence],
    frequency: Callable[[str], float],
    frequent: set[str],
    max_length: int | None = None,
    control_seed: int | None = None,
) -> dict[str, Any]:
    """Measure every head: {"sentences", "skipped", "queries", "mean_log_n", "heads"}.

    "heads" maps (layer, head) to `summarise`'s dictionary.  "sentences" counts those measured,
    "skipped" those over the limit (`max_length`, else config.max_position_embeddings) or with a
    word that yields no piece.  "mean_log_n" is the mean over queries of ln n (n with specials).
    With `control_seed` the weights are random.
    """
    model = Model(model_dir, control_seed)
    limit = max_length or int(model.model.config.max_position_embeddings)
    heads: dict[tuple[int, int], HeadCounts] = {}
    trials: list[Trial] = []
    used = skipped = queries = 0
    log_n = 0.0
    for sentence in sentences:
        encoded = model.encode(sentence)
        if not encoded.is_usable(limit):
            skipped += 1
            continue
        used += 1
        queries += len(encoded.queries)
        log_n += len(encoded.queries) * math.log(len(encoded.ids))
        trials += syntactic_trials(sentence)
        target = rare_target(sentence.forms, frequency, frequent)
        for layer, patterns in enumerate(model.patterns(encoded)):
            for head, pattern in enumerate(patterns):
                counts = heads.setdefault((layer, head), HeadCounts())
                count_sentence(counts, pattern, encoded, target)
    return {
        "sentences": used,
        "skipped": skipped,
        "queries": queries,
        "mean_log_n": ratio(log_n, queries),
        "heads": {key: summarise(counts, trials) for key, counts in heads.items()},
    }


def mcnemar(only_head: int, only_baseline: int) -> float:
    """Exact two-sided McNemar: min(1, 2 P(X <= min)), X ~ Binomial(n discordant, 1/2)."""
    discordant = only_head + only_baseline
    total, binomial = 0, 1
    for k in range(min(only_head, only_baseline) + 1):
        total += binomial
        binomial = binomial * (discordant - k) // (k + 1)
    return float(min(1.0, 2 * total / 2**discordant))


def p_values(only_head: Sequence[int], only_baseline: Sequence[int]) -> list[float]:
    """`mcnemar` for every pair of discordant counts; 1 when no pair is discordant."""
    return [mcnemar(a, b) for a, b in zip(only_head, only_baseline, strict=True)]


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: for rank i, the least of p_(j) m / j over j >= i, at most 1."""
    size = len(p)
    order = sorted(range(size), key=lambda index: p[index])
    adjusted = [1.0] * size
    running = 1.0
    for rank in range(size, 0, -1):
        index = order[rank - 1]
        running = min(running, p[index] * size / rank)
        adjusted[index] = running
    return adjusted


def wilson(hits: float, trials: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson score interval of a proportion; (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    share = hits / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
