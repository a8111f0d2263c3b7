"""The outputs of a model for a sentence or two with some of its heads switched off.

A question is answered by several *models*: the full one, the one with the heads off, and one for
each of 19 random sets of as many heads in the same layers. They differ only in their gates, which
multiply the outputs of heads: 0 switches a head off. Every row of a batch may have gates of its
own, so one batch holds each text once for each model, and one pass of our own attention answers
everything, exactly as if each model ran alone. For texts A and B::

    row     0 1     2 3         4 5            6 7            ...
    text    A B     A B         A B            A B
    model   full    heads off   random set 1   random set 2

If the heads were like the random ones, their value would lie outside the range of the sets in 2 of
20 cases. If no head is off, the full model is the only one.

An encoder-decoder model writes first. Then every model reads what the full model wrote, which gives
its probability of that text; the patterns that are shown are those of the model with heads off on
what it wrote itself.

:meth:`Answers.__call__` goes all the way from texts and heads to the JSON that the page reads. A
``Row`` is one tokenised text (or two that are read together), a ``PairRow`` also has what a decoder
reads and should write, and ``Ends`` are the tokens with which a decoder begins and stops.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import repeat
from threading import Event
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headscope.attention import Mask, attention_pattern
from headscope.core.errors import HeadscopeError, InputError
from headscope.core.heads import head_name
from headscope.core.safe_text import visible
from headscope.core.widest import wide
from headscope.data.token_rows import (
    Ends,
    Padded,
    PairRow,
    Row,
    padded,
)
from headscope.live import readout
from headscope.live.random_sets import HeadIndex, RandomSets, random_sets
from headscope.live.readout import Told, off_model, token_names
from headscope.live.sentences import said
from headscope.live.texts import rows_of
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.intervene import Run, gate, intervene
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.models.run.task_heads import Select
from headscope.tasks.seq2seq import decode_greedily

_WRITTEN = 60  # Tokens that a decoder writes at most
Written = tuple[int, ...]  # Token ids that a decoder wrote


class StoppedError(HeadscopeError):
    """An answer was given up because the program ends."""


class _Outputs(NamedTuple):
    """What the models give for the texts; the *shown* model is the one with heads off, if any."""

    answer: Told
    rows: list[Row]  # The texts as the shown model reads them
    patterns: list[dict[str, Tensor]]  # Of the shown model: one for each text, by name of the head


class Answers:
    """Answers questions about one model; nothing is stored."""

    def __init__(self, loaded: LoadedModel, *, seed: int = 0) -> None:
        writes = loaded.task_head == "seq2seq"
        # A decoder reads what it writes: without a head that writes, only the encoder can run.
        encoder_alone = loaded.encoder_decoder and not writes
        self.model = loaded.only("encoder") if encoder_alone else loaded
        self._target_ends = ends_of(loaded) if writes else None
        self._seed = seed
        #: Set when the program ends: an answer that is being computed is given up.
        self.stopped = Event()
        self._stacks = {site.row: site.stack for site in self.model.sites}
        self._head_indices: dict[str, HeadIndex] = {}
        for site in self.model.sites:  # one for each attention layer
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
        rows = rows_of(self.model, texts)
        sets = self._random_sets(off)
        gates = self._gates(off, sets)
        if self._target_ends is None:
            outputs = self._read_texts(texts, rows, gates)
        else:
            outputs = self._write_texts(rows, gates, self._target_ends)

        read_together = len(rows) < len(texts)
        shown_texts = [" / ".join(texts)] if read_together else texts
        laid_out = map(self._lay_out, shown_texts, outputs.rows, outputs.patterns)
        told = outputs.answer
        sentence = said(told.lead, list(dict.fromkeys(off)), sets, of_second=told.of_second)
        return {
            "said": sentence._asdict(),
            "answers": told.answers,
            "texts": list(laid_out),
            "off": len(set(off)),
            "sets": len(sets.sets),
            "anywhere": sets.anywhere,
            "heads": len(self._head_indices),
        }

    def _read_texts(self, texts: Sequence[str], rows: list[Row], gates: Tensor) -> _Outputs:
        """Let every model read the texts, which were tokenised into ``rows``."""
        n_models = len(gates)
        first_shown = len(rows) * off_model(n_models)
        batch = padded(rows * n_models, self.model.pad_id, self.model.device)
        gates_of_rows = gates.repeat_interleave(len(rows), dim=0)
        select = None
        if self.model.task_head == "causal":
            # A head that predicts tokens is slow, and what comes next is read at the last tokens.
            last = batch.attention_mask.sum(1) - 1

            def select(states: Tensor) -> Tensor:
                return states[torch.arange(len(last)), last][:, None]

        hidden, logits, patterns = self._run(batch, gates_of_rows, first_shown, rows, select)
        answer = self._told(texts, batch, rows, hidden, logits, n_models)
        return _Outputs(answer, rows, patterns)

    def _write_texts(self, rows: list[Row], gates: Tensor, target_ends: Ends) -> _Outputs:
        """Let up to three models write, and then every model read what the full model wrote.

        Those that write are the full one, the one with heads off, and one with a random set off.
        """
        n_models = len(gates)
        written = self._write(rows, gates[:3], target_ends)

        # Every model reads each text with what the full model wrote.
        written_by_full = written[0]
        pairs = list(map(self._pair, rows, written_by_full, repeat(target_ends)))
        pairs_of_models = pairs * n_models

        # The shown model stands in the batch once more, and reads what it wrote itself.
        shown_model = off_model(n_models)
        shown: list[Row] = list(map(self._pair, rows, written[shown_model], repeat(target_ends)))
        all_gates = torch.cat([gates, gates[shown_model][None]])

        batch = padded([*pairs_of_models, *shown], self.model.pad_id, self.model.device)
        gates_of_rows = all_gates.repeat_interleave(len(rows), dim=0)
        first_shown = len(pairs_of_models)
        _, logits, patterns = self._run(batch, gates_of_rows, first_shown, shown)
        assert logits is not None
        logits_of_pairs = wide(logits[:first_shown])
        by_model = logits_of_pairs.reshape(n_models, len(rows), *logits.shape[1:])
        texts = [[self._decoded(ids) for ids in of_model] for of_model in written]
        return _Outputs(readout.written_texts(pairs, texts, by_model), shown, patterns)

    def _run(
        self,
        batch: Padded,
        gates: Tensor,
        first_shown: int,
        shown: Sequence[Row],
        select: Select | None = None,
    ) -> tuple[Tensor, Tensor | None, list[dict[str, Tensor]]]:
        """Run a batch whose rows have gates (rows, n_layers, n_heads) of their own.

        The rows ``shown`` stand in the batch one after the other, from index ``first_shown`` on;
        ``select`` picks the states that the task head reads. Returns the last states, the logits,
        and for each shown row its patterns by name of the head, without padding.
        """
        patterns: list[dict[str, Tensor]] = [{} for _ in shown]

        def attend(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            # Compute the attention, and keep the patterns of the shown rows on the way.
            self._go_on()
            # [rows, heads, pos, pos]
            pattern = attention_pattern(q, k, scale=scale, softcap=site.softcap, mask=mask)
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
            run: Run = self.model.run  # the type checker knows this one to take any arguments
            hidden, logits = router.checked(
                run, *batch.inputs, **batch.decoder_inputs, select=select
            )
        return hidden, logits, patterns

    # --- which heads are off ----------------------------------------------------------------------

    def _random_sets(self, off: Sequence[str]) -> RandomSets:
        """Draw random sets to compare these heads with; none if no head is off.

        Raises InputError for an unknown head.
        """
        unknown = [name for name in off if name not in self._head_indices]
        if unknown:
            raise InputError(f"{self.model.name} has no head {visible(unknown[0])[:20]}.")
        if not off:
            return RandomSets([])
        removed = sorted({self._head_indices[name] for name in off})
        return random_sets(removed, list(self._head_indices.values()), self._seed, self._stacks)

    def _gates(self, off: Sequence[str], random: RandomSets) -> Tensor:
        """Return the gates of all models, (models, n_layers, n_heads): 0 where a head is off.

        The models are the full one, the one with heads off, and those with random sets off: the
        full one alone if nothing is off.
        """
        all_on = torch.ones(len(self.model.sites), self.model.n_heads)
        if not off:
            return all_on[None]
        sets = [[self._head_indices[name] for name in off], *random.sets]
        gates = all_on.repeat(1 + len(sets), 1, 1)
        for model_gates, heads in zip(gates[1:], sets, strict=True):
            for layer_row, head_index in heads:
                model_gates[layer_row, head_index] = 0.0
        return gates

    def _go_on(self) -> None:
        """Raise StoppedError if the program ends; asked at every layer."""
        if self.stopped.is_set():
            raise StoppedError("The program ends.")

    # --- what comes out ---------------------------------------------------------------------------

    def _lay_out(self, text: str, row: Row, patterns: dict[str, Tensor]) -> dict[str, Any]:
        """Write one text as the model reads it, and every head's pattern on it, for the page.

        ``special`` says which of the ``tokens`` are special; ``target`` has ``tokens`` and
        ``special`` of what a decoder reads. A pattern is base64 of one byte for each weight, in per
        cent, query by query.
        """
        target: dict[str, list[Any]] = {}
        if isinstance(row, PairRow):
            target_tokens = token_names(self.model, row.decoder_ids)
            is_start = [i == 0 for i in range(len(target_tokens))]
            target = {"tokens": target_tokens, "special": is_start}
        encoded: dict[str, str] = {}
        for name, pattern in patterns.items():
            percent = (100 * pattern.double()).round().to(torch.uint8).cpu().numpy()
            encoded[name] = base64.b64encode(percent.tobytes()).decode()
        return {
            "text": visible(text),
            "tokens": token_names(self.model, row.ids),
            "special": [i not in row.content for i in range(len(row.ids))],
            "target": target,
            "patterns": encoded,
        }

    def _told(
        self,
        texts: Sequence[str],
        batch: Padded,
        rows: Sequence[Row],
        hidden: Tensor,
        logits: Tensor | None,
        n_models: int,
    ) -> Told:
        """Return what the models say of the texts: classes, tags, words or embeddings."""
        head = self.model.task_head
        mask_id = getattr(self.model.tokenizer, "mask_token_id", None)
        if logits is not None and head == "classification":
            return readout.classes(self.model, wide(logits))
        if logits is not None and head == "causal":
            by_model = wide(logits[:, 0]).reshape(n_models, len(rows), -1)
            return readout.next_tokens(self.model, by_model)
        if logits is not None and head == "token-classification" and logits.shape[-1] > 1:
            return readout.tags(self.model, wide(logits), rows[0])
        if logits is not None and head == "question-answering" and len(rows) == 1:
            return readout.spans(self.model, wide(logits), rows[0], texts)
        if logits is not None and head == "mlm" and mask_id in rows[0].ids:
            position = rows[0].ids.index(mask_id)
            return readout.masked_token(self.model, wide(logits[:: len(rows), position]))
        embedded = self.model.pooling.embed(hidden, batch.attention_mask)
        by_model = embedded.reshape(n_models, len(rows), -1)
        return readout.similarities(by_model, len(self._head_indices))

    # --- what an encoder-decoder model writes -----------------------------------------------------

    def _write(self, rows: Sequence[Row], gates: Tensor, target_ends: Ends) -> list[list[Written]]:
        """Let each model write for each text; ``written[model][text]`` are token ids."""
        inputs = padded(list(rows) * len(gates), self.model.pad_id, self.model.device)
        gates_of_rows = gates.repeat_interleave(len(rows), dim=0)

        def switch_off(site: AttentionSite, z: Tensor) -> Tensor:
            self._go_on()
            return gate(z, site, gates_of_rows)

        with intervene(self.model, z=switch_off):
            ids = decode_greedily(
                self.model.network,
                inputs.input_ids,
                inputs.attention_mask,
                target_ends=target_ends,
                pad_id=self.model.pad_id,
                max_new_tokens=self._most_written,
            )
        written = [tuple(row) for row in ids]
        n_texts = len(rows)
        return [written[i : i + n_texts] for i in range(0, len(written), n_texts)]

    @property
    def _most_written(self) -> int:
        """The tokens that a decoder writes at most."""
        return min(_WRITTEN, self.model.max_length)

    def _pair(self, row: Row, written: Written, target_ends: Ends) -> PairRow:
        """Join a text with what was written for it, as a decoder reads it and should continue.

        The decoder reads one token behind: of ``written`` (7, 8) it reads (start, 7, 8), and its
        labels are (7, 8, stop).
        """
        cut_short = len(written) == self._most_written
        labels = written if cut_short else (*written, target_ends.stop)
        decoder_ids = (target_ends.start, *labels[:-1])
        return PairRow(
            index=row.index,
            ids=row.ids,
            types=row.types,
            content=row.content,
            decoder_ids=decoder_ids,
            labels=labels,
            decoder_content=tuple(range(1, len(decoder_ids))),
        )

    def _decoded(self, ids: Written) -> str:
        """Return token ids as text, without special tokens."""
        return visible(self.model.tokenizer.decode(ids, skip_special_tokens=True))


def _n_tokens(row: Row, stack: str) -> int:
    """Return how many tokens of a row a stack reads."""
    if isinstance(row, PairRow) and stack != "encoder":
        return len(row.decoder_ids)
    return len(row.ids)
