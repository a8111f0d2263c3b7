"""Tasks of one pass: fidelity, masked words, classes, similarity, and tags of words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError, InputError
from headscope.core.rounding import above
from headscope.data.entities import in_labels_of
from headscope.data.examples import Examples
from headscope.data.files import Sentence
from headscope.data.labels import class_ids, tag_ids, with_labels
from headscope.data.pieces import tokenise
from headscope.data.token_rows import Padded, Row, encode_rows, mask_row, window_rows
from headscope.data.word_pieces import EncodedSentence, encode_words, placed
from headscope.models.run.head_outputs import HeadOutputs, head_outputs, spread_of
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine, wide
from headscope.models.run.task_heads import Select
from headscope.stats.metrics import (
    CountedF1,
    Metric,
    Outputs,
    accuracy,
    macro_f1,
    matthews,
    mean_of,
    ratio_of,
    spearman,
    token_rate,
)
from headscope.tasks.base import (
    LossBatch,
    Taken,
    Task,
    TokenTask,
    need_logits,
    numbered,
    order_doubt,
)

#: Tokens of a window of the ``mlm`` task, special tokens included, and windows unless limited.
WINDOW = 64
WINDOWS = 256
#: Heads that mean more than the embeddings below them, which tasks of embeddings do not read.
_UNREAD = ("classification", "token-classification", "question-answering")
#: What WikiText and Penn Treebank write in place of a rare word: no text, so nothing to predict.
_TAKEN_OUT = "<unk>"
#: Entities of each sentence that are predicted and right, predicted, and right.
_ENTITIES = ("entities_hit", "entities_predicted", "entities_right")


def tokenised(
    loaded: LoadedModel, first: Sequence[str], second: Sequence[str] | None = None
) -> tuple[list[Row], list[int]]:
    """Return rows numbered from 0, and the positions of the texts that fit the model."""
    rows, fitting = numbered(encode_rows(loaded, first, second))
    if len(rows) < 2:
        raise CorpusError(
            f"{len(rows)} of {len(first)} texts fit the model's limit of {loaded.max_length} "
            "tokens; give two or more different ones that do (nothing is ever cut)."
        )
    return rows, fitting


def masked(rows: Sequence[Row], loaded: LoadedModel, seed: int) -> list[Row]:
    """Mask 15% of the tokens of each row."""
    mask_id = getattr(loaded.tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise InputError(f"The tokenizer of {loaded.name} has no mask token; mlm needs one.")
    return [mask_row(row, int(mask_id), seed) for row in rows]


def notes_of(loaded: LoadedModel, rows: Sequence[Row]) -> tuple[str, ...]:
    """Say where texts are read otherwise than a user of the model may expect."""
    prompt = loaded.pooling.prompt
    limit = loaded.pooling.max_length
    notes = []
    if loaded.task_head in _UNREAD:
        notes.append(
            f"The {loaded.task_head} head of {loaded.name} is not read: what is compared are "
            f"embeddings of single texts ({loaded.pooling}), which the model may never have been "
            "trained to make."
        )
    if prompt:
        notes.append(
            f"Every text is read after the default prompt of the model's folder, {prompt!r}."
        )
    longer = 0 if limit is None else sum(len(row) > limit for row in rows)
    if longer:
        notes.append(
            f"{longer:,} of {len(rows):,} texts are longer than the {limit} tokens at which "
            "SentenceTransformer cuts the texts of this model; here they are read whole."
        )
    return (*notes, *loaded.pooling.notes)


class Fidelity(Task):
    """Mean cosine of embeddings and, for a model with a head, mean distance of its outputs.

    That is the KL of probabilities; labels that are independent have one each, summed; numbers have
    their squared change. A masked language model reads text with 15% of the tokens masked, and its
    KL is taken there; that of a head for tags is a mean over tokens, that of a head for answers the
    mean of the KL of where they begin and where they end.
    """

    name = "fidelity"
    words = "cosine of embeddings (or KL of outputs) to the whole model's own; any text"
    has_labels = False
    alone = True  # the whole model's outputs are made at first use
    identifying = "cosine"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        # With a head it is the head's outputs that count, and its texts have no prompt.
        prompt = "" if loaded.task_head else loaded.pooling.prompt
        rows, _ = tokenised(loaded, [prompt + text for text in examples.texts])
        rows = masked(rows, loaded, self._seed) if loaded.task_head == "mlm" else rows
        if loaded.task_head == "token-classification":  # every token has a tag that can be compared
            rows = [
                replace(row, masked=row.content, gold=tuple(row.ids[i] for i in row.content))
                for row in rows
            ]
        self.notes = () if loaded.task_head else notes_of(loaded, rows)
        # Text runs the encoder of an encoder-decoder model, and not its head.
        names = ["cosine"]
        if loaded.task_head is not None and not loaded.encoder_decoder:
            names.append(head_outputs(loaded).distance_name)
        self.table = {name: mean_of(name) for name in names}
        return rows, len(rows), len(examples.texts)

    def _select(self, batch: Padded) -> Select | None:
        return self.distance.select(batch)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        distances = self.distance.measure(batch, hidden, logits)
        return {**distances, "cosine": distances["cosine"].clamp(max=1.0)}  # rounding exceeds it

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where the reference embeddings are the same for every text."""
        return "gives every text the same embedding" if self.distance.constant() else None

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        distances = self.distance.measure(batch, hidden, logits, spread=self.distance.spread)
        return 1 - distances["cosine"] + distances.get(self.distance.of_outputs, 0.0)

    def loss_batches(
        self, loaded: LoadedModel, *, labels: bool = True, of_value: bool = False
    ) -> Iterator[LossBatch]:
        """Yield batches as every task does; the whole model's outputs are made before the first."""
        self.distance.embeddings()
        yield from super().loss_batches(loaded, labels=labels, of_value=of_value)

    def _embed_value(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        return super()._embed(batch, hidden, logits)

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the unit embedding, and behind it the outputs of a sequence-classification head.

        Half of its squared distance to the unpruned model's is the label-free loss, to second
        order.
        """
        embedding = super()._embed(batch, hidden, logits)
        if logits is None or self.distance.head != "classification":
            return embedding
        outputs = self.distance.outputs_are.coordinates(wide(logits), self.distance.spread)
        return torch.cat([embedding, outputs.to(embedding)], dim=-1)


class MaskedLM(TokenTask):
    """Mean negative log-probability (nats) of masked tokens, and how many are guessed right."""

    name = "mlm"
    words = "loss at masked tokens; any text, and a model with that head"
    head = "mlm"
    higher_is_better = False
    same_guess = "guesses the same token at every mask"
    identifying = "nll"
    table = {  # noqa: RUF012  (never changed)
        "loss": ratio_of("nll", "tokens"),
        "masked_accuracy": token_rate("correct", "tokens"),
    }

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        length = min(WINDOW, loaded.max_length)
        count = self._limit or WINDOWS
        lines = (line.replace(_TAKEN_OUT, " ") for line in examples.first)
        rows = window_rows(loaded, lines, length=length, count=count)
        if len(rows) < 2:
            raise CorpusError(
                f"{examples.name} has not enough text for two windows of {length} tokens; give "
                "more."
            )
        return masked(rows, loaded, self._seed), len(rows), len(rows)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        scores = wide(need_logits(logits)[0])
        nll = F.cross_entropy(scores, batch.gold, reduction="none")
        total = nll.new_zeros(len(batch.index)).index_add(0, batch.masked[0], nll)
        return {"nll": total, **super()._read(batch, hidden, logits)}


class Classification(Task):
    """Accuracy, macro F1 and Matthews correlation of the largest logit, all times 100."""

    name = "classification"
    words = "accuracy; labelled sentences or pairs, and a model with that head"
    head = "classification"
    table = {"accuracy": accuracy, "f1": macro_f1, "matthews": matthews}  # noqa: RUF012

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        config = loaded.network.config
        outputs = head_outputs(loaded)
        if outputs is not HeadOutputs.CHOICE:
            raise InputError(
                f"The head of {loaded.name} does not choose one of several classes (its outputs: "
                f"{config.num_labels}, {outputs.value}); the task classification needs one that "
                "does."
            )
        names = {int(number): str(name) for number, name in config.id2label.items()}
        self.data = examples = with_labels(examples, names)
        labels = class_ids(examples, names)
        rows, fitting = tokenised(loaded, examples.first, examples.second)
        self._labels = np.array([labels[i] for i in fitting])
        return rows, len(rows), len(examples)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        return {"predicted": need_logits(logits).argmax(dim=-1)}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        return {**by_row, "label": self._labels}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one class is predicted whatever is read."""
        same = np.ptp(outputs["predicted"]) == 0
        return "predicts one class for every example" if same else None

    def doubts(self, outputs: Outputs) -> tuple[str, ...]:
        """Say so where fewer classes are right than by chance."""
        predicted = outputs["predicted"]
        gold = outputs["label"]
        size = 1 + int(max(predicted.max(), gold.max()))
        guessed, true = (np.bincount(numbers, minlength=size) for numbers in (predicted, gold))
        right = (predicted == gold).sum()
        return order_doubt(self.data.name, right, guessed, true, "classes")

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        scores = wide(need_logits(logits))
        gold = torch.as_tensor(self._labels[batch.index], device=scores.device)
        return F.cross_entropy(scores, gold, reduction="none")

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        return wide(need_logits(logits)).log_softmax(dim=-1)


class Similarity(Task):
    """Spearman correlation (x100) of gold scores with the cosine of embeddings.

    Reimers & Gurevych 2019, arXiv:1908.10084.
    """

    name = "similarity"
    words = "Spearman correlation of cosines with people's scores; scored pairs"
    table = {"spearman": spearman}  # noqa: RUF012
    identifying = "similarity"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        texts = examples.texts
        rows, fitting = tokenised(loaded, [loaded.pooling.prompt + text for text in texts])
        row_of = {texts[i]: row.index for i, row in zip(fitting, rows, strict=True)}
        pairs = []
        gold = []
        both = zip(examples.first, examples.second or (), examples.scores or (), strict=True)
        for first, second, score in both:
            if first in row_of and second in row_of:
                pairs.append((row_of[first], row_of[second]))
                gold.append(score)
        if len(set(gold)) < 2:
            raise _one_score(examples, len(pairs))
        self.notes = notes_of(loaded, rows)
        self._pairs = np.array(pairs)
        self._gold = np.array(gold)
        return rows, len(pairs), len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """Both sentences of each pair."""
        return [(self.rows[first], self.rows[second]) for first, second in self._pairs.tolist()]

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        embedding = self.pooling.embed(hidden, batch.attention_mask)
        return {"embedding": F.normalize(embedding.float(), dim=-1)}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        first, second = (by_row["embedding"][side].astype(float) for side in self._pairs.T)
        zero = ~(first.any(axis=1) | second.any(axis=1))  # two equal states, if empty ones
        return {"similarity": (first * second).sum(axis=1) + zero, "gold": self._gold}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where no pair is more similar than another."""
        if above(outputs["similarity"].max(), outputs["similarity"].min()):
            return None
        return "gives every pair the same similarity, so its correlation is set to 0"

    def _sets(self) -> Sequence[Sequence[Row]]:
        return self.rows_of_examples

    def _loss_of_sets(
        self, sets: list[int], batch: Padded, hidden: Tensor, logits: Tensor | None
    ) -> Tensor:
        """Return (cosine - gold)^2 of each pair; a perfect pair's gold cosine is 1."""
        first, second = self.pooling.embed(hidden, batch.attention_mask).chunk(2)
        gold = torch.as_tensor(self._gold[sets] / float(np.abs(self._gold).max())).to(first)
        return (cosine(first, second, precise=False) - gold) ** 2


class PairScores(Task):
    """Spearman correlation (x100) of gold scores with a cross-encoder's score of each pair.

    The head, whose one output is the score, reads both texts together. The labelled loss of a pair
    is the squared difference of its score and the gold one, put on the whole model's scale: with
    the mean and the standard deviation of its scores, and in units of that deviation.
    """

    name = "similarity"
    head = "classification"
    table = {"spearman": spearman}  # noqa: RUF012

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        rows, fitting = tokenised(loaded, examples.first, examples.second)
        scores = examples.scores or ()
        self._gold = np.array([scores[i] for i in fitting])
        if np.ptp(self._gold) == 0:
            raise _one_score(examples, len(rows))
        self.notes = (
            f"{loaded.name} is a cross-encoder, so the one output of its head, the score of two "
            "texts read together, is correlated with the gold scores.",
        )
        return rows, len(rows), len(examples)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        return {"similarity": need_logits(logits)[:, 0].float()}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        return {"similarity": by_row["similarity"].astype(float), "gold": self._gold}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where no pair has a higher score than another."""
        if above(outputs["similarity"].max(), outputs["similarity"].min()):
            return None
        return "gives every pair the same score, so its correlation is set to 0"

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        scores = wide(need_logits(logits))
        full = wide(self.distance.logits())
        gold = torch.as_tensor(self._gold).to(full)[:, None]
        gold = (gold - gold.mean()) / spread_of(gold)
        score = (scores - full.mean().to(scores)) / spread_of(full).to(scores)
        return (score - gold[batch.index].to(scores)).square()[:, 0]

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the score, (rows, 1)."""
        return wide(need_logits(logits))


def _one_score(examples: Examples, fitting: int) -> CorpusError:
    return CorpusError(
        f"{examples.name}: {len(examples) - fitting} of {len(examples)} pairs are longer than the "
        "model's limit, and the rest have no two different scores."
    )


class TokenClassification(TokenTask):
    """F1 of entities, or accuracy over words, times 100; a word's tag stands at its first piece.

    * ``entity_f1``: where the tags mark entities (``data/entities.py``), micro F1 of whole ones;
      then it is the task's value.
    * ``word_accuracy``: share of words with the right tag.

    An example is a sentence.
    """

    name = head = "token-classification"
    words = "F1 of entities, or accuracy over words; tagged words, and a model with that head"
    same_guess = "gives the same tag to every word"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        names = {int(number): str(name) for number, name in loaded.network.config.id2label.items()}
        examples, self._scheme = in_labels_of(examples, names, loaded.name)
        gold = tag_ids(examples, names, loaded.name)
        words = examples.words or ()
        sentences = list(map(Sentence, words))
        encoded = list(encode_words(loaded, placed(sentences)))
        left_out = sum(item.left_out for item in encoded if item is not None)
        # What is not encoded is too long, unless the tokenizer makes nothing of it.
        too_long = [i for i, item in enumerate(encoded) if item is None]
        unread = tokenise(loaded, [sentences[i].text for i in too_long], check=False)
        empty = sum(all(encoding.special_tokens_mask) for encoding in unread)
        rows, _ = numbered(_row(i, item, gold[i]) for i, item in enumerate(encoded))
        self.notes = (*examples.notes, *_notes_on_words(left_out, empty))
        self._names = names
        self.table: dict[str, Metric] = {"word_accuracy": token_rate("correct", "tokens")}
        if self._scheme is not None:
            self.table = {"entity_f1": CountedF1(*_ENTITIES), **self.table}
        return rows, len(rows), len(words) - empty

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        outputs = super()._read(batch, hidden, logits)
        outputs |= self._tag_counts(batch, need_logits(logits)[0])
        if self._scheme is None:
            return outputs
        sizes = torch.bincount(batch.masked[0], minlength=len(batch.index)).tolist()
        guess = torch.split(need_logits(logits)[0].argmax(dim=-1).cpu(), sizes)
        right = torch.split(batch.gold.cpu(), sizes)
        counts = []
        for ids, gold_ids in zip(guess, right, strict=True):
            found = self._scheme.entities([self._names[tag] for tag in ids.tolist()])
            gold = self._scheme.entities([self._names[tag] for tag in gold_ids.tolist()])
            counts.append((len(found & gold), len(found), len(gold)))
        return {**outputs, **dict(zip(_ENTITIES, torch.tensor(counts).double().T, strict=True))}

    def _tag_counts(self, batch: Padded, logits: Tensor) -> dict[str, Tensor]:
        """Count how often each tag is guessed, and right, in each row: (rows, tags)."""
        rows = batch.masked[0]
        none = logits.new_zeros(len(batch.index), logits.shape[-1], dtype=torch.float32)
        ones = torch.ones_like(batch.gold, dtype=none.dtype)
        tags = {"guessed_tags": logits.argmax(dim=-1), "right_tags": batch.gold}
        return {
            name: none.index_put((rows, numbers), ones, accumulate=True)
            for name, numbers in tags.items()
        }

    def doubts(self, outputs: Outputs) -> tuple[str, ...]:
        """Say so where fewer tags are right than by chance."""
        guessed, true = (outputs[name].sum(axis=0) for name in ("guessed_tags", "right_tags"))
        return order_doubt(self.data.name, outputs["correct"].sum(), guessed, true, "tags")


def _row(index: int, item: EncodedSentence | None, gold: Sequence[int]) -> Row | None:
    """Ask for the tag of each word that has a piece, at its first one."""
    if item is None:
        return None
    words = range(len(gold)) if item.with_piece is None else item.with_piece.tolist()
    return Row(
        index=index,
        ids=tuple(item.ids.tolist()),
        types=None,
        content=tuple((item.word_of >= 0).nonzero()[0].tolist()),
        masked=tuple(item.first.tolist()),
        gold=tuple(gold[word] for word in words),
    )


def _notes_on_words(left_out: int, empty: int) -> Iterator[str]:
    """Say which words, and which sentences, the tokenizer makes nothing of."""
    if left_out:
        yield (
            f"The tokenizer makes no piece of {left_out:,} words; they and their tags are left "
            "out, and their sentences are kept."
        )
    if empty:
        yield f"The tokenizer makes no piece of any word of {empty:,} sentences; they are left out."
