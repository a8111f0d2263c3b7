"""What is shown of ``explain``: a sentence's way through one head, with the model's own numbers.

:func:`blocks` lists everything a person sees, as plain values that the terminal, the page and the
figure files draw (``b`` is :mod:`headscope.show.blocks`). A step knows its own title, formula and
sentences; here its matrices and checks are added.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, median

from headscope.analyses.explain.arrows import arrows
from headscope.analyses.explain.result import ExplainResult, ExplainStep, Matrix, StepCheck
from headscope.analyses.explain.words import counted
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal, model_line, model_name, tiny
from headscope.show.page.parts import Card, Place
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate

#: Matrices that the terminal shows a corner of. All others are for the page alone, but those of
#: tokens by tokens, which both show whole.
_CORNERS = {
    "x",
    "W_Q",
    "q",
    "k",
    "v",
    "q rotated",
    "k rotated",
    "z",
    "output",
    "LayerNorm",
    "layer output",
}
#: Matrices that are shown as a table or a chart, or not at all.
_ELSEWHERE = {"sequence scale", "cost", "heads", "z W_O", "x + attention", "mask"}
#: Places where a head may look whatever the words: by the distance of the key from the query, and
#: by the number of the key from either end.
_DISTANCES = {
    -2: "the token before the previous one",
    -1: "the previous token",
    0: "the token itself",
    1: "the next token",
    2: "the token after the next one",
}
_ENDS = {0: "the first token", -1: "the last token"}
_LEAST_LINK = 0.005  # What is not shown as 0.00
_LINKS = 0.05  # From which on a head is said to link words, though it looks at a place
_MAIN_WEIGHT = 0.5  # Mean weight on a place from which on a head is said to look there
#: Columns of the matrix ``cost``, and their titles in the table.
_COST_TITLES = {
    "parameters": "parameters",
    "projections": "FLOPs x W",
    "scores": "FLOPs qk, Pv",
    "exponentials": "exponentials",
}


def blocks(result: ExplainResult) -> Iterator[b.Block]:
    """Show the sentence, why this head, and every step with its check."""
    sentence = visible(result.sentence)
    tokens = [visible(token) for token in result.tokens]
    steps = {step.key: step for step in result.steps}
    pattern = _square(result, steps["softmax"].matrix("pattern"), tokens)
    yield b.Text(_lead(result), "lead")
    yield b.Text(_control(result), "control")
    yield replace(pattern, title=f"Attention of {result.name}", on=b.TERMINAL)
    yield b.Text(f"{model_line(result).plain}\nText    {sentence}", on=b.TERMINAL)
    yield b.Text(f"The sentence: \u201c{sentence}\u201d", on=b.PAGE)
    yield b.Custom(html=arrows(result, tokens), on=b.PAGE)
    for step in result.steps:
        yield _details(result, step, tokens)
    for reason in result.left_out:
        yield b.Text(reason)
    checks: list[StepCheck] = []
    for step in result.steps:
        checks += step.checks
    worst = max(check.max_abs for check in checks)
    yield b.Text(
        f"All {len(checks)} checks against the model passed; largest difference {tiny(worst)}."
    )
    why = f"all {len(result.steps)} steps with their numbers"
    if result.chosen:
        why += " (--head L0H0 shows another head)"
    # next_step puts the model's name for {}, so braces of the sentence are doubled.
    quoted = shlex.quote(sentence).replace("{", "{{").replace("}", "}}")
    yield next_step(result, f"{why}:", f"explain {{}} {quoted} --verbose")
    yield b.Panels(
        f"What {result.name} of {model_name(result)} does with one sentence",
        [
            _square(result, steps["scores"].matrix("scores"), tokens),
            pattern,
            _square(result, steps["mask"].matrix("other direction"), tokens),
            _shares_chart(result, steps["mix"].matrix("heads")),
        ],
        "explain",
        across=2,
        size=(11.0, 9.5),
    )


def _lead(result: ExplainResult) -> str:
    """Say why this head is shown, and how clearly it links the sentence's words."""
    link = next((head.link for head in result.heads if head.name == result.name), 0.0)
    if result.chosen and link < _LEAST_LINK:
        return f"No head links words of this sentence that stand apart; {result.name} is shown."
    words = f"each word gives its favourite {link:.2f} more attention than other words give it."
    if result.chosen:
        return f"{result.name} links the words of this sentence most clearly: {words}"
    place = _main_place(result)
    if place is None:
        return f"{result.name}: {words}"
    where, weight = place
    text = (
        f"{result.name} looks at {where}: {weight:.0%} of a token's attention lies there, on "
        "average over this sentence"
    )
    return f"{text}. Of words, {words}" if link >= _LINKS else f"{text}, whatever its words."


def _control(result: ExplainResult) -> str:
    """Say what the numbers of the lead are for other heads, and for attention spread evenly.

    Empty where the lead has no number.
    """
    shown = next(head for head in result.heads if head.name == result.name)
    others = [head for head in result.heads if head is not shown]
    sentences: list[str] = []
    looks_at_place = not result.chosen and _main_place(result) is not None
    if looks_at_place:
        even_weight = 2**-shown.even  # ``even`` is the entropy in bits
        sentences.append(
            f"Spread evenly, a token's attention to any one place is about {even_weight:.0%}."
        )
    least_link = _LINKS if looks_at_place else _LEAST_LINK
    if others and shown.link >= least_link:
        middle = median(head.link for head in others)
        most = max(others, key=lambda head: head.link)
        sentences.append(
            f"In the model's other {len(others)} heads that is {middle:.2f} at the median and "
            f"{most.link:.2f} at most ({most.name})."
        )
    return " ".join(sentences)


def _main_place(result: ExplainResult) -> tuple[str, float] | None:
    """Say where a head looks whatever the words, and with which weight; None if at no such place.

    The places are the tokens at some distance, the first token and the last. A weight is the mean
    over the tokens that have such a place elsewhere in the sentence.
    """
    pattern = result.patterns[result.name]
    n = len(pattern)
    weights: dict[str, list[float]] = {}
    for query, row in enumerate(pattern):
        for key, weight in enumerate(row):
            names = [_DISTANCES.get(key - query), _ENDS.get(key), _ENDS.get(key - n)]
            is_elsewhere = key != query
            for name in names:
                if name is not None and (is_elsewhere or name == _DISTANCES[0]):
                    weights.setdefault(name, []).append(weight or 0.0)
    means = {name: fmean(values) for name, values in weights.items() if 2 * len(values) >= n}
    best = max(means, key=lambda name: means[name], default=None)
    if best is None or means[best] < _MAIN_WEIGHT:
        return None
    return best, means[best]


def _shares_chart(result: ExplainResult, heads: Matrix) -> b.Chart:
    """Draw what each head adds to the layer's output, the explained head in another colour.

    ``heads`` has a row for each head: its share of the output, and its size.
    """
    percents = [100 * (share or 0.0) for share, _ in heads.values]
    colours = [b.ORANGE if name == result.name else b.SKY for name in heads.rows]
    return b.Chart(
        title="what each head adds",
        x="share of the layer's attention output, %",
        y="",
        series=[b.Series("share", x=heads.rows, y=percents, kind="bars", colour=colours)],
        levels={"even shares": 100 / result.n_heads},
    )


# --- one step -------------------------------------------------------------------------------------


def _details(result: ExplainResult, step: ExplainStep, tokens: list[str]) -> b.Details:
    """Show a step: its formula, what is said of it, its numbers and its checks."""
    # Imported here, as the steps need torch, which comparing two results does without.
    from headscope.analyses.explain.steps.table import STEPS

    step_kind = STEPS[step.key]
    shown: list[b.Block] = [b.Text(step_kind.formula, "formula")]
    shown += [b.Text(sentence) for sentence in step_kind.words(result, step)]
    table = _TABLES.get(step.key)
    if table is not None:
        shown.append(table(step))
    shown += _matrices(result, step, tokens)
    shown += _checks(step)
    return b.Details(f"{step.number}. {step_kind.title}", shown, b.VERBOSE | b.PAGE)


def _weights_table(step: ExplainStep) -> b.Table:
    """Show the shape and the norm of every learned matrix."""
    # Of each column: its title, where a matrix has its value, and how the value is written.
    columns: list[b.Column] = [
        ("matrix", "name", str),
        ("shape", lambda matrix: " x ".join(map(str, matrix.shape)), str),
        ("norm", lambda matrix: step.numbers[f"norm_{matrix.name}"], 3),
    ]
    return b.Table(columns, step.matrices)


def _cost_table(step: ExplainStep) -> b.Table:
    """Show what the sentence costs with other numbers of heads."""
    cost = step.matrix("cost")
    rows = [(f"{name} wide", *values) for name, values in cost.named_rows()]
    columns: list[b.Column] = [("heads", 0, str)]
    for name, title in _COST_TITLES.items():
        index = 1 + cost.columns.index(name)  # behind the name of the row
        columns.append((title, index, counted))
    return b.Table(columns, rows, "What this sentence costs")


def _added_table(step: ExplainStep) -> b.Table:
    """Show the share and the length of everything that makes up the layer's output."""
    rows = []
    for name, (share, length) in step.matrix("heads").named_rows():
        rows.append((name, f"{share or 0.0:z.1%}", length))
    columns: list[b.Column] = [("adds", 0, str), ("share", 1, str), ("length", 2, 2)]
    return b.Table(columns, rows, "What is added up, as shares of the output")


#: The steps that have numbers which read better as a table than as a matrix.
_TABLES = {"weights": _weights_table, "heads": _cost_table, "mix": _added_table}


def _matrices(result: ExplainResult, step: ExplainStep, tokens: list[str]) -> Iterator[b.Block]:
    """Show the matrices of a step: tokens by tokens, or a row of numbers a token."""
    for matrix in step.matrices:
        if matrix.name in _ELSEWHERE:
            continue
        if matrix.columns:  # tokens
            yield _square(result, matrix, tokens)
        else:
            yield b.Matrix(
                matrix.name,
                matrix.values,
                rows=tokens if matrix.rows else (),
                shape=matrix.shape,
                on=b.BOTH if matrix.name in _CORNERS else b.PAGE,
            )


def _checks(step: ExplainStep) -> Iterator[b.Block]:
    """Say how far a step is from the model's own numbers."""
    for check in step.checks:
        difference = tiny(check.max_abs) if check.max_abs else "0"
        yield b.Text(
            f"{check.what}: largest difference {difference} (tolerance {check.tolerance:.0e})",
            "check",
        )
    if not step.checks:
        yield b.Text("Read from the model; nothing is computed yet.", "soft", b.TERMINAL)


def _square(result: ExplainResult, matrix: Matrix, tokens: list[str]) -> b.Matrix:
    """Show a matrix of tokens by tokens."""
    title = matrix.name
    if title == "other direction":
        seen = "seen" if result.causal else "hidden"
        title = f"If the future were {seen}"
    return b.Matrix(
        title=title,
        values=matrix.values,
        rows=tokens,
        columns=tokens,
        shape=matrix.shape,
        weights=matrix.name in ("pattern", "other direction"),
    )


# --- the report's page ----------------------------------------------------------------------------


def _cards(result: ExplainResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: how it spreads its attention on the sentence."""
    for head in result.heads:
        text = f"{head.entropy:.2f} bits (evenly spread {head.even:.2f})"
        yield Card(head.layer, head.head, facts=[("Entropy on the explained sentence", text)])


def _key_numbers(result: ExplainResult) -> Iterator[KeyNumber]:
    """Yield the entropy of the explained head, and of evenly spread attention."""
    softmax = result.step("softmax")
    if softmax is not None:
        entropy = softmax.numbers["entropy"]
        even = softmax.numbers["even"]
        yield KeyNumber(
            "entropy of the explained head on its sentence, bits",
            f"{decimal(entropy, 2)} ({result.name})",
            f"even {decimal(even, 2)}",
            Estimate(entropy),
        )


VIEW = view(
    "What happens to one sentence, step by step?",
    blocks,
    {"explain": ExplainResult.to_frame, "explain-heads": ExplainResult.heads_frame},
    page="explain",
    cards=_cards,
    key_numbers=_key_numbers,
    term="explain",
)
