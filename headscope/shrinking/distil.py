"""Distillation: a smaller model learns the whole model's own outputs, on text without labels.

The loss of a text is

- without a task head, 1 - cosine to the whole model's embedding;
- for a causal language model, the Kullback-Leibler divergence from the whole model's probabilities
  of each next token;
- for a head of classes or labels, the Kullback-Leibler divergence from the whole model's
  probabilities (summed over independent labels);
- for a head of numbers, such as a score, their squared difference as a share of their variance.

A tenth of the text is held out: the weights with the lowest loss on it are kept, which may be those
from before training. :func:`distil` is the entry point; texts are named by their index among its
``rows``.

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
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.data.token_rows import Padded, Row, padded
from headscope.models.run.head_outputs import HeadOutputs, head_outputs, spread_of
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.models.run.task_heads import InSlices, Select
from headscope.models.run.wrapping import as_before, wrap
from headscope.shrinking.result import Training
from headscope.tasks.positions import SPAN_HEAD, at_masks, one_position

RATE = 6e-4  # Learning rate
BATCH = 64  # Texts of a step
#: A model whose loss is below NEAR has a quarter of the rate: at the full one it first moves away
#: (all-MiniLM-L6-v2 with 3/4 of its neurons, cosine on text of another kind: from 0.975 to 0.971 in
#: 250 steps at the full rate; on a third of that text from 0.973 to 0.978 in 200 at a quarter).
NEAR = 0.05
TOKENS = 1024  # Tokens whose activations are held at once; the gradients of a step add up
HELD_OUT = 10  # One in so many texts is held out, MOST_HELD at most
MOST_HELD = 512
MOST_SPREAD = 256  # Texts over which the variance of a head's numbers is taken, at most
WARM = 50  # Steps until the full learning rate
SECONDS = 30.0  # Between two evaluations on the held-out text
PATIENCE = 4  # Evaluations in a row without progress; one more ends training
#: Steps run in bfloat16 if one takes less than this share of the time of a float32 step.
_CLEARLY = 0.85


def output_of(loaded: LoadedModel, batch: Padded) -> Tensor:
    """Return what is compared of each text: a unit embedding, or the head's logits.

    Shapes: (texts, d_model) without a head, or with one that writes the next token; (texts,
    classes); (tokens, classes) of a head that classifies tokens; (2 * texts, pos) of a head that
    says where an answer begins and ends.
    """

    # In masked texts only the masked tokens are predicted.
    def at_masked(hidden: Tensor) -> Tensor:
        rows, positions = batch.masked
        return hidden[rows, positions][None]

    select: Select | None = at_masked if batch.masked.numel() else None
    if loaded.task_head == "causal":
        # Its logits are not compared, so its head reads one position; ``hidden`` stays whole.
        select = one_position
    hidden, logits = loaded.run(*batch.inputs, **batch.decoder_inputs, select=select)
    if logits is None or loaded.task_head == "causal":
        return F.normalize(loaded.pooling.embed(hidden.float(), batch.hidden_mask), dim=-1)
    if loaded.task_head == SPAN_HEAD:
        # [texts, pos, 2] -> [texts, 2, pos]; an answer never begins or ends in the padding
        padding = ~batch.attention_mask.bool()[..., None]
        logits = logits.masked_fill(padding, -1e4).transpose(1, 2)
    return logits.flatten(0, -2).float()


def loss_of(
    outputs: Tensor, expected: Tensor, kind: HeadOutputs | None, spread: Tensor | None = None
) -> Tensor:
    """Return the loss of each row of :func:`output_of`.

    ``kind`` says what a head puts out, None without a head. ``spread`` (outputs,) is the standard
    deviation of a head's numbers over the text, in units of which they are compared.
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
    in_bfloat16: bool | None = None,
    tell: Callable[[float], object] = lambda share: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[LoadedModel, Training]:
    """Train a copy of ``small`` for some minutes; both models that were given stay as they are.

    Tables of embeddings are not trained: most of their rows are in none of the texts.

    Parameters
    ----------
    small, full_model : LoadedModel
        What is trained, and what it learns from.
    rows : sequence of Row
        The texts, as both models read them.
    minutes : float
        How long training takes; computing the whole model's outputs is part of it.
    seed : int
        Draws the held-out texts and the texts of each step.
    known : dict, optional
        The whole model's outputs by index of the text, to keep from one call to the next; new ones
        are added.
    in_bfloat16 : bool, optional
        Whether steps run in bfloat16; by default both types are timed first.
    tell, clock : callable
        ``tell`` is called with the share of the time that is over; ``clock`` is for tests.

    Returns
    -------
    LoadedModel, Training
        The trained model, and how it came about.
    """
    # what is trained, and on what
    rng = random.Random(seed)
    held_out, train = _split(rows, rng)
    network = copy.deepcopy(small.network)
    # ``wrap`` makes a LoadedModel of the copied network, ``as_before`` gives it the pooling, the
    # folder and the view of a stack that ``small`` has.
    student = as_before(wrap(network, small.tokenizer, name=small.name), small)
    lesson = Lesson(student, full_model, rows, {} if known is None else known)
    with ExitStack() as stack:
        # In the block the linear maps run through oneDNN, which is faster on a CPU.
        stack.enter_context(fast_products(full_model.network))
        parameters = stack.enter_context(_trained(network))

        # the loss before training, the learning rate and the type of steps
        before = lesson.distance(held_out)
        rate = RATE if before > NEAR else RATE / 4
        optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
        if in_bfloat16 is None:
            middling = train[len(train) // 2 :][:BATCH]  # of middling length: sorted by it
            in_bfloat16 = _faster_in_bfloat16(lesson, middling)
        if not in_bfloat16:
            stack.enter_context(fast_products(network, training=True))

        # steps, and now and then a look at the held-out text
        nearest = _Nearest(network, before)
        steps = 0
        share = 0.0  # Of the minutes that is over
        begun = clock()
        evaluated = clock()
        while share < 1 and nearest.n_waited <= PATIENCE:
            warmth = min(1.0, (steps + 1) / WARM)
            for group in optimiser.param_groups:  # rises over the first steps, ends at 0
                group["lr"] = rate * warmth * (1 - share)
            start = rng.randrange(max(1, len(train) - BATCH + 1))
            optimiser.zero_grad()
            lesson.backward(train[start : start + BATCH], in_bfloat16)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            steps += 1
            share = min(1.0, (clock() - begun) / max(60 * minutes, 1e-9))
            tell(share)
            if share >= 1 or clock() - evaluated > SECONDS:
                nearest.compare(lesson.distance(held_out))
                evaluated = clock()

        nearest.restore()
    return student, Training(
        minutes=share * minutes,
        steps=steps,
        texts=len(train),
        before=before,
        after=nearest.distance,
        ended="time" if share >= 1 else "no nearer",
        arithmetic="bfloat16" if in_bfloat16 else "float32",
    )


def _split(rows: Sequence[Row], rng: random.Random) -> tuple[list[int], list[int]]:
    """Hold some texts out at random; the others train, sorted by length so that little is padded.

    Returns the indices of both parts. A single text is in both.
    """
    n_held_out = max(1, min(MOST_HELD, len(rows) // HELD_OUT))
    held_out = sorted(rng.sample(range(len(rows)), n_held_out))
    train = sorted(set(range(len(rows))).difference(held_out)) or held_out
    return held_out, sorted(train, key=lambda i: len(rows[i]))


class _Nearest:
    """The weights of a network with the lowest loss on the held-out text so far."""

    def __init__(self, network: nn.Module, distance: float) -> None:
        self._network = network
        self._weights = copy.deepcopy(network.state_dict())
        self.distance = distance
        self.n_waited = 0  # Evaluations in a row that were no better

    def compare(self, distance: float) -> None:
        """Keep the present weights if their distance, the loss, is lower."""
        self.n_waited += 1
        if distance < self.distance:
            self.distance = distance
            self._weights = copy.deepcopy(self._network.state_dict())
            self.n_waited = 0

    def restore(self) -> None:
        """Give the network those weights."""
        self._network.load_state_dict(self._weights)


class Lesson:
    """The losses of a smaller model, the student, whose targets are the whole model's outputs.

    Texts are named by their index in ``rows``. ``known`` holds the outputs that were computed
    before; new ones are added.
    """

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
        embeds = full_model.task_head in (None, "causal")  # where no next tokens are asked for
        self._kind = None if embeds else head_outputs(full_model)

    def loss(self, chosen: Sequence[int], in_bfloat16: bool = False) -> Tensor:
        """Return the mean loss of some texts; the student may run in bfloat16."""
        # ``before_next``: positions whose next token is predicted; empty but for a causal task.
        if self._rows[chosen[0]].before_next:
            return self._loss_of_next_tokens(chosen, in_bfloat16)
        expected = self._expected(chosen)
        batch = self._batch(self.student, chosen)
        with torch.autocast("cpu", torch.bfloat16) if in_bfloat16 else nullcontext():
            outputs = output_of(self.student, batch)
        return loss_of(outputs, expected, self._kind, self._spread).mean()

    def _loss_of_next_tokens(self, chosen: Sequence[int], in_bfloat16: bool) -> Tensor:
        """Return the mean divergence of next tokens, in slices of positions.

        The logits of all positions may be a hundred times as large as the states. So ``InSlices``
        has the student's head read some positions at a time, calls ``read`` with the logits of each
        slice, and takes the gradient by the states while these are there; the run returns what
        ``read`` returned, (predicted,), in place of logits. That way the head's own weights get no
        gradient: they learn nothing, the layers before them do.
        """
        batch = self._batch(self.student, chosen)
        with torch.no_grad():
            states, _ = self._full_model.run(*batch.inputs, select=one_position)
        full_states = at_masks(batch, states)  # [predicted, d_model], of the whole model

        def read(logits: Tensor, positions: slice) -> Tensor:
            """Compare the student's logits [slice, vocabulary] with the whole model's: [slice]."""
            with torch.no_grad():
                expected = self._full_model.logits_of(full_states[positions])
            return HeadOutputs.CHOICE.distance(expected.float(), logits.float())

        select = InSlices(partial(at_masks, batch), read)
        with torch.autocast("cpu", torch.bfloat16) if in_bfloat16 else nullcontext():
            _, divergences = self.student.run(*batch.inputs, select=select)
        assert divergences is not None  # the student has the whole model's head
        return divergences.mean()

    @cached_property
    def _spread(self) -> Tensor | None:
        """The standard deviation of each number that a head of numbers puts out; else None.

        Of the whole model's head, over some of the text.
        """
        if self._kind is not HeadOutputs.NUMBERS:
            return None
        n_texts = min(len(self._rows), MOST_SPREAD)
        evenly_spread = [i * len(self._rows) // n_texts for i in range(n_texts)]
        by_length = sorted(evenly_spread, key=self._length)
        batches = [by_length[start : start + BATCH] for start in range(0, n_texts, BATCH)]
        return spread_of(torch.cat([self._expected(batch) for batch in batches]))

    def _length(self, index: int) -> int:
        return len(self._rows[index])

    def backward(self, chosen: Sequence[int], in_bfloat16: bool) -> None:
        """Add the gradient of the mean loss of some texts, which are sorted by length.

        A few texts run at a time, to save memory; their gradients add up.
        """
        longest = self._length(chosen[-1])
        n_at_once = max(1, TOKENS // longest)
        for start in range(0, len(chosen), n_at_once):
            few_texts = chosen[start : start + n_at_once]
            share = len(few_texts) / len(chosen)
            torch.autograd.backward(self.loss(few_texts, in_bfloat16) * share)

    def distance(self, chosen: Sequence[int]) -> float:
        """Return the mean loss of some texts, in float32."""
        total = 0.0
        by_length = sorted(chosen, key=self._length)
        with torch.no_grad():
            for start in range(0, len(by_length), BATCH):
                batch = by_length[start : start + BATCH]
                total += len(batch) * float(self.loss(batch))
        return total / len(chosen)

    def _expected(self, chosen: Sequence[int]) -> Tensor:
        """Return the whole model's outputs, as :func:`output_of` gives them.

        Outputs with one row for each text are computed only once. A head that puts out several rows
        for each text, such as one for each token, is run again each time.
        """
        missing = [i for i in chosen if i not in self._known]
        if missing:
            outputs = self._computed(missing)
            one_row_each = len(outputs) == len(missing)
            if not one_row_each:
                return outputs if len(missing) == len(chosen) else self._computed(chosen)
            self._known.update(zip(missing, outputs, strict=True))
        return torch.stack([self._known[i] for i in chosen])

    def _computed(self, chosen: Sequence[int]) -> Tensor:
        """Run the whole model on some texts."""
        with torch.no_grad():
            return output_of(self._full_model, self._batch(self._full_model, chosen))

    def _batch(self, loaded: LoadedModel, chosen: Sequence[int]) -> Padded:
        return padded([self._rows[i] for i in chosen], loaded.pad_id, loaded.device)


@contextmanager
def _trained(network: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters that are trained, with gradients switched on while the block runs."""
    tables = {m.weight for m in network.modules() if isinstance(m, nn.Embedding)}
    parameters = [p for p in network.parameters() if p.is_floating_point() and p not in tables]
    for p in parameters:
        p.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield parameters
    finally:
        for p in parameters:
            p.requires_grad_(False)


def _faster_in_bfloat16(lesson: Lesson, chosen: Sequence[int]) -> bool:
    """Whether a step on some texts is clearly faster in bfloat16, as on CPUs that multiply it."""
    if lesson.student.device != "cpu":
        return False
    seconds: dict[bool, float] = {}
    for in_bfloat16 in (False, True):
        with nullcontext() if in_bfloat16 else fast_products(lesson.student.network, training=True):
            for _ in range(2):  # the second one counts: the first compiles products
                start = time.perf_counter()
                lesson.backward(chosen, in_bfloat16)
                seconds[in_bfloat16] = time.perf_counter() - start
    return seconds[True] < _CLEARLY * seconds[False]
