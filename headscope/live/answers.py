"""The outputs of a model for a sentence or two with some of its heads switched off.

A question is answered by several *models*: the full one, the one with the heads off, and one for
each of 19 random sets of as many heads in the same layers. One batch holds every text once for each
of them, in this order; they differ by gates alone, which each row of the batch has of its own. So
one pass of our own attention answers everything, exactly as if each model ran alone. If the heads
were like the random ones, their value would lie outside the range of the sets in 2 of 20 cases.

An encoder-decoder model writes first. Then every model reads what the full model wrote, which gives
its probability of that text; the patterns that are shown are those of the model with heads off on
its own text.

:meth:`Answers.__call__` is the whole way from texts and heads to the JSON that the page reads.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.attention import Mask, attention_pattern
from headscope.core.errors import InputError
from headscope.core.heads import head_name
from headscope.core.safe_text import visible
from headscope.data.readable_pieces import readable_pieces
from headscope.data.token_rows import Ends, Padded, PairRow, Row, encode_rows, padded
from headscope.live.random_sets import HeadIndex, random_sets
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.intervene import Run, gate, intervene
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.models.run.pooling import cosine, wide
from headscope.tasks.seq2seq import decode_greedily

LONGEST = 64  # Tokens of the longest text whose patterns are readable
_GUESSES = 3  # Classes or labels, or words for a masked token, that are listed
#: Task heads that read two texts at once.
_PAIR_HEADS = ("classification", "token-classification", "question-answering")
_WRITTEN = 60  # Tokens that a decoder writes at most
NO_SETS = (
    "No random sets to compare with: there are too few other sets of as many heads in these "
    "layers, or most of their heads are off."
)
#: One output, as the page shows it: its ``name``, and its value of the ``full`` model, with heads
#: ``off``, and of the ``random`` sets (smallest and largest; empty if no head is off).
Answer = dict[str, str]


class _Outputs(NamedTuple):
    """What a batch of models gives for the texts."""

    answers: list[Answer]
    rows: list[Row]  # The texts as the model with heads off reads them
    patterns: list[dict[str, Tensor]]  # Of that model, for each text, by the name of the head


class Answers:
    """Answers questions about one model; nothing is stored."""

    def __init__(self, loaded: LoadedModel, *, seed: int = 0) -> None:
        writes = loaded.task_head == "seq2seq"
        # A decoder reads what it writes: without a head that writes, only the encoder can run.
        self.model = loaded.only("encoder") if loaded.encoder_decoder and not writes else loaded
        self._ends = ends_of(loaded) if writes else None
        self._seed = seed
        self._head_indices: dict[str, HeadIndex] = {}
        for site in self.model.sites:
            for index, number in enumerate(site.head_ids):
                name = head_name(site.layer, number, site.stack)
                self._head_indices[name] = (site.row, index)

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that can be switched off, as ``L3H5`` or ``cross:L0H2``."""
        return tuple(self._head_indices)

    def __call__(self, texts: Sequence[str], off: Sequence[str]) -> dict[str, Any]:
        """Answer for one text or two; ``off`` names heads, as ``L3H5``.

        Raises InputError for an empty or too long text, and for an unknown head.
        """
        rows = self._rows(texts)
        gates = self._gates(off)
        if self._ends is None:
            outputs = self._read_texts(rows, gates)
        else:
            outputs = self._write_texts(rows, gates, self._ends)

        read_together = len(rows) < len(texts)
        shown_texts = [" / ".join(texts)] if read_together else texts
        laid_out = map(self._lay_out, shown_texts, outputs.rows, outputs.patterns)
        n_sets = max(len(gates) - 2, 0)
        return {
            "answers": outputs.answers,
            "texts": list(laid_out),
            "off": len(set(off)),
            "sets": n_sets,
            "note": "" if n_sets or not off else NO_SETS,
            "heads": len(self._head_indices),
        }

    def _read_texts(self, rows: list[Row], gates: Tensor) -> _Outputs:
        """Let every model read the texts; patterns are shown of the one with heads off."""
        n_models = len(gates)
        first_shown = len(rows) if n_models > 1 else 0  # rows of the second model, or the only one
        batch = padded(rows * n_models, self.model.pad_id, self.model.device)
        gates_of_rows = gates.repeat_interleave(len(rows), dim=0)
        hidden, logits, patterns = self._run(batch, gates_of_rows, first_shown, rows)
        answers = self._answers(batch, rows, hidden, logits, n_models)
        return _Outputs(answers, rows, patterns)

    def _write_texts(self, rows: list[Row], gates: Tensor, ends: Ends) -> _Outputs:
        """Let three models write at most, and then all of them read what the full model wrote.

        Those that write are the full one, the one with heads off, and one with a random set off.
        The last rows of the batch are the one with heads off once more, which reads what it wrote
        itself: its patterns are shown.
        """
        n = len(rows)
        written = self._write(rows, gates[:3], ends)
        off_model = 1 if len(gates) > 1 else 0

        # Every text with what the full model wrote, for each model; then with heads off.
        pairs = [self._pair(row, written[i % n], ends) for i, row in enumerate(rows * len(gates))]
        written_with_off = written[off_model * n : (off_model + 1) * n]
        shown: list[Row] = []
        for row, ids in zip(rows, written_with_off, strict=True):
            shown.append(self._pair(row, ids, ends))

        all_gates = torch.cat([gates, gates[off_model : off_model + 1]])
        batch = padded([*pairs, *shown], self.model.pad_id, self.model.device)
        gates_of_rows = all_gates.repeat_interleave(n, dim=0)
        _, logits, patterns = self._run(batch, gates_of_rows, len(pairs), shown)
        assert logits is not None
        answers = list(self._written_answers(pairs, written, wide(logits), n))
        return _Outputs(answers, shown, patterns)

    def _run(
        self, batch: Padded, gates: Tensor, first_shown: int, shown: Sequence[Row]
    ) -> tuple[Tensor, Tensor | None, list[dict[str, Tensor]]]:
        """Run a batch whose rows have gates (rows, n_layers, n_heads) of their own.

        Returns the last states, the logits, and the patterns by head of the rows ``shown``, without
        padding: those rows stand in the batch from ``first_shown`` on.
        """
        patterns: list[dict[str, Tensor]] = [{} for _ in shown]

        def attend(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            pattern = attention_pattern(q, k, scale=scale, mask=mask)
            key_stack = "decoder" if site.stack == "decoder" else "encoder"
            for i, row in enumerate(shown):
                n_queries = _n_tokens(row, site.stack)
                n_keys = _n_tokens(row, key_stack)
                row_pattern = pattern[first_shown + i, :, :n_queries, :n_keys]
                for index, number in enumerate(site.head_ids):
                    name = head_name(site.layer, number, site.stack)
                    patterns[i][name] = row_pattern[index]
            return pattern @ v

        def switch_off(site: AttentionSite, z: Tensor) -> Tensor:
            return gate(z, site, gates)

        with intervene(self.model, attention=attend, z=switch_off) as router:
            run: Run = self.model.run
            hidden, logits = router.checked(run, *batch.inputs, **batch.decoder_inputs)
        return hidden, logits, patterns

    # --- what goes in -----------------------------------------------------------------------------

    def _rows(self, texts: Sequence[str]) -> list[Row]:
        """Tokenise one text or two; two that a task head reads at once become one row."""
        for text in texts:
            if not text.strip():
                raise InputError("Type at least one word.")
            if any(0xD800 <= ord(char) < 0xE000 for char in text):
                raise InputError("The text holds half of a character (a lone surrogate).")
        reads_pairs = self.model.task_head in _PAIR_HEADS and not self.model.encoder_decoder
        together = len(texts) == 2 and reads_pairs
        first = texts[:1] if together else texts
        second = texts[1:] if together else None
        rows = []
        for row in encode_rows(self.model, first, second):
            if row is None or len(row) > LONGEST:
                most = min(LONGEST, self.model.max_length)
                raise InputError(f"That is more than the {most} tokens that can be shown.")
            if not row.content:
                raise InputError("The tokenizer makes no token of this text.")
            rows.append(row)
        return rows

    def _gates(self, off: Sequence[str]) -> Tensor:
        """Return the gates of all models, (models, n_layers, n_heads): 0 where a head is off.

        That is the full model alone if nothing is off; there are no random sets if too few are
        unlike ``off``.
        """
        unknown = [name for name in off if name not in self._head_indices]
        if unknown:
            raise InputError(f"{self.model.name} has no head {visible(unknown[0])[:20]}.")
        all_on = torch.ones(len(self.model.sites), self.model.n_heads)
        if not off:
            return all_on[None]
        removed = sorted({self._head_indices[name] for name in off})
        sets = [removed, *random_sets(removed, list(self._head_indices.values()), self._seed)]
        gates = all_on.repeat(1 + len(sets), 1, 1)
        for model_gates, heads in zip(gates[1:], sets, strict=True):
            for row, index in heads:
                model_gates[row, index] = 0.0
        return gates

    # --- what comes out ---------------------------------------------------------------------------

    def _lay_out(self, text: str, row: Row, patterns: dict[str, Tensor]) -> dict[str, Any]:
        """Write one text as the model reads it, and every head's pattern on it, for the page.

        ``special`` says which of the ``tokens`` are special; ``target`` has both of what a decoder
        reads. A pattern is base64 of a byte a weight, in per cent, row by row.
        """

        def tokens(ids: Sequence[int]) -> list[str]:
            return list(map(visible, readable_pieces(self.model.tokenizer, ids)))

        target: dict[str, list[Any]] = {}
        if isinstance(row, PairRow):
            target_tokens = tokens(row.decoder_ids)
            is_start = [i == 0 for i in range(len(target_tokens))]
            target = {"tokens": target_tokens, "special": is_start}
        encoded: dict[str, str] = {}
        for name, pattern in patterns.items():
            percent = (100 * pattern.double()).round().to(torch.uint8).cpu().numpy()
            encoded[name] = base64.b64encode(percent.tobytes()).decode()
        return {
            "text": visible(text),
            "tokens": tokens(row.ids),
            "special": [i not in row.content for i in range(len(row.ids))],
            "target": target,
            "patterns": encoded,
        }

    def _answers(
        self,
        batch: Padded,
        rows: Sequence[Row],
        hidden: Tensor,
        logits: Tensor | None,
        n_models: int,
    ) -> list[Answer]:
        """Return what the models say of the texts: classes, words for a mask, or embeddings."""
        head = self.model.task_head
        tokenizer = self.model.tokenizer
        if logits is not None and head == "classification":
            return self._classes(wide(logits))
        mask = getattr(tokenizer, "mask_token_id", None)
        if logits is not None and head == "mlm" and mask in rows[0].ids:
            position = rows[0].ids.index(mask)
            shares = wide(logits[:: len(rows), position]).softmax(dim=-1)
            return _ranked(shares, lambda token: readable_pieces(tokenizer, [token])[0])

        embedded = self.model.pooling.embed(hidden, batch.attention_mask)
        by_model = embedded.reshape(n_models, len(rows), -1)
        cosines = cosine(by_model, by_model[:1])  # (models, texts)
        name = "embedding: cosine to the whole model's"
        if len(rows) == 1:
            return [_numbers(name, cosines[:, 0].tolist())]
        similarity = cosine(by_model[:, 0], by_model[:, 1])
        return [
            _numbers("similarity of the two sentences", similarity.tolist()),
            _numbers(f"first {name}", cosines[:, 0].tolist()),
            _numbers(f"second {name}", cosines[:, 1].tolist()),
        ]

    def _classes(self, logits: Tensor) -> list[Answer]:
        """Return the likeliest classes or labels, or a regression's numbers.

        ``logits`` are (models, outputs).
        """
        outputs = head_outputs(self.model)
        names = getattr(self.model.network.config, "id2label", None) or {}
        if outputs is not HeadOutputs.NUMBERS:
            return _ranked(outputs.shares(logits), lambda i: names.get(i, i))
        if logits.shape[-1] == 1:  # of a cross-encoder, or a regression
            return [_numbers("score", logits[:, 0].tolist())]
        columns = enumerate(logits.T.tolist())
        return [_numbers(visible(names.get(i, i)), column) for i, column in columns]

    # --- what an encoder-decoder model writes -----------------------------------------------------

    def _write(self, rows: Sequence[Row], gates: Tensor, ends: Ends) -> list[tuple[int, ...]]:
        """Let each model write for each text; returns token ids, model by model."""
        inputs = padded(list(rows) * len(gates), self.model.pad_id, self.model.device)
        gates_of_rows = gates.repeat_interleave(len(rows), dim=0)
        with intervene(self.model, z=lambda site, z: gate(z, site, gates_of_rows)):
            ids = decode_greedily(
                self.model.network,
                inputs.input_ids,
                inputs.attention_mask,
                target_ends=ends,
                pad_id=self.model.pad_id,
                max_new_tokens=self._most_written,
            )
        return [tuple(row) for row in ids]

    @property
    def _most_written(self) -> int:
        """The tokens that a decoder writes at most."""
        return min(_WRITTEN, self.model.max_length)

    def _pair(self, row: Row, written: tuple[int, ...], ends: Ends) -> PairRow:
        """Join a text with what was written for it, as a decoder reads it and should continue."""
        cut_short = len(written) == self._most_written
        labels = written if cut_short else (*written, ends.stop)
        decoder_ids = (ends.start, *labels[:-1])
        content = tuple(range(1, len(decoder_ids)))
        return PairRow(**vars(row), decoder_ids=decoder_ids, labels=labels, decoder_content=content)

    def _written_answers(
        self, pairs: Sequence[PairRow], written: Sequence[tuple[int, ...]], logits: Tensor, n: int
    ) -> Iterator[Answer]:
        """Yield what was written for each of ``n`` texts, and how likely the full model's is.

        ``written`` has each text by up to three models, ``pairs`` and ``logits`` (pairs, pos,
        vocabulary) have each text by every model, which reads what the full one wrote.
        """
        decode = self.model.tokenizer.decode
        texts = [visible(decode(ids, skip_special_tokens=True)) for ids in written]
        log_shares = F.log_softmax(logits, dim=-1)
        likely: list[float] = []  # The geometric mean of the probabilities of a text's tokens
        for i, pair in enumerate(pairs):
            log_shares_of_labels = log_shares[i, range(len(pair.labels)), pair.labels]
            likely.append(float(log_shares_of_labels.mean().exp()))
        names = ("first: ", "second: ") if n == 2 else ("",)
        for i, name in enumerate(names):
            by_model = texts[i::n]
            off = by_model[min(1, len(by_model) - 1)]
            random = "".join(by_model[2:])
            yield _answer(f"{name}written", by_model[0], off, random)
            yield _numbers(f"{name}the whole model's text, probability of a token", likely[i::n])


def _n_tokens(row: Row, stack: str) -> int:
    """Return how many tokens of a row a stack reads."""
    if isinstance(row, PairRow) and stack != "encoder":
        return len(row.decoder_ids)
    return len(row.ids)


def _ranked(shares: Tensor, name: Callable[[int], object]) -> list[Answer]:
    """List the likeliest items of the full model and of the one with heads off.

    ``shares`` (models, items) are probabilities, ``name`` names an item.
    """
    likeliest = shares[:2].topk(min(_GUESSES, shares.shape[-1]), dim=-1).indices
    items = dict.fromkeys(likeliest.flatten().tolist())
    return [_numbers(visible(name(i)), shares[:, i].tolist()) for i in items]


def _answer(name: str, full: str, off: str, random: str) -> Answer:
    """Make an answer of texts."""
    return {"name": name, "full": full, "off": off, "random": random}


def _numbers(name: str, values: Sequence[float]) -> Answer:
    """Make an answer of numbers, one for each model: full, heads off, and random sets."""
    full = values[0]
    off = values[min(1, len(values) - 1)]
    random_values = values[2:]
    random = f"{min(random_values):.3f} to {max(random_values):.3f}" if random_values else ""
    return _answer(name, f"{full:.3f}", f"{off:.3f}", random)
