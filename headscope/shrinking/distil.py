"""Distillation: a smaller model learns the whole model's own outputs, on text without labels.

The loss is 1 - cosine to the whole model's embedding; for a head the Kullback-Leibler divergence
from the whole model's probabilities (summed over labels that are independent); for a head of
numbers, such as a score, their squared difference as a share of their variance over the text. A
tenth of the text is held out: the weights that came nearest on it are kept, those before training
among them.

References
----------
Hinton, Vinyals & Dean 2015, arXiv:1503.02531; of sentence embeddings Reimers & Gurevych 2020,
arXiv:2004.09813.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.data.token_rows import Padded, Row, padded
from headscope.models.run.head_outputs import HeadOutputs, head_outputs, spread_of
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.models.run.wrapping import as_before, wrap
from headscope.shrinking.result import Training
from headscope.tasks.positions import SPAN_HEAD

RATE = 6e-4
BATCH = 64
#: A model whose loss is below NEAR has a quarter of the rate: at the full one it first moves away
#: (all-MiniLM-L6-v2 with 3/4 of its neurons, cosine elsewhere 0.975: 0.971 after 250 steps at the
#: full rate, 0.978 after 200 at a quarter).
NEAR = 0.05
TOKENS = 1024  # Of the texts whose activations are held at once; a step's gradients add up
HELD_OUT = 10  # One in so many texts is held out, MOST_HELD at most
MOST_HELD = 512
MOST_SPREAD = 256  # Texts over which the variance of a head's numbers is taken
WARM = 50  # Steps until the full learning rate
SECONDS = 30.0  # Between two evaluations on the held-out text
PATIENCE = 4  # Evaluations in a row without progress, after which training ends
_CLEARLY = 0.85  # Share of the time of a float32 step below which bfloat16 is clearly faster


def output_of(loaded: LoadedModel, batch: Padded) -> Tensor:
    """Return what is compared of each text: a unit embedding, or the head's logits.

    (rows, d_model), (rows, classes), (tokens, classes) of a head that speaks of tokens, or
    (2 rows, pos) of one that says where an answer begins and ends.
    """

    def at_masked(hidden: Tensor) -> Tensor:
        rows, positions = batch.masked
        return hidden[rows, positions][None]

    select = at_masked if batch.masked.numel() else None
    hidden, logits = loaded.run(*batch.inputs, **batch.decoder_inputs, select=select)
    if logits is None:
        return F.normalize(loaded.pooling.embed(hidden.float(), batch.hidden_mask), dim=-1)
    if loaded.task_head == SPAN_HEAD:
        padding = ~batch.attention_mask.bool()[..., None]
        logits = logits.masked_fill(padding, -1e4).transpose(1, 2)
    return logits.flatten(0, -2).float()


def loss_of(
    outputs: Tensor, expected: Tensor, kind: HeadOutputs | None, spread: Tensor | None = None
) -> Tensor:
    """Return the loss of each row: 1 - cosine without a head, else the distance of its outputs.

    Numbers are compared in units of their ``spread`` (outputs,) over the text.
    """
    if kind is None:
        return 1 - (outputs * expected).sum(-1)
    return kind.distance(expected, outputs, spread)


def distil(
    small: LoadedModel,
    full_model: LoadedModel,
    rows: Sequence[Row],
    minutes: float,
    *,
    seed: int = 0,
    known: dict[int, Tensor] | None = None,
    low: bool | None = None,
    tell: Callable[[float], object] = lambda share: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[LoadedModel, Training]:
    """Train ``small`` for some minutes; both models that were given stay as they are.

    Tables of embeddings stay as they are too: most of their rows are in none of the texts.

    Parameters
    ----------
    small, full_model : LoadedModel
        What is trained, and what it learns from.
    rows : sequence of Row
        The texts, as both models read them.
    minutes : float
        Of training, the whole model's outputs included.
    seed : int
        Of the held-out texts and the order of the others.
    known : dict, optional
        The whole model's outputs by text, kept from one call to the next.
    low : bool, optional
        Whether steps run in bfloat16; tried first by default.
    tell, clock : callable
        ``tell`` is called with the share of the time that is over; ``clock`` is for tests.

    Returns
    -------
    LoadedModel, Training
        The trained model, and how it came about.
    """
    rng = random.Random(seed)
    held_out, train = _split(rows, rng)
    network = copy.deepcopy(small.network)
    student = as_before(wrap(network, small.tokenizer, name=small.name), small)
    lesson = Lesson(student, full_model, rows, {} if known is None else known)
    with ExitStack() as stack:
        stack.enter_context(fast_products(full_model.network))
        parameters = stack.enter_context(_trained(network))

        # how far it is before training, and how it is trained
        before = lesson.distance(held_out)
        rate = RATE if before > NEAR else RATE / 4
        optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
        if low is None:
            low = _faster_in_bfloat16(lesson, train[len(train) // 2 :][:BATCH])
        if not low:
            stack.enter_context(fast_products(network, training=True))

        # steps, and now and then a look at the held-out text
        nearest = copy.deepcopy(network.state_dict())
        shortest = before
        steps = 0
        share = 0.0  # Of the minutes that is over
        waited = 0  # Evaluations without progress
        begun = clock()
        evaluated = clock()
        while share < 1 and waited <= PATIENCE:
            for group in optimiser.param_groups:
                group["lr"] = rate * min(1.0, (steps + 1) / WARM) * (1 - share)
            first = rng.randrange(max(1, len(train) - BATCH + 1))
            optimiser.zero_grad()
            lesson.backward(train[first : first + BATCH], low)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            steps += 1
            share = min(1.0, (clock() - begun) / max(60 * minutes, 1e-9))
            tell(share)
            if share >= 1 or clock() - evaluated > SECONDS:
                waited += 1
                distance = lesson.distance(held_out)
                if distance < shortest:
                    shortest = distance
                    nearest = copy.deepcopy(network.state_dict())
                    waited = 0
                evaluated = clock()

        network.load_state_dict(nearest)
    return student, Training(
        minutes=share * minutes,
        steps=steps,
        texts=len(train),
        before=before,
        after=shortest,
        ended="time" if share >= 1 else "no nearer",
        arithmetic="bfloat16" if low else "float32",
    )


def _split(rows: Sequence[Row], rng: random.Random) -> tuple[list[int], list[int]]:
    """Hold some texts out at random; the others are sorted by length, so that little is padded."""
    n_held_out = max(1, min(MOST_HELD, len(rows) // HELD_OUT))
    held_out = sorted(rng.sample(range(len(rows)), n_held_out))
    trained = sorted(set(range(len(rows))).difference(held_out)) or held_out
    return held_out, sorted(trained, key=lambda i: len(rows[i]))


class Lesson:
    """What a smaller model learns: the whole model's outputs of the same texts."""

    def __init__(
        self,
        student: LoadedModel,
        full_model: LoadedModel,
        rows: Sequence[Row],
        known: dict[int, Tensor],
    ) -> None:
        self.student = student
        self._full_model = full_model
        self._rows = rows
        self._known = known
        self._kind = None if full_model.task_head is None else head_outputs(full_model)

    def loss(self, chosen: Sequence[int], low: bool = False) -> Tensor:
        """Return the mean loss of some texts, the student run in bfloat16 if ``low``."""
        expected = self._expected(chosen)
        batch = self._batch(self.student, chosen)
        with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
            outputs = output_of(self.student, batch)
        return loss_of(outputs, expected, self._kind, self._spread).mean()

    @cached_property
    def _spread(self) -> Tensor | None:
        """The spread of the numbers that the whole model's head puts out, over some of the text."""
        if self._kind is not HeadOutputs.NUMBERS:
            return None
        n_texts = min(len(self._rows), MOST_SPREAD)
        evenly = [i * len(self._rows) // n_texts for i in range(n_texts)]
        chosen = sorted(evenly, key=self._length)
        batches = [chosen[first : first + BATCH] for first in range(0, n_texts, BATCH)]
        return spread_of(torch.cat([self._expected(batch) for batch in batches]))

    def _length(self, index: int) -> int:
        return len(self._rows[index])

    def backward(self, chosen: Sequence[int], low: bool) -> None:
        """Add the gradient of the mean loss of some texts of rising length, a few at a time."""
        at_once = max(1, TOKENS // self._length(chosen[-1]))
        for first in range(0, len(chosen), at_once):
            few = chosen[first : first + at_once]
            torch.autograd.backward(self.loss(few, low) * (len(few) / len(chosen)))

    def distance(self, chosen: Sequence[int]) -> float:
        """Return the mean loss of some texts, in float32."""
        total = 0.0
        ordered = sorted(chosen, key=self._length)
        with torch.no_grad():
            for first in range(0, len(ordered), BATCH):
                batch = ordered[first : first + BATCH]
                total += len(batch) * float(self.loss(batch))
        return total / len(chosen)

    def _expected(self, chosen: Sequence[int]) -> Tensor:
        """Return the whole model's outputs; those of one row a text are computed only once."""
        missing = [i for i in chosen if i not in self._known]
        if missing:
            outputs = self._computed(missing)
            if len(outputs) != len(missing):  # several rows a text: as many as there are tokens
                return outputs if len(missing) == len(chosen) else self._computed(chosen)
            self._known.update(zip(missing, outputs, strict=True))
        return torch.stack([self._known[i] for i in chosen])

    def _computed(self, chosen: Sequence[int]) -> Tensor:
        with torch.no_grad():
            return output_of(self._full_model, self._batch(self._full_model, chosen))

    def _batch(self, loaded: LoadedModel, chosen: Sequence[int]) -> Padded:
        return padded([self._rows[i] for i in chosen], loaded.pad_id, loaded.device)


@contextmanager
def _trained(network: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters that are trained, with gradients switched on while the block runs."""
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    parameters = [p for p in network.parameters() if p.is_floating_point() and id(p) not in tables]
    for p in parameters:
        p.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield parameters
    finally:
        for p in parameters:
            p.requires_grad_(False)


def _faster_in_bfloat16(lesson: Lesson, chosen: Sequence[int]) -> bool:
    """Whether a step is clearly faster in bfloat16, as on processors that multiply it."""
    if lesson.student.device != "cpu":
        return False
    seconds: dict[bool, float] = {}
    for low in (False, True):
        with nullcontext() if low else fast_products(lesson.student.network, training=True):
            for _ in range(2):  # the first one compiles products
                start = time.perf_counter()
                lesson.backward(chosen, low)
                seconds[low] = time.perf_counter() - start
    return seconds[True] < _CLEARLY * seconds[False]
