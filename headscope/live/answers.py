"""The outputs of a model for a sentence or two with some of its heads switched off.

One batch holds every text once for the full model, once with the heads off, and once for each of
``RANDOM`` sets of as many heads in the same layers, drawn anew for each number of heads. Gates
differ by row, so that one pass of our own attention answers everything, exactly as if each of these
models ran alone. If the heads were like the random ones, their value would lie outside the range of
the sets in 2 of RANDOM + 1 cases.

An encoder-decoder model writes first. Then each model reads what the full model wrote, which gives
its probability of that text; patterns are those of the model with heads off on its own text.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import headscope
from headscope.analyses.attribute.reversal import matched_sets
from headscope.attention import Mask, attention_pattern
from headscope.core.errors import InputError
from headscope.core.heads import head_name
from headscope.core.progress import Progress
from headscope.core.safe_text import visible
from headscope.data.readable_pieces import readable_pieces
from headscope.data.token_rows import Ends, Padded, PairRow, Row, encode_rows, padded
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.intervene import Run, gate, intervene
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.models.run.pooling import cosine, wide
from headscope.reports.page import report_html
from headscope.reports.reading import read_results
from headscope.reports.result import ReportResult
from headscope.session.opening import open_for_tasks
from headscope.tasks.seq2seq import decode_greedily

RANDOM = 19  # Sets of heads drawn at random, compared with the set that is off; or all there are,
FEWEST_SETS = 7  # where there are at least so many: the others of one head in a layer of eight.
#: Largest share of the heads that are off which a random set may be expected to hold as well.
SHARED = 0.75
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


class Answers:
    """Answers for one model; no question is stored."""

    def __init__(self, loaded: LoadedModel, *, seed: int = 0) -> None:
        writes = loaded.task_head == "seq2seq"
        # A decoder reads what it writes: without a head that writes, only the encoder runs.
        self.model = loaded.only("encoder") if loaded.encoder_decoder and not writes else loaded
        self._ends = ends_of(loaded) if writes else None
        self._seed = seed
        self._index_of = {
            head_name(site.layer, number, site.stack): (site.row, index)
            for site in self.model.sites
            for index, number in enumerate(site.head_ids)
        }

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
        sets = max(len(gates) - 2, 0)
        n = len(rows)
        copies = len(gates)
        by_row = gates.repeat_interleave(n, dim=0)
        every = rows * copies
        # The second model of the batch has the heads off; alone, the first one is that.
        start = n if copies > 1 else 0
        wrote: list[tuple[int, ...]] = []
        pairs: list[PairRow] = []
        if self._ends is not None:
            wrote = self._write(rows, gates[:3], self._ends)
            pairs = [self._pair(row, wrote[i % n], self._ends) for i, row in enumerate(every)]
            rows = [self._pair(row, wrote[start + i], self._ends) for i, row in enumerate(rows)]
            by_row = torch.cat([by_row, by_row[start : start + n]])
            start = len(pairs)
            every = [*pairs, *rows]
        batch = padded(every, self.model.pad_id, self.model.device)
        patterns: dict[str, list[Tensor]] = {}

        def attend(
            site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
        ) -> Tensor:
            pattern = attention_pattern(q, k, scale=scale, mask=mask)
            keys = "decoder" if site.stack == "decoder" else "encoder"
            for index, number in enumerate(site.head_ids):
                patterns[head_name(site.layer, number, site.stack)] = [
                    pattern[start + i, index, : _tokens(row, site.stack), : _tokens(row, keys)]
                    for i, row in enumerate(rows)
                ]
            return pattern @ v

        with intervene(self.model, attention=attend, z=lambda s, z: gate(z, s, by_row)) as router:
            run: Run = self.model.run
            hidden, logits = router.checked(run, *batch.inputs, **batch.decoder_inputs)
        shown = texts if n == len(texts) else [" / ".join(texts)]
        if logits is not None and pairs:
            answers = list(self._written(pairs, wrote, wide(logits), n))
        else:
            answers = self._read(batch, rows, hidden, logits, copies)
        return {
            "answers": answers,
            "texts": [
                self._shown(text, row, {name: of[i] for name, of in patterns.items()})
                for i, (text, row) in enumerate(zip(shown, rows, strict=True))
            ],
            "off": len(set(off)),
            "sets": sets,
            "note": "" if sets or not off else NO_SETS,
            "heads": len(self._index_of),
        }

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
        first, second = (texts[:1], texts[1:]) if together else (texts, None)
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
        sets = [removed, *self._random_sets(removed)]
        gates = all_on.repeat(1 + len(sets), 1, 1)
        for of_model, heads in zip(gates[1:], sets, strict=True):
            for row, index in heads:
                of_model[row, index] = 0.0
        return gates

    def _random_sets(self, removed: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """Draw RANDOM different sets of as many heads in the same layers, or all there are.

        None where there are few, or where most of a set would be the heads that are off.
        """
        heads = list(self._index_of.values())
        in_row, off_in_row = (Counter(row for row, _ in some) for some in (heads, removed))
        shared = sum(n * n / in_row[row] for row, n in off_in_row.items())
        if shared > SHARED * len(removed):
            return []
        seed = self._seed * len(heads) + len(removed)
        sets = matched_sets(removed, heads, RANDOM, seed)
        return sets if len(sets) >= FEWEST_SETS else []

    # --- what comes out ---------------------------------------------------------------------------

    def _shown(self, text: str, row: Row, patterns: dict[str, Tensor]) -> dict[str, Any]:
        """Lay out one text as the model reads it, and every head's pattern on it with heads off.

        ``special`` are special tokens, ``target`` the same two of what a decoder
        reads, and a pattern is per cent, a byte a weight, row by row, in base64.
        """

        def tokens(ids: Sequence[int]) -> list[str]:
            return list(map(visible, readable_pieces(self.model.tokenizer, ids)))

        target: dict[str, list[Any]] = {}
        if isinstance(row, PairRow):
            read = tokens(row.decoder_ids)
            target = {"tokens": read, "special": [i == 0 for i in range(len(read))]}
        percent = {
            name: (100 * pattern.double()).round().to(torch.uint8).cpu().numpy().tobytes()
            for name, pattern in patterns.items()
        }
        return {
            "text": visible(text),
            "tokens": tokens(row.ids),
            "special": [i not in row.content for i in range(len(row.ids))],
            "target": target,
            "patterns": {name: base64.b64encode(of).decode() for name, of in percent.items()},
        }

    def _read(
        self, batch: Padded, rows: Sequence[Row], hidden: Tensor, logits: Tensor | None, copies: int
    ) -> list[Answer]:
        """Return the outputs of each model of the batch for the texts."""
        head = self.model.task_head
        tokenizer = self.model.tokenizer
        if logits is not None and head == "classification":
            return self._outputs(wide(logits))
        mask = getattr(tokenizer, "mask_token_id", None)
        if logits is not None and head == "mlm" and mask in rows[0].ids:
            position = rows[0].ids.index(mask)
            at_mask = wide(logits[:: len(rows), position])
            return _ranked(
                at_mask.softmax(dim=-1), lambda token: readable_pieces(tokenizer, [token])[0]
            )
        embedded = self.model.pooling.embed(hidden, batch.attention_mask)
        by_model = embedded.reshape(copies, len(rows), -1)
        cosines = cosine(by_model, by_model[:1])  # (models, texts)
        which = ("first", "second") if len(rows) == 2 else ("",)
        answers = [
            _numbers(f"{name} embedding: cosine to the whole model's".strip(), each.tolist())
            for name, each in zip(which, cosines.T, strict=True)
        ]
        if len(rows) == 2:
            both = cosine(by_model[:, 0], by_model[:, 1])
            return [_numbers("similarity of the two sentences", both.tolist()), *answers]
        return answers

    def _outputs(self, logits: Tensor) -> list[Answer]:
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

    def _pair(self, row: Row, wrote: tuple[int, ...], ends: Ends) -> PairRow:
        """Let a decoder read a text, given as token ids; one that was cut short has no end."""
        labels = wrote if len(wrote) == self._most_written else (*wrote, ends.stop)
        read = (ends.start, *labels[:-1])
        words = tuple(range(1, len(read)))
        return PairRow(**vars(row), decoder_ids=read, labels=labels, decoder_content=words)

    def _written(
        self, pairs: Sequence[PairRow], wrote: Sequence[tuple[int, ...]], logits: Tensor, n: int
    ) -> Iterator[Answer]:
        """Yield the text written by the full model, with heads off, and by one random set.

        ``pairs`` has each of n texts by each model, which reads what the full one wrote.
        """
        decode = self.model.tokenizer.decode
        logs = F.log_softmax(logits, dim=-1)
        said = [visible(decode(ids, skip_special_tokens=True)) for ids in wrote]
        indices = ((i, range(len(pair.labels)), pair.labels) for i, pair in enumerate(pairs))
        likely = [float(logs[index].mean().exp()) for index in indices]
        for i, name in enumerate(("first: ", "second: ") if n == 2 else ("",)):
            by_model = said[i::n]
            off = by_model[min(1, len(by_model) - 1)]
            random = "".join(by_model[2:])
            yield _answer(f"{name}written", by_model[0], off, random)
            yield _numbers(f"{name}the whole model's text, probability of a token", likely[i::n])


def _tokens(row: Row, stack: str) -> int:
    """Return how many tokens of a row the queries of a stack are, or its keys."""
    return len(row.decoder_ids if isinstance(row, PairRow) and stack != "encoder" else row.ids)


def _ranked(shares: Tensor, name: Callable[[int], object]) -> list[Answer]:
    """List the likeliest items of the full model and the one without heads.

    ``shares`` (models, items) are probabilities.
    """
    likeliest = shares[:2].topk(min(_GUESSES, shares.shape[-1]), dim=-1).indices
    items = dict.fromkeys(likeliest.flatten().tolist())
    return [_numbers(visible(name(i)), shares[:, i].tolist()) for i in items]


def _answer(name: str, full: str, off: str, random: str) -> Answer:
    return {"name": name, "full": full, "off": off, "random": random}


def _numbers(name: str, values: Sequence[float]) -> Answer:
    """Write the values of the full model, of that without heads, and of random sets."""
    full = values[0]
    off = values[min(1, len(values) - 1)]
    drawn = values[2:]
    random = f"{min(drawn):.3f} to {max(drawn):.3f}" if drawn else ""
    return _answer(name, f"{full:.3f}", f"{off:.3f}", random)


def prepared(
    model: str,
    roles: Path | None,
    *,
    seed: int,
    command: str,
    progress: Progress | None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> tuple[str, Answers]:
    """Open and check a model; return the page about it and what answers the page's questions.

    Without ``roles``, a file or folder with the result of ``classify``, the heads are classified
    on the built-in sample. Raises InputError where that result is of another model.
    """
    loaded = open_for_tasks(model, source_language=source_language, target_language=target_language)
    answers = Answers(loaded, seed=seed)
    saved = None if roles is None else read_results(roles)
    if saved is not None and saved.classify is None:
        raise InputError(f"{visible(roles)} holds no result of headscope classify.")
    only = ["validate"] if saved else ["validate", "classify"]
    settings = {"classify": {"control": False, "ablate": False}}
    report: ReportResult = headscope.report(
        loaded, only=only, settings=settings, seed=seed, command=command, progress=progress
    )
    if report.validate is None or not report.validate.passed:
        reasons = "" if report.validate is None else "; ".join(report.validate.reasons[:2])
        raise InputError(f"{loaded.name} fails validation, so nothing is shown: {reasons}.")
    if saved is not None and saved.classify is not None:
        theirs = saved.classify.provenance["model"].get("weights_sha256")
        ours = report.provenance["model"]["weights_sha256"]
        if theirs != ours:
            raise InputError(
                f"{visible(roles)} is of other weights ({visible(theirs)[:12]}) than {loaded.name} "
                f"({visible(ours)[:12]}); classify this model, or leave --roles out."
            )
        report = dataclasses.replace(report, classify=saved.classify)
    return report_html(report, live=answers.heads), answers
