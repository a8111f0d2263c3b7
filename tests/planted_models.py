"""BERT checkpoints built by hand whose attention heads have known roles.

No weight in :func:`build_planted` is trained.  The construction has four parts.

**Features.**  Every token vector is a sum of orthogonal blocks (see :class:`_Layout`): its
position (sines and cosines), its identity (a random sign vector, different for every word piece),
a class mark (verb, object or subject of class ``k``), its rarity, whether it is ``[CLS]`` or
``[SEP]``, and a filler that makes up the norm.  The blocks live in a space of ``D_MODEL - 1``
features which one orthogonal matrix maps onto the vectors of ``R^D_MODEL`` with zero mean.  Every
vector has squared norm ``D_MODEL``: its mean is 0 and its variance 1, so LayerNorm with gain 1 and
bias 0 returns it unchanged.

**Pass-through.**  ``W_O`` and the second FFN matrix are zero, so a block computes
``LayerNorm(x + 0) = x`` and *every layer sees the embeddings*.  A role can be planted anywhere.

**Heads.**  Each head reads a few features; see the ``_plant_*`` functions.  Where a query has no
business with anything, the scores are a random bilinear form of the two identities ("noise"), so
that its argmax is an arbitrary word that is no particular relation's target.

**Treebank.**  Sentences of invented words in *random order*, so that no fixed offset describes a
relation, except ``det``, which always stands right before its head: there the next-token head is
as good as the best fixed offset, and a program without that baseline calls it syntactic.  Word
pieces, rarity and class marks are drawn independently of position and of each other.

Deliberate traps for a reader of the files: sentences start with a capital; final punctuation and
a few of the rarest words are missing from the frequency file; some sentences hold only words of
the 500 most frequent (no rare-word trial there); ``nsubj`` also occurs as ``nsubj:pass``; some
sentences have a multiword-token row (``3-4``) and some an empty-node row (``3.1``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertModel, BertTokenizer

Array = NDArray[np.float64]

N_LAYERS, N_HEADS, D_HEAD = 3, 4, 64
D_MODEL = N_HEADS * D_HEAD
MAX_POSITIONS = 128
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PUNCTUATION = (".", "!", "?")
N_MARKS = 8
N_LEVELS = 6  # rarity levels 0 (common) .. 5; level 0 is in the 500 most frequent words
COMMON_EVERY = 60  # in the short treebank, one sentence in 60 has words of level 0 only
N_FREQUENCY_FILLERS = 600
LEXICON_SEED = 20240607  # the lexicon, hence the tokenizer, is the same for every model
FREE_RELATIONS = ("amod", "advmod", "obl", "nmod", "case", "mark")
CLAUSE_RELATIONS = ("conj", "advcl", "ccomp")

# Squared norms of the feature blocks; the filler takes what mark and rarity leave of the rest.
POSITION_ENERGY, IDENTITY_ENERGY = 96.0, 80.0
REST_ENERGY = D_MODEL - POSITION_ENERGY - IDENTITY_ENERGY
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
    ``direction``), ``rare``, ``special`` (with ``token``), ``self``, ``broad`` or ``none``.
    ``detail`` names the mechanism of the last two: ``uniform``, ``random-small``, ``random``.
    """

    kind: str
    offset: int | None = None
    relation: str | None = None
    direction: str | None = None
    token: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Planted:
    """A planted checkpoint with the files on which its heads show their roles.

    ``common_sentences`` counts the sentences whose rarest word is among the 500 most frequent.
    """

    folder: Path
    treebank: Path
    frequencies: Path
    roles: dict[tuple[int, int], PlantedRole]
    common_sentences: int


# ------------------------------------------------------------------------------- lexicon


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


class _Syllables:
    """Makes distinct strings of consonant-vowel syllables."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._seen: set[str] = set()

    def fresh(self, length: int) -> str:
        while True:
            consonants = self._rng.choice(list("bcdfghjklmnprstvz"), size=length)
            vowels = self._rng.choice(list("aeiou"), size=length)
            text = "".join(c + v for c, v in zip(consonants, vowels, strict=True))
            if text not in self._seen:
                self._seen.add(text)
                return text


@cache
def lexicon() -> tuple[Word, ...]:
    """All words: 2 per (role, mark, level), and 120 + 5 * 40 plain ones.

    Initial pieces have six letters and continuations four, so WordPiece's greedy match finds
    exactly the intended pieces.  In every role and level, two words in sixteen have two pieces
    and one has three: near-uniform heads prefer split words, which must not hint at a relation.
    """
    rng = np.random.default_rng(LEXICON_SEED)
    syllables = _Syllables(rng)
    words: list[Word] = []
    for role in ("verb", "obj", "subj", "plain"):
        for level in range(N_LEVELS):
            marks = [-1] * (40 if level else 120) if role == "plain" else [*range(N_MARKS)] * 2
            lengths = [2, 2, 3] * round(len(marks) / 16)
            lengths += [1] * (len(marks) - len(lengths))
            for mark, length in zip(marks, rng.permutation(lengths).tolist(), strict=True):
                tail = ["##" + syllables.fresh(2) for _ in range(length - 1)]
                words.append(Word((syllables.fresh(3), *tail), role, mark, level))
    return tuple(words)


def _vocabulary() -> dict[str, int]:
    pieces = [piece for word in lexicon() for piece in word.pieces]
    tokens = [*SPECIALS, *PUNCTUATION, *pieces]
    return {token: index for index, token in enumerate(tokens)}


def _save_tokenizer(folder: Path) -> None:
    """A lower-casing WordPiece tokenizer that AutoTokenizer loads."""
    tokenizer = BertTokenizer(
        vocab=_vocabulary(), do_lower_case=True, model_max_length=MAX_POSITIONS
    )
    tokenizer.save_pretrained(folder)


def _write_frequencies(path: Path) -> None:
    """Counts by rank: level 0, then the fillers, then levels 1 to 5; all distinct.

    The first 500 entries are level 0 and fillers only.  Every sixteenth word of level 5 is left
    out (unseen, count 0), and so is punctuation, which must never count as a rare word.
    """
    rng = np.random.default_rng(LEXICON_SEED + 1)
    syllables = _Syllables(rng)
    by_level: list[list[str]] = [
        [word.form for word in lexicon() if word.level == level] for level in range(N_LEVELS)
    ]
    by_level[-1] = [form for index, form in enumerate(by_level[-1]) if index % 16]
    fillers = [syllables.fresh(6) for _ in range(N_FREQUENCY_FILLERS)]
    ranked = by_level[0] + fillers + [form for forms in by_level[1:] for form in forms]
    counts = [10_000_000 // (rank + 10) for rank in range(len(ranked))]
    lines = [f"{form}\t{count}\n" for form, count in zip(ranked, counts, strict=True)]
    rng.shuffle(lines)  # the file need not be sorted
    path.write_text("".join(lines), encoding="utf-8")


# ------------------------------------------------------------------------------ treebank


@dataclass(frozen=True)
class _Node:
    """A word of a sentence before words are chosen and put in order."""

    role: str
    mark: int
    head: int  # index of the head node, -1 for the root
    relation: str


def _draw_clauses(rng: np.random.Generator, n_verbs: int) -> list[_Node]:
    """Verbs of distinct classes, most with an object and a subject of the verb's own class."""
    nodes: list[_Node] = []
    verbs: list[int] = []
    for mark in rng.permutation(N_MARKS)[:n_verbs].tolist():
        relation = str(rng.choice(CLAUSE_RELATIONS)) if verbs else "root"
        head = int(rng.choice(verbs)) if verbs else -1
        verbs.append(len(nodes))
        nodes.append(_Node("verb", mark, head, relation))
        if rng.random() < 0.85:
            nodes.append(_Node("obj", mark, verbs[-1], "obj"))
        if rng.random() < 0.85:
            passive = rng.random() < 0.3
            nodes.append(_Node("subj", mark, verbs[-1], "nsubj:pass" if passive else "nsubj"))
    return nodes


def _draw_tree(rng: np.random.Generator, n_nodes: int, n_verbs: int) -> list[_Node]:
    """Clauses, then plain words on random heads; at most one ``det`` on a word that is no det."""
    nodes = _draw_clauses(rng, n_verbs)
    determined: set[int] = set()
    while len(nodes) < n_nodes:
        heads = [index for index, node in enumerate(nodes) if node.relation != "det"]
        head = int(rng.choice(heads))
        relation = str(rng.choice(FREE_RELATIONS))
        if head not in determined and rng.random() < 0.25:
            relation = "det"
            determined.add(head)
        nodes.append(_Node("plain", -1, head, relation))
    return nodes


def _draw_order(rng: np.random.Generator, nodes: Sequence[_Node]) -> list[int]:
    """A random permutation of the nodes, with each ``det`` right before its head."""
    det_of = {node.head: index for index, node in enumerate(nodes) if node.relation == "det"}
    order: list[int] = []
    for index in rng.permutation(len(nodes)).tolist():
        if nodes[index].relation != "det":
            order += [det_of[index], index] if index in det_of else [index]
    return order


def _draw_words(rng: np.random.Generator, nodes: Sequence[_Node], top: int) -> list[Word]:
    """One distinct word per node: a random node gets level ``top``, all others a lower level.

    With ``top`` 0 every word is of level 0 (a sentence without a rare word).
    """
    rare = int(rng.integers(len(nodes))) if top else -1
    words: list[Word] = []
    for index, node in enumerate(nodes):
        levels = range(top, top + 1) if index == rare else range(max(top, 1))
        pool = _pool(node.role, node.mark, levels)
        word = pool[int(rng.integers(len(pool)))]
        while word in words:  # ends: at most 89 words, and 120 plain ones of level 0
            word = pool[int(rng.integers(len(pool)))]
        words.append(word)
    return words


@cache
def _pool(role: str, mark: int, levels: range) -> tuple[Word, ...]:
    return tuple(
        word
        for word in lexicon()
        if word.role == role and word.mark == mark and word.level in levels
    )


def _draw_sentence(rng: np.random.Generator, n_words: int, n_verbs: int, top: int) -> list[str]:
    """The CoNLL-U rows of one sentence of ``n_words`` words, the last one punctuation."""
    while True:
        nodes = _draw_tree(rng, n_words - 1, n_verbs)
        words = _draw_words(rng, nodes, top)
        if sum(len(word.pieces) for word in words) + 3 <= MAX_POSITIONS:
            break
    order = _draw_order(rng, nodes)
    number = {node: place + 1 for place, node in enumerate(order)}
    number[-1] = 0
    tags = {"verb": "VERB", "obj": "NOUN", "subj": "NOUN", "plain": "X"}
    rows = []
    for place, index in enumerate(order):
        form = words[index].form
        surface = form.capitalize() if place == 0 else form
        node = nodes[index]
        tag = "DET" if node.relation == "det" else tags[node.role]
        rows.append(_row(str(place + 1), surface, form, tag, str(number[node.head]), node.relation))
    root = number[next(index for index, node in enumerate(nodes) if node.head == -1)]
    mark = str(rng.choice(PUNCTUATION))
    rows.append(_row(str(n_words), mark, mark, "PUNCT", str(root), "punct"))
    return rows


def _row(ident: str, form: str, lemma: str, tag: str, head: str, relation: str) -> str:
    return "\t".join([ident, form, lemma, tag, "_", "_", head, relation, "_", "_"])


def _add_side_rows(rng: np.random.Generator, rows: list[str]) -> list[str]:
    """Now and then a multiword-token row or an empty node, neither of which is a word."""
    draw = rng.random()
    place = int(rng.integers(1, len(rows) - 2))  # 0-based: before or after this word
    if draw < 0.05:
        joined = rows[place].split("\t")[1] + rows[place + 1].split("\t")[1]
        extra = "\t".join([f"{place + 1}-{place + 2}", joined, *["_"] * 8])
        return [*rows[:place], extra, *rows[place:]]
    if draw < 0.10:
        deps = f"{place + 1}:dep"
        extra = "\t".join([f"{place + 1}.1", "_", "_", "X", *["_"] * 4, deps, "_"])
        return [*rows[: place + 1], extra, *rows[place + 1 :]]
    return rows


def _text(rows: Sequence[str]) -> str:
    """The sentence's surface text: multiword rows replace the words they cover."""
    forms: list[str] = []
    covered = 0
    for ident, form in (row.split("\t")[:2] for row in rows):
        if "-" in ident:
            covered = int(ident.split("-")[1])
            forms.append(form)
        elif "." not in ident and int(ident) > covered:
            forms.append(form)
    return " ".join(forms)


def _write_treebank(path: Path, rng: np.random.Generator, *, long: bool) -> int:
    """Write the treebank; return how many sentences hold only words of level 0."""
    blocks = []
    n_common = 0
    for index in range(100 if long else 700):
        n_words = int(rng.integers(60, 91) if long else rng.integers(5, 26))
        most_verbs = min(3, (n_words - 1) // 3)
        n_verbs = int(rng.integers(4, N_MARKS) if long else rng.integers(1, most_verbs + 1))
        common = not long and index % COMMON_EVERY == COMMON_EVERY - 1
        n_common += common
        top = 0 if common else int(rng.integers(1, N_LEVELS))
        rows = _add_side_rows(rng, _draw_sentence(rng, n_words, n_verbs, top))
        comments = [f"# sent_id = planted-{index + 1}", f"# text = {_text(rows)}"]
        blocks.append("\n".join([*comments, *rows]) + "\n\n")
    path.write_text("".join(blocks), encoding="utf-8")
    return n_common


# ------------------------------------------------------------------------------ features


class _Layout:
    """Where each block lies in feature space; the dimensions after ``used`` stay empty.

    Position: for the 32 odd frequencies f, ``(cos, sin)(2 pi f p / 128)``.  The dot product of
    positions p and p' is proportional to ``sum_f cos(2 pi f (p - p') / 128)``, which is 1 at
    p = p', -1 at distance 64 and *exactly 0* elsewhere: an ideal "same position" detector in 64
    dimensions.  Rotating each pair by ``2 pi f r / 128`` moves p to p + r.
    """

    position = slice(0, 64)
    identity = slice(64, 96)
    verb = slice(96, 96 + N_MARKS)
    obj = slice(verb.stop, verb.stop + N_MARKS)
    subj = slice(obj.stop, obj.stop + N_MARKS)
    rarity = subj.stop
    cls = rarity + 1
    sep = cls + 1
    filler = sep + 1
    used = filler + 1
    total = D_MODEL - 1


def _angles(offset: float) -> Array:
    frequencies = np.arange(1, 64, 2, dtype=np.float64)
    return np.asarray(2.0 * np.pi * frequencies * offset / MAX_POSITIONS)


def _position_features() -> Array:
    """(128, total): one row per position, squared norm ``POSITION_ENERGY``."""
    features = np.zeros((MAX_POSITIONS, _Layout.total))
    for place in range(MAX_POSITIONS):
        pair = np.stack([np.cos(_angles(place)), np.sin(_angles(place))], axis=1)
        features[place, _Layout.position] = pair.ravel() * np.sqrt(POSITION_ENERGY / 32)
    return features


def _shift(offset: int) -> Array:
    """The (64, 64) rotation that turns the features of position p into those of p + offset."""
    matrix = np.zeros((64, 64))
    for index, angle in enumerate(_angles(offset)):
        cos, sin = np.cos(angle), np.sin(angle)
        matrix[2 * index : 2 * index + 2, 2 * index : 2 * index + 2] = [[cos, -sin], [sin, cos]]
    return matrix


def _word_features(rng: np.random.Generator) -> Array:
    """(vocabulary, total): identity, marks and rarity of every piece, filled to constant norm.

    All pieces of a word carry its mark and rarity, so a split word acts as one.
    """
    vocabulary = _vocabulary()
    features = np.zeros((len(vocabulary), _Layout.total))
    signs = rng.choice([-1.0, 1.0], size=(len(vocabulary), 32))
    features[:, _Layout.identity] = signs * np.sqrt(IDENTITY_ENERGY / 32)
    features[vocabulary["[CLS]"], _Layout.cls] = SPECIAL_SIZE
    features[vocabulary["[SEP]"], _Layout.sep] = SPECIAL_SIZE
    blocks = {"verb": _Layout.verb, "obj": _Layout.obj, "subj": _Layout.subj}
    for word in lexicon():
        for piece in word.pieces:
            row = features[vocabulary[piece]]
            row[_Layout.rarity] = RARITY_SIZE * word.level / (N_LEVELS - 1)
            if word.role in blocks:
                row[blocks[word.role].start + word.mark] = MARK_SIZE
    energy = (features**2).sum(axis=1)
    features[:, _Layout.filler] = np.sqrt(IDENTITY_ENERGY + REST_ENERGY - energy)
    return features


def _zero_mean_basis(rng: np.random.Generator) -> Array:
    """(D_MODEL, total) orthonormal columns, each with mean 0: features to hidden states."""
    random = rng.normal(size=(D_MODEL, D_MODEL))
    random[:, 0] = 1.0
    orthogonal, _ = np.linalg.qr(random)
    return np.asarray(orthogonal[:, 1:])


# --------------------------------------------------------------------------------- heads


@dataclass(frozen=True)
class _Head:
    """Query and key maps of one head in feature space: ``q = W_Q f + b_Q``, ``k = W_K f``."""

    query: Array  # (D_HEAD, total)
    key: Array  # (D_HEAD, total)
    bias: Array  # (D_HEAD,), b_Q; b_K is zero


def _blank() -> _Head:
    shape = (D_HEAD, _Layout.total)
    return _Head(np.zeros(shape), np.zeros(shape), np.zeros(D_HEAD))


def _plant_noise(rng: np.random.Generator, head: _Head, first: int, score: float) -> None:
    """Fill the head dimensions from ``first`` with a random bilinear form of the identities.

    The scores it adds have standard deviation ``score`` over pairs of pieces, so a query whose
    planted dimensions are silent attends to arbitrary words.
    """
    width = D_HEAD - first
    size = np.sqrt(score * np.sqrt(D_HEAD) / np.sqrt(width) / IDENTITY_ENERGY)
    head.query[first:, _Layout.identity] = rng.normal(size=(width, 32)) * size
    head.key[first:, _Layout.identity] = rng.normal(size=(width, 32)) * size


def _plant_positional(rng: np.random.Generator, offset: int) -> _Head:
    """Query: own position moved by ``offset``; key: own position; they agree at the target only.

    Offset 0 gives a head whose argmax is the diagonal.  A little noise decides, instead of
    rounding errors, where a query without a target (or a word without its diagonal) looks.
    """
    head = _blank()
    size = np.sqrt(POSITION_SCORE * np.sqrt(D_HEAD) / POSITION_ENERGY)
    head.query[:, _Layout.position] = _shift(offset) * size
    head.key[:, _Layout.position] = np.eye(64) * size
    _plant_noise(rng, head, 0, TIE_BREAK_SCORE)
    return head


def _plant_marks(rng: np.random.Generator, query: slice, key: slice) -> _Head:
    """Dimension k of the query reads the asker's mark, of the key the answerer's mark.

    A query of class k therefore finds the key of class k, wherever it stands.  Queries without
    the mark see only the noise.
    """
    head = _blank()
    size = np.sqrt(MARK_SCORE * np.sqrt(D_HEAD)) / MARK_SIZE
    head.query[:N_MARKS, query] = np.eye(N_MARKS) * size
    head.key[:N_MARKS, key] = np.eye(N_MARKS) * size
    _plant_noise(rng, head, N_MARKS, NOISE_SCORE)
    return head


def _plant_feature(
    rng: np.random.Generator, feature: int, size: float, score: float, noise: float
) -> _Head:
    """Every query is the same (b_Q), every key reads one feature: ``score`` at value ``size``."""
    head = _blank()
    root = np.sqrt(score * np.sqrt(D_HEAD))
    head.bias[0] = root
    head.key[0, feature] = root / size
    _plant_noise(rng, head, 1, noise)
    return head


def _plant_random(rng: np.random.Generator, std: float) -> _Head:
    """Independent normal weights, reading all features; score deviation is 256 * std ** 2."""
    shape = (D_HEAD, _Layout.total)
    return _Head(rng.normal(size=shape) * std, rng.normal(size=shape) * std, np.zeros(D_HEAD))


def _planted_heads(rng: np.random.Generator) -> dict[tuple[int, int], tuple[PlantedRole, _Head]]:
    """The twelve heads.  Near-uniform rows are broad, however long the sentences."""
    flat = "broad"
    rarest = RARITY_STEP_SCORE * (N_LEVELS - 1)

    def positional(offset: int) -> tuple[PlantedRole, _Head]:
        return PlantedRole("positional", offset=offset), _plant_positional(rng, offset)

    def syntactic(
        relation: str, direction: str, query: slice, key: slice
    ) -> tuple[PlantedRole, _Head]:
        role = PlantedRole("syntactic", relation=relation, direction=direction)
        return role, _plant_marks(rng, query, key)

    return {
        (0, 0): positional(-1),
        (0, 1): syntactic("obj", "dep->head", _Layout.obj, _Layout.verb),
        (0, 2): (PlantedRole(flat, detail="uniform"), _blank()),
        (0, 3): positional(2),
        (1, 0): (
            PlantedRole("special", token="[SEP]"),
            _plant_feature(rng, _Layout.sep, SPECIAL_SIZE, SPECIAL_SCORE, noise=0.5),
        ),
        (1, 1): positional(1),
        (1, 2): (
            PlantedRole("rare"),
            _plant_feature(rng, _Layout.rarity, RARITY_SIZE, rarest, noise=0.3),
        ),
        (1, 3): (PlantedRole("none", detail="random"), _plant_random(rng, 0.09)),
        (2, 0): (PlantedRole(flat, detail="random-small"), _plant_random(rng, 0.02)),
        (2, 1): positional(-2),
        (2, 2): syntactic("nsubj", "head->dep", _Layout.verb, _Layout.subj),
        (2, 3): (PlantedRole("self", offset=0), _plant_positional(rng, 0)),
    }


# ---------------------------------------------------------------------------- checkpoint


def _config(**sizes: int) -> BertConfig:
    return BertConfig(
        vocab_size=len(_vocabulary()),
        max_position_embeddings=MAX_POSITIONS,
        type_vocab_size=2,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-12,
        pad_token_id=SPECIALS.index("[PAD]"),
        **sizes,
    )


def _fresh_bert(config: BertConfig, seed: int) -> BertModel:
    """A BertModel with transformers' own initialisation, without touching torch's global state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertModel(config).eval()


def _fill(target: torch.Tensor, values: Array) -> None:
    target.copy_(torch.from_numpy(np.ascontiguousarray(values)).to(target.dtype))


@torch.no_grad()
def _write_weights(
    model: BertModel,
    rng: np.random.Generator,
    heads: dict[tuple[int, int], tuple[PlantedRole, _Head]],
) -> None:
    """Embeddings, heads and the zero output matrices; W_V keeps transformers' random values."""
    basis = _zero_mean_basis(rng)
    embeddings = model.embeddings
    _fill(embeddings.word_embeddings.weight, _word_features(rng) @ basis.T)
    _fill(embeddings.position_embeddings.weight, _position_features() @ basis.T)
    embeddings.token_type_embeddings.weight.zero_()
    for number, layer in enumerate(model.encoder.layer):
        attention = layer.attention.self
        row = [heads[number, index][1] for index in range(N_HEADS)]
        _fill(attention.query.weight, np.concatenate([head.query @ basis.T for head in row]))
        _fill(attention.query.bias, np.concatenate([head.bias for head in row]))
        _fill(attention.key.weight, np.concatenate([head.key @ basis.T for head in row]))
        attention.key.bias.zero_()
        for dense in (layer.attention.output.dense, layer.output.dense):
            dense.weight.zero_()
            dense.bias.zero_()


def build_planted(folder: Path, *, seed: int = 0, long: bool = False) -> Planted:
    """Write a planted checkpoint, its treebank and its frequency file into ``folder``.

    ``seed`` changes the sentences, the identities and the noise; lexicon, tokenizer and
    frequency file are always the same.  ``long`` gives sentences of 60 to 90 words (instead of
    5 to 25).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights_rng, treebank_rng = (np.random.default_rng([seed, part]) for part in (0, 1))
    heads = _planted_heads(weights_rng)
    config = _config(
        hidden_size=D_MODEL,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        intermediate_size=32,
    )
    model = _fresh_bert(config, seed)
    _write_weights(model, weights_rng, heads)
    model.save_pretrained(folder)
    _save_tokenizer(folder)
    treebank, frequencies = folder / "treebank.conllu", folder / "frequencies.tsv"
    common = _write_treebank(treebank, treebank_rng, long=long)
    _write_frequencies(frequencies)
    roles = {place: role for place, (role, _) in heads.items()}
    return Planted(folder, treebank, frequencies, roles, common)


def random_bert(
    folder: Path, *, seed: int, n_layers: int = 4, n_heads: int = 8, d_model: int = 128
) -> Path:
    """A BERT with transformers' random initialisation and the planted tokenizer: the control."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(
        hidden_size=d_model,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        intermediate_size=4 * d_model,
    )
    _fresh_bert(config, seed).save_pretrained(folder)
    _save_tokenizer(folder)
    return folder
