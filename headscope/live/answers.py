"""The outputs of a model for a sentence or two with some of its heads switched off.

One batch holds every text once for the full model, once with the heads off, and once for each of
19 random sets of as many heads in the same layers, drawn anew for each number of heads. Gates
differ by row, so that one pass of our own attention answers everything, exactly as if each of these
models ran alone. If the heads were like the random ones, their value would lie outside the range of
the sets in 2 of 20 cases.

An encoder-decoder model writes first. Then each model reads what the full model wrote, which gives
its probability of that text; patterns are those of the model with heads off on its own text.
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
_OF_PAIRS = ("classification", "token-classification", "question-answering")
_WRITTEN = 60  # Tokens that a decoder writes at most
NO_SETS = (
    "No random sets to compare with: there are too few other sets of as many heads in these "
    "layers, or most of their heads are off."
)


#: One output: its name, its value of the full model, with heads off, and the smallest and
#: largest of the random sets, empty where no head is off.
Answer = dict[str, str]


class _Answered(NamedTuple):
    """What a batch of models gives for some texts."""

    answers: list[Answer]
    rows: list[Row]  # The texts as the model with heads off reads them
    patterns: list[dict[str, Tensor]]  # Of that model, for each text, by the name of the head


class Answers:
    """Answers for one model; no question is stored."""

    def __init__(self, loaded: LoadedModel, *, seed: int = 0) -> None:
        writes = loaded.task_head == "seq2seq"
        # A decoder reads what it writes: without a head that writes, only the encoder runs.
        self.model = loaded.only("encoder") if loaded.encoder_decoder and not writes else loaded
        self._ends = ends_of(loaded) if writes else None
        self._seed = seed
        self._index_of: dict[str, HeadIndex] = {}
        for site in self.model.sites:
            for index, number in enumerate(site.head_ids):
                name = head_name(site.layer, number, site.stack)
                self._index_of[name] = (site.row, index)

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads that can be switched off, as ``L3H5`` or ``cross:L0H2``."""
        return tuple(self._index_of)

    def __call__(self, texts: Sequence[str], off: Sequence[str]) -> dict[str, Any]:
        """Answer for one text or two; ``off`` names heads, as ``L3H5``.

        Raises InputError for an empty or too long text and for a head that there is not.
        """
        rows = self._rows(texts)
        gates = self._gates(off)
        if self._ends is None:
            answered = self._read_texts(rows, gates)
        else:
            answered = self._write_texts(rows, gates, self._ends)
        read_together = len(rows) < len(texts)
        shown_texts = [" / ".join(texts)] if read_together else texts
        n_sets = max(len(gates) - 2, 0)
        return {
            "answers": answered.answers,
            "texts": [
                self._shown(text, row, patterns)
                for text, row, patterns in zip(
                    shown_texts, answered.rows, answered.patterns, strict=True
                )
            ],
            "off": len(set(off)),
            "sets": n_sets,
            "note": "" if n_sets or not off else NO_SETS,
            "heads": len(self._index_of),
        }

    def _read_texts(self, rows: list[Row], gates: Tensor) -> _Answered:
        """Let every model read the texts."""
        n_models = len(gates)
        # The second model of the batch has the heads off; alone, the first one is that.
        first_shown = len(rows) if n_models > 1 else 0
        batch = padded(rows * n_models, self.model.pad_id, self.model.device)
        gates_of_rows = gates.repeat_interleave(len(rows), dim=0)
        hidden, logits, patterns = self._run(batch, gates_of_rows, first_shown, rows)
        answers = self._outputs(batch, rows, hidden, logits, n_models)
        return _Answered(answers, rows, patterns)

    def _write_texts(self, rows: list[Row], gates: Tensor, ends: Ends) -> _Answered:
        """Let a few models write, and then every model read what the full model wrote.

        Behind them stands the model with heads off once more, which reads its own text: its
        patterns are shown.
        """
        n = len(rows)
        written = self._write(rows, gates[:3], ends)
        off_model = 1 if len(gates) > 1 else 0
        pairs = [self._pair(row, written[i % n], ends) for i, row in enumerate(rows * len(gates))]
        shown: list[Row] = []
        for i, row in enumerate(rows):
            shown.append(self._pair(row, written[off_model * n + i], ends))
        all_gates = torch.cat([gates, gates[off_model : off_model + 1]])
        batch = padded([*pairs, *shown], self.model.pad_id, self.model.device)
        gates_of_rows = all_gates.repeat_interleave(n, dim=0)
        _, logits, patterns = self._run(batch, gates_of_rows, len(pairs), shown)
        assert logits is not None
        answers = list(self._written(pairs, written, wide(logits), n))
        return _Answered(answers, shown, patterns)

    def _run(
        self, batch: Padded, gates: Tensor, first_shown: int, shown: Sequence[Row]
    ) -> tuple[Tensor, Tensor | None, list[dict[str, Tensor]]]:
        """Run a batch whose rows have gates (rows, n_layers, n_heads) of their own.

        Returns the last states, the logits, and the patterns of the rows from ``first_shown`` on,
        without padding.
        """
        patterns: list[dict[str, Tensor]] = [{} for _ in shown]

        def attend(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            pattern = attention_pattern(q, k, scale=scale, mask=mask)
            read_stack = "decoder" if site.stack == "decoder" else "encoder"
            for i, row in enumerate(shown):
                of_row = pattern[first_shown + i, :, : _tokens(row, site.stack)]
                for index, number in enumerate(site.head_ids):
                    name = head_name(site.layer, number, site.stack)
                    patterns[i][name] = of_row[index, :, : _tokens(row, read_stack)]
            return pattern @ v

        def switch_off(site: AttentionSite, z: Tensor) -> Tensor:
            return gate(z, site, gates)

        with intervene(self.model, attention=attend, z=switch_off) as router:
            run: Run = self.model.run
            hidden, logits = router.checked(run, *batch.inputs, **batch.decoder_inputs)
        return hidden, logits, patterns

    # --- what goes in -----------------------------------------------------------------------------

    def _rows(self, texts: Sequence[str]) -> list[Row]:
        """Tokenise one text or two; a pair that a classifier reads at once is one row."""
        for text in texts:
            if not text.strip():
                raise InputError("Type at least one word.")
            if any(0xD800 <= ord(char) < 0xE000 for char in text):
                raise InputError("The text holds half of a character (a lone surrogate).")
        pairs = self.model.task_head in _OF_PAIRS and not self.model.encoder_decoder
        together = len(texts) == 2 and pairs
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
        """Return gates of the full model, of that without ``off``, and of random sets.

        Returns (models, n_layers, n_heads); the full model alone where nothing is off, and no
        random sets where too few are unlike ``off``.
        """
        unknown = [name for name in off if name not in self._index_of]
        if unknown:
            raise InputError(f"{self.model.name} has no head {visible(unknown[0])[:20]}.")
        all_on = torch.ones(len(self.model.sites), self.model.n_heads)
        if not off:
            return all_on[None]
        removed = sorted({self._index_of[name] for name in off})
        random = random_sets(removed, list(self._index_of.values()), self._seed)
        sets = [removed, *random]
        gates = all_on.repeat(1 + len(sets), 1, 1)
        for model_gates, heads in zip(gates[1:], sets, strict=True):
            for row, index in heads:
                model_gates[row, index] = 0.0
        return gates

    # --- what comes out ---------------------------------------------------------------------------

    def _shown(self, text: str, row: Row, patterns: dict[str, Tensor]) -> dict[str, Any]:
        """Lay out one text as the model reads it, and every head's pattern on it with heads off.

        ``special`` says which tokens are special, ``target`` has the same two of what a decoder
        reads, and a pattern is per cent, a byte a weight, row by row, in base64.
        """

        def tokens(ids: Sequence[int]) -> list[str]:
            return list(map(visible, readable_pieces(self.model.tokenizer, ids)))

        target: dict[str, list[Any]] = {}
        if isinstance(row, PairRow):
            read = tokens(row.decoder_ids)
            target = {"tokens": read, "special": [i == 0 for i in range(len(read))]}
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

    def _outputs(
        self,
        batch: Padded,
        rows: Sequence[Row],
        hidden: Tensor,
        logits: Tensor | None,
        n_models: int,
    ) -> list[Answer]:
        """Return the outputs of each model of the batch for the texts."""
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
        of_whole = "embedding: cosine to the whole model's"
        if len(rows) == 1:
            return [_numbers(of_whole, cosines[:, 0].tolist())]
        similarity = cosine(by_model[:, 0], by_model[:, 1])
        return [
            _numbers("similarity of the two sentences", similarity.tolist()),
            _numbers(f"first {of_whole}", cosines[:, 0].tolist()),
            _numbers(f"second {of_whole}", cosines[:, 1].tolist()),
        ]

    def _classes(self, logits: Tensor) -> list[Answer]:
        """Return the likeliest classes or labels, or the numbers, by logits (models, outputs)."""
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
        """Let each of some models write for each text; returns token ids, model by model."""
        inputs = padded(list(rows) * len(gates), self.model.pad_id, self.model.device)
        by_row = gates.repeat_interleave(len(rows), dim=0)
        with intervene(self.model, z=lambda site, z: gate(z, site, by_row)):
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
        return min(_WRITTEN, self.model.max_length)

    def _pair(self, row: Row, written: tuple[int, ...], ends: Ends) -> PairRow:
        """Let a decoder read a text of token ids; one that was cut short has no end."""
        cut_short = len(written) == self._most_written
        labels = written if cut_short else (*written, ends.stop)
        read = (ends.start, *labels[:-1])
        words = tuple(range(1, len(read)))
        return PairRow(**vars(row), decoder_ids=read, labels=labels, decoder_content=words)

    def _written(
        self, pairs: Sequence[PairRow], written: Sequence[tuple[int, ...]], logits: Tensor, n: int
    ) -> Iterator[Answer]:
        """Yield the text written by the full model, with heads off, and by one random set.

        ``pairs`` has each of n texts by each model, which reads what the full one wrote.
        """
        decode = self.model.tokenizer.decode
        texts = [visible(decode(ids, skip_special_tokens=True)) for ids in written]
        log_shares = F.log_softmax(logits, dim=-1)
        likely: list[float] = []  # The geometric mean of the probabilities of a text's tokens
        for i, pair in enumerate(pairs):
            of_labels = log_shares[i, range(len(pair.labels)), pair.labels]
            likely.append(float(of_labels.mean().exp()))
        for i, name in enumerate(("first: ", "second: ") if n == 2 else ("",)):
            by_model = texts[i::n]
            off = by_model[min(1, len(by_model) - 1)]
            random = "".join(by_model[2:])
            yield _answer(f"{name}written", by_model[0], off, random)
            yield _numbers(f"{name}the whole model's text, probability of a token", likely[i::n])


def _tokens(row: Row, stack: str) -> int:
    """Return how many tokens of a row a stack reads."""
    if isinstance(row, PairRow) and stack != "encoder":
        return len(row.decoder_ids)
    return len(row.ids)


def _ranked(shares: Tensor, name: Callable[[int], object]) -> list[Answer]:
    """List the likeliest items of the full model and the one without heads.

    ``shares`` (models, items) are probabilities.
    """
    likeliest = shares[:2].topk(min(_GUESSES, shares.shape[-1]), dim=-1).indices
    items = dict.fromkeys(likeliest.flatten().tolist())
    return [_numbers(visible(name(i)), shares[:, i].tolist()) for i in items]


def _answer(name: str, full: str, off: str, random: str) -> Answer:
    """Make an answer of texts."""
    return {"name": name, "full": full, "off": off, "random": random}


def _numbers(name: str, values: Sequence[float]) -> Answer:
    """Write the values of the full model, of that without heads, and of random sets."""
    full = values[0]
    off = values[min(1, len(values) - 1)]
    of_sets = values[2:]
    random = f"{min(of_sets):.3f} to {max(of_sets):.3f}" if of_sets else ""
    return _answer(name, f"{full:.3f}", f"{off:.3f}", random)
