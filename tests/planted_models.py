"""BERT checkpoints built by hand whose attention heads have known roles. No weight is trained.

**Features.** Every token vector is a sum of orthogonal blocks: its position (sines and cosines),
its identity (a random sign vector for every word piece), a class mark (verb, object or subject of
class ``k``), its rarity, whether it is ``[CLS]`` or ``[SEP]``, and a filler that makes up the norm.
They live in ``D_MODEL - 1`` features which one orthogonal matrix maps onto the vectors of
``R^D_MODEL`` with zero mean. Every vector has squared norm ``D_MODEL``, so LayerNorm with gain 1
and bias 0 returns it unchanged. ``W_O`` and the second FFN matrix are zero, so *every layer sees
the embeddings*, and a role can be planted anywhere.

**Heads.** Each head reads a few features; see ``plant_*``. Where a query has no business with
anything, the scores are a random bilinear form of the two identities ("noise"), so that its argmax
is an arbitrary word that is no particular relation's target.

**Treebank.** Sentences of invented words in *random order*, so that no fixed offset describes a
relation, except ``det``, which always stands right before its head: there the next-token head is
as good as the best fixed offset, and a program without that baseline calls it syntactic. Word
pieces, rarity and class marks are drawn independently of position and of each other.

Traps for a reader of the files: sentences start with a capital; final punctuation and a few of the
rarest words are missing from the frequency file; some sentences hold only words of the 500 most
frequent (no rare-word trial there); ``nsubj`` also occurs as ``nsubj:pass``; some sentences have a
multiword-token row (``3-4``) and some an empty-node row (``3.1``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertModel, BertTokenizer

Array = NDArray[np.float64]

N_LAYERS = 3
N_HEADS = 4
D_HEAD = 64
D_MODEL = N_HEADS * D_HEAD
MAX_POSITIONS = 128
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PUNCTUATION = (".", "!", "?")
N_MARKS = 8
N_LEVELS = 6  # rarity levels 0 (common) .. 5; level 0 is in the 500 most frequent words
LEXICON_SEED = 20240607  # the lexicon, hence the tokenizer, is the same for every model
FREE_RELATIONS = ("amod", "advmod", "obl", "nmod", "case", "mark")

# Squared norms of the feature blocks; the filler takes what mark and rarity leave of the rest.
POSITION_ENERGY = 96.0
IDENTITY_ENERGY = 80.0
MARK_SIZE = RARITY_SIZE = SPECIAL_SIZE = 5.0

# Scores (logits) the heads reach; a row has at most 128 keys and ln 128 is 4.85.
POSITION_SCORE = 10.0  # sharp (0.99), yet two pieces of a word never tie at 1.0 each
MARK_SCORE = 20.0
SPECIAL_SCORE = 14.0
RARITY_STEP_SCORE = 6.0  # per level: a three-piece word one level down gains only ln 3 = 1.1
NOISE_SCORE = 2.0
TIE_BREAK_SCORE = 0.01  # in the positional heads, where it mixes with position to about 0.2


@dataclass(frozen=True)
class PlantedRole:
    """What one head does by construction.

    ``kind`` is ``positional`` (with ``offset``), ``syntactic`` (with ``relation`` and
    ``direction``), ``rare``, ``special``, ``self``, ``broad`` or ``none``.
    """

    kind: str
    offset: int | None = None
    relation: str | None = None
    direction: str | None = None


@dataclass(frozen=True)
class Planted:
    """A planted checkpoint with the files on which its heads show their roles."""

    folder: Path
    treebank: Path
    frequencies: Path
    roles: dict[tuple[int, int], PlantedRole]


@dataclass(frozen=True)
class Word:
    """A word of the invented language; every piece belongs to this word alone."""

    pieces: tuple[str, ...]
    role: str  # "verb", "obj", "subj" or "plain"
    mark: int  # class 0..N_MARKS-1 of a verb, object or subject; -1 for plain words
    level: int  # rarity

    @property
    def form(self) -> str:
        return "".join(piece.removeprefix("##") for piece in self.pieces)


def fresh(rng: np.random.Generator, length: int, seen: set[str]) -> str:
    """So many consonant-vowel syllables, never the same twice."""
    while True:
        consonants = rng.choice(list("bcdfghjklmnprstvz"), size=length)
        vowels = rng.choice(list("aeiou"), size=length)
        text = "".join(c + v for c, v in zip(consonants, vowels, strict=True))
        if text not in seen:
            seen.add(text)
            return text


@cache
def lexicon() -> tuple[Word, ...]:
    """All words: 2 per (role, mark, level), and 120 + 5 * 40 plain ones.

    Initial pieces have six letters and continuations four, so WordPiece's greedy match finds
    exactly the intended pieces. In every role and level, two words in sixteen have two pieces
    and one has three: near-uniform heads prefer split words, which must not hint at a relation.
    """
    rng = np.random.default_rng(LEXICON_SEED)
    seen = set()
    words: list[Word] = []
    for role in ("verb", "obj", "subj", "plain"):
        for level in range(N_LEVELS):
            marks = [-1] * (40 if level else 120) if role == "plain" else [*range(N_MARKS)] * 2
            lengths = [2, 2, 3] * round(len(marks) / 16)
            lengths += [1] * (len(marks) - len(lengths))
            for mark, length in zip(marks, rng.permutation(lengths).tolist(), strict=True):
                tail = ["##" + fresh(rng, 2, seen) for _ in range(length - 1)]
                words.append(Word((fresh(rng, 3, seen), *tail), role, mark, level))
    return tuple(words)


def vocabulary() -> dict[str, int]:
    pieces = [piece for word in lexicon() for piece in word.pieces]
    return {token: index for index, token in enumerate([*SPECIALS, *PUNCTUATION, *pieces])}


def write_frequencies(path: Path) -> None:
    """Counts by rank: level 0, then 600 fillers, then levels 1 to 5; all distinct.

    The first 500 entries are level 0 and fillers only. Every sixteenth word of level 5 is left
    out (unseen, count 0), and so is punctuation, which must never count as a rare word.
    """
    rng = np.random.default_rng(LEXICON_SEED + 1)
    seen = set()
    by_level = [[word.form for word in lexicon() if word.level == n] for n in range(N_LEVELS)]
    by_level[-1] = [form for index, form in enumerate(by_level[-1]) if index % 16]
    fillers = [fresh(rng, 6, seen) for _ in range(600)]
    ranked = by_level[0] + fillers + [form for forms in by_level[1:] for form in forms]
    lines = [f"{form}\t{10_000_000 // (rank + 10)}\n" for rank, form in enumerate(ranked)]
    rng.shuffle(lines)  # the file need not be sorted
    path.write_text("".join(lines), encoding="utf-8")


class Node(NamedTuple):
    """A word of a sentence before words are chosen and put in order."""

    role: str
    mark: int
    head: int  # index of the head node, -1 for the root
    relation: str


def draw_tree(rng: np.random.Generator, n_nodes: int, n_verbs: int) -> list[Node]:
    """Clauses, then plain words on random heads; at most one ``det`` on a word that is no det.

    Verbs are of distinct classes; most have an object and a subject of the verb's own class.
    """
    nodes: list[Node] = []
    verbs: list[int] = []
    for mark in rng.permutation(N_MARKS)[:n_verbs].tolist():
        relation = str(rng.choice(("conj", "advcl", "ccomp"))) if verbs else "root"
        head = int(rng.choice(verbs)) if verbs else -1
        verbs.append(len(nodes))
        nodes.append(Node("verb", mark, head, relation))
        if rng.random() < 0.85:
            nodes.append(Node("obj", mark, verbs[-1], "obj"))
        if rng.random() < 0.85:
            passive = rng.random() < 0.3
            nodes.append(Node("subj", mark, verbs[-1], "nsubj:pass" if passive else "nsubj"))
    determined: set[int] = set()
    while len(nodes) < n_nodes:
        heads = [index for index, node in enumerate(nodes) if node.relation != "det"]
        head = int(rng.choice(heads))
        relation = str(rng.choice(FREE_RELATIONS))
        if head not in determined and rng.random() < 0.25:
            relation = "det"
            determined.add(head)
        nodes.append(Node("plain", -1, head, relation))
    return nodes


@cache
def pool(role: str, mark: int, levels: range) -> tuple[Word, ...]:
    return tuple(w for w in lexicon() if w.role == role and w.mark == mark and w.level in levels)


def draw_words(rng: np.random.Generator, nodes: Sequence[Node], top: int) -> list[Word]:
    """One distinct word per node: a random node gets level ``top``, all others a lower level.

    With ``top`` 0 every word is of level 0 (a sentence without a rare word).
    """
    rare = int(rng.integers(len(nodes))) if top else -1
    words: list[Word] = []
    for index, node in enumerate(nodes):
        levels = range(top, top + 1) if index == rare else range(max(top, 1))
        choices = pool(node.role, node.mark, levels)
        word = choices[int(rng.integers(len(choices)))]
        while word in words:  # ends: at most 89 words, and 120 plain ones of level 0
            word = choices[int(rng.integers(len(choices)))]
        words.append(word)
    return words


def row(ident: object, form: str, *rest: str) -> str:
    """ID, FORM, and from HEAD on: the treebank has neither lemmas nor tags."""
    return "\t".join([str(ident), form, *"____", *rest])


def draw_sentence(rng: np.random.Generator, n_words: int, n_verbs: int, top: int) -> list[str]:
    """The CoNLL-U rows of one sentence, whose last word is punctuation."""
    while True:
        nodes = draw_tree(rng, n_words - 1, n_verbs)
        words = draw_words(rng, nodes, top)
        if sum(len(word.pieces) for word in words) + 3 <= MAX_POSITIONS:
            break
    det_of = {node.head: index for index, node in enumerate(nodes) if node.relation == "det"}
    order: list[int] = []  # any, but each ``det`` stands right before its head
    for index in rng.permutation(len(nodes)).tolist():
        if nodes[index].relation != "det":
            order += [det_of[index], index] if index in det_of else [index]
    number = {-1: 0} | {node: order_index + 1 for order_index, node in enumerate(order)}
    rows = []
    for order_index, index in enumerate(order):
        node = nodes[index]
        form = words[index].form
        form = form if order_index else form.capitalize()
        rows.append(row(order_index + 1, form, str(number[node.head]), node.relation, "_", "_"))
    root = number[next(index for index, node in enumerate(nodes) if node.head == -1)]
    mark = str(rng.choice(PUNCTUATION))
    return [*rows, row(n_words, mark, str(root), "punct", "_", "_")]


def add_side_rows(rng: np.random.Generator, rows: list[str]) -> list[str]:
    """Now and then a multiword-token row or an empty node, neither of which is a word."""
    draw = rng.random()
    after_word = int(rng.integers(1, len(rows) - 2))  # 0-based: before or after this word
    if draw < 0.05:
        joined = " ".join(rows[i].split("\t")[1] for i in (after_word, after_word + 1))
        rows.insert(after_word, row(f"{after_word + 1}-{after_word + 2}", joined, *"____"))
    elif draw < 0.10:
        rows.insert(
            after_word + 1, row(f"{after_word + 1}.1", "_", *"__", f"{after_word + 1}:dep", "_")
        )
    return rows


def write_treebank(path: Path, rng: np.random.Generator, *, long: bool) -> None:
    """Write the treebank; one sentence in sixty holds only words of level 0."""
    blocks = []
    for index in range(100 if long else 700):
        n_words = int(rng.integers(60, 91) if long else rng.integers(5, 26))
        most_verbs = min(3, (n_words - 1) // 3)
        n_verbs = int(rng.integers(4, N_MARKS) if long else rng.integers(1, most_verbs + 1))
        common = not long and index % 60 == 59
        top = 0 if common else int(rng.integers(1, N_LEVELS))
        rows = add_side_rows(rng, draw_sentence(rng, n_words, n_verbs, top))
        text = " ".join(row.split("\t")[1] for row in rows if row.split("\t")[0].isdigit())
        comments = [f"# sent_id = planted-{index + 1}", f"# text = {text}"]
        blocks.append("\n".join([*comments, *rows]) + "\n\n")
    path.write_text("".join(blocks), encoding="utf-8")


class Layout:
    """Where each block lies in feature space; the dimensions after the filler stay empty.

    Position: for the 32 odd frequencies f, ``(cos, sin)(2 pi f p / 128)``. The dot product of
    positions p and p' is proportional to ``sum_f cos(2 pi f (p - p') / 128)``, which is 1 at
    p = p', -1 at distance 64 and *exactly 0* elsewhere: an ideal "same position" detector in 64
    dimensions. Rotating each pair by ``2 pi f r / 128`` moves p to p + r.
    """

    position = slice(0, 64)
    identity = slice(64, 96)
    verb = slice(96, 96 + N_MARKS)
    obj = slice(verb.stop, verb.stop + N_MARKS)
    subj = slice(obj.stop, obj.stop + N_MARKS)
    rarity, cls, sep, filler = range(subj.stop, subj.stop + 4)
    total = D_MODEL - 1


def angles(offset: float) -> Array:
    frequencies = np.arange(1, 64, 2, dtype=np.float64)
    return np.asarray(2.0 * np.pi * frequencies * offset / MAX_POSITIONS)


def position_features() -> Array:
    """(128, total): one row per position, squared norm ``POSITION_ENERGY``."""
    features = np.zeros((MAX_POSITIONS, Layout.total))
    for position in range(MAX_POSITIONS):
        pair = np.stack([np.cos(angles(position)), np.sin(angles(position))], axis=1)
        features[position, Layout.position] = pair.ravel() * np.sqrt(POSITION_ENERGY / 32)
    return features


def word_features(rng: np.random.Generator) -> Array:
    """(vocabulary, total): identity, marks and rarity of every piece, filled to constant norm.

    All pieces of a word carry its mark and rarity, so a split word acts as one.
    """
    index = vocabulary()
    features = np.zeros((len(index), Layout.total))
    signs = rng.choice([-1.0, 1.0], size=(len(index), 32))
    features[:, Layout.identity] = signs * np.sqrt(IDENTITY_ENERGY / 32)
    features[index["[CLS]"], Layout.cls] = features[index["[SEP]"], Layout.sep] = SPECIAL_SIZE
    for word in lexicon():
        for piece in word.pieces:
            feature = features[index[piece]]
            feature[Layout.rarity] = RARITY_SIZE * word.level / (N_LEVELS - 1)
            if word.role != "plain":
                feature[getattr(Layout, word.role).start + word.mark] = MARK_SIZE
    energy = D_MODEL - POSITION_ENERGY - (features**2).sum(axis=1)
    features[:, Layout.filler] = np.sqrt(energy)
    return features


class Head:
    """Query and key maps of one head in feature space: ``q = W_Q f + b_Q``, ``k = W_K f``."""

    def __init__(self) -> None:
        self.query, self.key = np.zeros((2, D_HEAD, Layout.total))
        self.bias = np.zeros(D_HEAD)

    def add_noise(self, rng: np.random.Generator, first: int, score: float) -> Head:
        """Fill the head dimensions from ``first`` with a random bilinear form of the identities.

        The scores it adds have standard deviation ``score`` over pairs of pieces, so a query whose
        planted dimensions are silent attends to arbitrary words.
        """
        width = D_HEAD - first
        size = np.sqrt(score * np.sqrt(D_HEAD) / np.sqrt(width) / IDENTITY_ENERGY)
        self.query[first:, Layout.identity] = rng.normal(size=(width, 32)) * size
        self.key[first:, Layout.identity] = rng.normal(size=(width, 32)) * size
        return self


def plant_positional(rng: np.random.Generator, offset: int) -> tuple[PlantedRole, Head]:
    """Query: own position moved by ``offset``; key: own position; they agree at the target only.

    A little noise decides, instead of rounding errors, where a query without a target looks.
    """
    head = Head()
    size = np.sqrt(POSITION_SCORE * np.sqrt(D_HEAD) / POSITION_ENERGY)
    shift = np.zeros((64, 64))  # turns the features of position p into those of p + offset
    for index, angle in enumerate(angles(offset)):
        cos = np.cos(angle)
        sin = np.sin(angle)
        shift[2 * index : 2 * index + 2, 2 * index : 2 * index + 2] = [[cos, -sin], [sin, cos]]
    head.query[:, Layout.position] = shift * size
    head.key[:, Layout.position] = np.eye(64) * size
    role = PlantedRole("positional" if offset else "self", offset=offset)
    return role, head.add_noise(rng, 0, TIE_BREAK_SCORE)


def plant_syntactic(
    rng: np.random.Generator, relation: str, direction: str, query: slice, key: slice
) -> tuple[PlantedRole, Head]:
    """Dimension k of the query reads the asker's mark, of the key the answerer's mark.

    A query of class k therefore finds the key of class k, wherever it stands. Queries without
    the mark see only the noise.
    """
    head = Head()
    size = np.sqrt(MARK_SCORE * np.sqrt(D_HEAD)) / MARK_SIZE
    head.query[:N_MARKS, query] = head.key[:N_MARKS, key] = np.eye(N_MARKS) * size
    role = PlantedRole("syntactic", relation=relation, direction=direction)
    return role, head.add_noise(rng, N_MARKS, NOISE_SCORE)


def plant_feature(
    rng: np.random.Generator, kind: str, feature: int, size: float, score: float, noise: float
) -> tuple[PlantedRole, Head]:
    """Every query is the same (b_Q), every key reads one feature: ``score`` at value ``size``."""
    head = Head()
    head.bias[0] = np.sqrt(score * np.sqrt(D_HEAD))
    head.key[0, feature] = head.bias[0] / size
    return PlantedRole(kind), head.add_noise(rng, 1, noise)


def plant_random(rng: np.random.Generator, kind: str, std: float) -> tuple[PlantedRole, Head]:
    """Independent normal weights, reading all features; score deviation is 256 * std ** 2."""
    head = Head()
    head.query = rng.normal(size=head.query.shape) * std
    head.key = rng.normal(size=head.query.shape) * std
    return PlantedRole(kind), head


def planted_heads(rng: np.random.Generator) -> dict[tuple[int, int], tuple[PlantedRole, Head]]:
    """The twelve heads. Near-uniform rows are broad, however long the sentences."""
    rarest = RARITY_STEP_SCORE * (N_LEVELS - 1)
    return {
        (0, 0): plant_positional(rng, -1),
        (0, 1): plant_syntactic(rng, "obj", "dep->head", Layout.obj, Layout.verb),
        (0, 2): (PlantedRole("broad"), Head()),
        (0, 3): plant_positional(rng, 2),
        (1, 0): plant_feature(rng, "special", Layout.sep, SPECIAL_SIZE, SPECIAL_SCORE, noise=0.5),
        (1, 1): plant_positional(rng, 1),
        (1, 2): plant_feature(rng, "rare", Layout.rarity, RARITY_SIZE, rarest, noise=0.3),
        (1, 3): plant_random(rng, "none", 0.09),
        (2, 0): plant_random(rng, "broad", 0.02),
        (2, 1): plant_positional(rng, -2),
        (2, 2): plant_syntactic(rng, "nsubj", "head->dep", Layout.verb, Layout.subj),
        (2, 3): plant_positional(rng, 0),
    }


def fresh_bert(seed: int, layers: int, heads: int, d_model: int, d_ff: int) -> BertModel:
    """A BertModel with transformers' own initialisation, without touching torch's global state."""
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": d_model}
    sizes |= {"vocab_size": len(vocabulary()), "max_position_embeddings": MAX_POSITIONS}
    config = BertConfig(**sizes, intermediate_size=d_ff, layer_norm_eps=1e-12)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertModel(config).eval()


def save(model: BertModel, folder: Path) -> Path:
    """The model with a lower-casing WordPiece tokenizer that AutoTokenizer loads."""
    model.save_pretrained(folder)
    sizes = {"do_lower_case": True, "model_max_length": MAX_POSITIONS}
    BertTokenizer(vocab=vocabulary(), **sizes).save_pretrained(folder)
    return folder


@torch.no_grad()
def build_planted(folder: Path, *, seed: int = 0, long: bool = False) -> Planted:
    """Write a planted checkpoint, its treebank and its frequency file into ``folder``.

    ``seed`` changes the sentences, the identities and the noise; lexicon, tokenizer and frequency
    file are always the same. ``long`` gives sentences of 60 to 90 words (instead of 5 to 25).
    ``W_V`` keeps transformers' random values.
    """
    rng = np.random.default_rng([seed, 0])
    heads = planted_heads(rng)
    model = fresh_bert(seed, N_LAYERS, N_HEADS, D_MODEL, 32)
    random = rng.normal(size=(D_MODEL, D_MODEL))
    random[:, 0] = 1.0
    basis = np.linalg.qr(random)[0][:, 1:]  # features to hidden states: columns of mean zero

    def fill(target: torch.Tensor, values: Array) -> None:
        target.copy_(torch.from_numpy(values))

    embeddings = model.embeddings
    fill(embeddings.word_embeddings.weight, word_features(rng) @ basis.T)
    fill(embeddings.position_embeddings.weight, position_features() @ basis.T)
    embeddings.token_type_embeddings.weight.zero_()
    for number, layer in enumerate(model.encoder.layer):
        attention = layer.attention.self
        weights = [heads[number, index][1] for index in range(N_HEADS)]
        fill(attention.query.weight, np.concatenate([head.query @ basis.T for head in weights]))
        fill(attention.query.bias, np.concatenate([head.bias for head in weights]))
        fill(attention.key.weight, np.concatenate([head.key @ basis.T for head in weights]))
        attention.key.bias.zero_()
        for dense in (layer.attention.output.dense, layer.output.dense):
            dense.weight.zero_()
            dense.bias.zero_()
    save(model, folder)
    treebank = folder / "treebank.conllu"
    frequencies = folder / "frequencies.tsv"
    write_treebank(treebank, np.random.default_rng([seed, 1]), long=long)
    write_frequencies(frequencies)
    roles = {address: role for address, (role, _) in heads.items()}
    return Planted(folder, treebank, frequencies, roles)


def random_bert(folder: Path, *, seed: int) -> Path:
    """A BERT with transformers' random initialisation and the planted tokenizer: the control."""
    return save(fresh_bert(seed, 4, 8, 128, 512), folder)
