"""What is shown of ``explain``: a sentence's way through one head, with the model's own numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headscope.analyses.explain.arrows import arrows
from headscope.analyses.explain.result import ExplainResult, ExplainStep, Matrix
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, model_line, model_name, plural, tiny
from headscope.show.page.parts import Card, Place
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate

#: Matrices of which the terminal shows a corner, and those that are shown in another form.
_CORNERS = {"x", "W_Q", "q", "k", "v", "q rotated", "k rotated", "z", "output", "LayerNorm"}
_CORNERS |= {"layer output"}
_ELSEWHERE = {"sequence scale", "cost", "heads", "z W_O", "x + attention", "mask"}
#: What is counted of a layer, and what its column is called.
_COST = {
    "parameters": "parameters",
    "projections": "FLOPs x W",
    "scores": "FLOPs qk, Pv",
    "exponentials": "exponentials",
}


def blocks(result: ExplainResult) -> Iterator[b.Block]:
    """Show the sentence, why this head, and every step with its check."""
    sentence = visible(result.sentence)
    tokens = [visible(token) for token in result.tokens]
    link = next((head.link for head in result.heads if head.name == result.name), 0.0)
    lead = f"{result.name}{' links the words of this sentence most clearly' * result.chosen}"
    lead += f": each word gives its favourite {link:.2f} more attention than other words give it."
    if result.chosen and link < 0.005:  # what is shown as 0.00
        lead = f"No head links words of this sentence that stand apart; {result.name} is shown."
    yield b.Text(lead, "lead")
    steps = {step.key: step for step in result.steps}
    pattern = _square(result, steps["softmax"].matrix("pattern"), tokens)
    yield replace(pattern, title=f"Attention of {result.name}", on=b.TERMINAL)
    yield b.Text("\n".join([model_line(result).plain, f"Text    {sentence}"]), on=b.TERMINAL)
    yield b.Text(f"The sentence: \u201c{sentence}\u201d", on=b.PAGE)
    yield b.Custom(html=arrows(result, tokens), on=b.PAGE)
    for step in result.steps:
        title, formula, *sentences = _STEPS[step.key](result, step)
        said = [b.Text(formula, "formula"), *map(b.Text, sentences)]
        details = [*said, *_numbers(result, step, tokens)]
        yield b.Details(f"{step.number}. {title}", details, b.VERBOSE | b.PAGE)
    yield from map(b.Text, result.left_out)
    checks = [check for step in result.steps for check in step.checks]
    worst = max(check.max_abs for check in checks)
    yield b.Text(
        f"All {len(checks)} checks against the model passed; largest difference {tiny(worst)}."
    )
    why = f"all {len(result.steps)} steps with their numbers (--head L0H0 shows another head)"
    quoted = shlex.quote(sentence).replace("{", "{{").replace("}", "}}")
    command = f"explain {{}} {quoted} --verbose"
    yield next_step(result, f"{why}:", command)
    shown = (("scores", "scores"), ("mask", "other direction"))
    scores, other = (_square(result, steps[key].matrix(name), tokens) for key, name in shown)
    heads = steps["mix"].matrix("heads")
    shares = b.Series(
        "share",
        heads.rows,
        [100 * (row[0] or 0.0) for row in heads.values],
        "bars",
        [b.ORANGE if name == result.name else b.SKY for name in heads.rows],
    )
    levels = {"even shares": 100 / result.n_heads}
    label = "share of the layer's attention output, %"
    bars = b.Chart("what each head adds", label, "", [shares], levels=levels)
    title = f"{result.name} of {model_name(result)} on one sentence"
    panels: list[b.Chart | b.Matrix] = [scores, pattern, other, bars]
    yield b.Panels(title, panels, "explain", across=2, size=(11.0, 9.5))


def _numbers(result: ExplainResult, step: ExplainStep, tokens: list[str]) -> Iterator[b.Block]:
    """Show a step's tables and matrices, and how far it is from the model's own numbers."""
    if step.key == "weights":
        columns: list[b.Column] = [
            ("matrix", "name", str),
            ("shape", lambda m: " x ".join(map(str, m.shape)), str),
            ("norm", lambda m: step.numbers[f"norm_{m.name}"], 3),
        ]
        yield b.Table(columns, step.matrices)
    if step.key == "heads":
        cost = step.matrix("cost")
        rows = [(f"{name} wide", *values) for name, values in cost.named_rows()]
        places = {title: 1 + cost.columns.index(name) for name, title in _COST.items()}
        columns = [("heads", 0, str), *((title, i, _count) for title, i in places.items())]
        yield b.Table(columns, rows, "What this sentence costs")
    if step.key == "mix":
        columns = [
            ("adds", lambda row: row[0], str),
            ("share", lambda row: f"{row[1][0] or 0.0:z.1%}", str),
            ("length", lambda row: row[1][1], 2),
        ]
        shares = step.matrix("heads").named_rows()
        yield b.Table(columns, shares, "What is added up, as shares of the output")
    for matrix in step.matrices:
        if matrix.columns and matrix.name not in _ELSEWHERE:
            yield _square(result, matrix, tokens)
        elif matrix.name not in _ELSEWHERE:
            names = tokens if matrix.rows else ()
            on = b.BOTH if matrix.name in _CORNERS else b.PAGE
            yield b.Matrix(matrix.name, matrix.values, names, shape=matrix.shape, on=on)
    for check in step.checks:
        yield b.Text(
            f"{check.what}: largest difference {tiny(check.max_abs) if check.max_abs else '0'} "
            f"(tolerance {check.tolerance:.0e})",
            "check",
        )
    if not step.checks:
        yield b.Text("Read from the model; nothing is computed yet.", "soft", b.TERMINAL)


def _square(result: ExplainResult, matrix: Matrix, tokens: list[str]) -> b.Matrix:
    title = matrix.name
    if title == "other direction":
        title = f"If the future were {'seen' if result.causal else 'hidden'}"
    weights = matrix.name in ("pattern", "other direction")
    return b.Matrix(title, matrix.values, tokens, tokens, matrix.shape, weights)


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    """Write a share; a small one that is not zero as below the smallest that is shown."""
    if value is None:
        return "-"
    return "less than 0.1%" if 0 < abs(value) < 0.0005 else f"{value:.1%}"


# --- what is said of each step: its title, its formula, and then sentences ------------------------


def _input(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Input: one row of numbers per token"
    yield "x"
    n = len(result.tokens)
    source = "the embeddings" if result.layer == 0 else f"what layer {result.layer - 1} returns"
    if result.layer_norm == "pre":
        source += ", after a LayerNorm (pre-LN: it stands before each sublayer)"
    yield (
        f"The sentence becomes {n} {plural(n, 'token')}, and each token a row of {result.d_model} "
        f"numbers: x has shape {n} x {result.d_model}. Layer {result.layer} reads {source}."
    )
    added = [visible(t) for t, s in zip(result.tokens, result.special, strict=True) if s]
    if added:
        yield f"The tokenizer added {joined(list(dict.fromkeys(added)))}."


def _weights(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Learned matrices"
    yield "W_Q, W_K, W_V, W_O; b_Q, b_K, b_V, b_O"
    n = step.numbers
    (rows, wide) = step.matrix("W_Q").shape
    yield (
        f"Learned once, the same for every sentence. This head: W_Q {rows} x {wide}, "
        f"{_count(n['parameters_head'])} numbers with W_K, W_V and W_O; all "
        f"{result.n_heads} heads of layer {result.layer}: {_count(n['parameters_layer'])}."
        + ("" if n["biases"] else " This model has no biases here: every b is zero.")
    )
    yield (
        f'Often said: "each head sees a slice of the embedding". No: W_Q has {rows} rows, so '
        f"the head reads all {rows} numbers of each token. Only q, k and v are narrow."
        if n["reads"] == rows
        else "An exception: the maps of this family are cut into groups, so this head reads only "
        f"{_count(n['reads'])} of the {rows} numbers of a token. Heads usually read all."
    )


def _qkv(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Queries, keys and values"
    yield "q = x W_Q + b_Q    k = x W_K + b_K    v = x W_V + b_V"
    yield (
        "A query says what a token looks for, a key what it offers to be found by, a value what it "
        f"hands over: three rows of {result.d_head} numbers for each token."
    )
    if result.positions == "rotated":
        yield (
            "This family then turns q and k by an angle that grows with the position; the scores "
            "are made of the rotated ones."
        )


def _heads(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Split into heads"
    yield "[q of head 0 | q of head 1 | ...] = x [W_Q of head 0 | W_Q of head 1 | ...]"
    width = result.n_heads * result.d_head
    shared = step.numbers["key_heads"]
    yield (
        f"The heads lie side by side in one matrix. x is multiplied once, and the {width} results "
        f"of each token are cut into {result.n_heads} {plural(result.n_heads, 'head')} of "
        f"{result.d_head}: the same numbers as head by head."
    )
    yield (
        f"So the number of heads costs nothing: {width} numbers cut into 1 head or into "
        f"{result.n_heads} need as many parameters and multiplications. Only the exponentials of "
        "the softmax grow."
    )
    if shared != result.n_heads:
        yield (
            f"Here {result.n_heads} heads share {_count(shared)} heads of keys and values, so W_K "
            "and W_V are narrower than W_Q."
        )


def _scores(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Scores"
    yield "scores = q k^T * scale"
    n = step.numbers
    tokens = len(result.tokens)
    d_head = result.d_head
    scale = n["scale"] or 0.0
    root = n["root_d_head"] or 0.0
    formula = (
        f"= 1/sqrt(d_head) = 1/sqrt({d_head})"
        if abs(scale - root) < 1e-6
        else f"in this family (1/sqrt(d_head) would be {root:.4f}; the rest is in its weights, or "
        "it has more terms)"
    )
    yield (
        "One number per pair of tokens: how well the query of the row fits the key of the column. "
        f"The scale is {scale:.4f} {formula}, whatever the length of the sentence: products of "
        f"{d_head} numbers spread by {n['spread_products']:.2f} here, scores by "
        f"{n['spread_scores']:.2f} (standard deviations)."
    )
    if result.positions == "bias":
        yield (
            "This family adds terms by relative position to the scaled products: the matrix "
            '"bias", in the model\'s own numbers.'
        )
    yield (
        f'Often said: "divide by the square root of the sequence length". No: with '
        f"1/sqrt({tokens}) = {n['root_tokens']:.4f} this head would move "
        f"{_percent(n['moved_by_sequence_scale'])} of its weight (entropy "
        f"{n['entropy_sequence_scale']:.2f} instead of {n['entropy']:.2f} bits), and another "
        "amount in a sentence of another length."
    )


def _mask(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Mask"
    yield "scores of hidden keys = -infinity"
    n = step.numbers
    moved = _percent(step.numbers["moved_by_other_direction"])
    if n["pads"]:
        yield (
            f"Sentences of one batch are padded to one length. With {_count(n['pads'])} positions "
            "of padding behind this sentence, the mask leaves them a weight of "
            f"{_percent(n['weight_on_pads'])}; without it they would draw "
            f"{_percent(n['weight_on_pads_without_mask'])}."
        )
    yield (
        "This model hides the future: no token sees a later one. If it could, "
        f"{moved} of the weight would lie elsewhere (below)."
        if result.causal
        else "Nothing else is hidden: each token sees those before and after it. If the future "
        f"were hidden, as in a decoder (below), {moved} of the weight would lie elsewhere."
    )


def _softmax(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Softmax: the pattern"
    yield "pattern = exp(scores) / sum over keys of exp(scores)"
    n = step.numbers
    yield (
        f"Every row sums to 1 (to {tiny(n['row_sum_error'])}). The sum runs over the keys, not "
        f"over the queries: columns sum to anything, here {n['column_sum_low']:.2f} to "
        f"{n['column_sum_high']:.2f}."
    )
    yield (
        f"Entropy {n['entropy']:.2f} bits, mean over rows; spread evenly it would be "
        f"{n['even']:.2f}. The largest weight is {n['strongest']:.2f}."
    )
    yield (
        'Often said: "attention explains the output". It says what a head reads, not what the '
        "output depends on: headscope classify --ablate takes heads out and measures that."
    )


def _z(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Head output z"
    yield "z = pattern v"
    yield (
        "Each token's row of the pattern weighs the values of all tokens: their mean, weighted, is "
        f"its z of {result.d_head} numbers (mean length {step.numbers['length']:.2f})."
    )


def _mix(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Concatenate, and mix by W_O"
    yield "output = [z of head 0 | z of head 1 | ...] W_O + b_O = sum of z W_O + b_O"
    n = step.numbers
    width = result.n_heads * result.d_head
    shares = {name: row[0] for name, row in step.matrix("heads").named_rows()}
    yield (
        f"The heads' z side by side are {width} numbers for each token; W_O mixes them into "
        f"{result.d_model}. Multiplying head by head and adding gives the same, so every head "
        "writes to all numbers of the output: none has a part of its own."
    )
    yield (
        f"{result.name} makes up {_percent(n['share'])} of the output (evenly "
        f"{_percent(n['even_share'])}), b_O {_percent(shares.get('b_O') or 0.0)}. Shares are "
        "projections on the output and add up to 100%; below 0 a head works against the others."
    )
    if "beside attention" in shares:
        yield "This family sends a convolution through W_O as well, beside the heads."


def _skip(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Skip connection"
    yield "y = x + output"
    n = step.numbers
    yield (
        "The layer does not replace its input, it adds to it. Mean length of a token's row: "
        f"{n['length_skip']:.2f} in the input, {n['length_attention']:.2f} in what attention adds, "
        f"{n['length_sum']:.2f} in the sum."
    )


def _layernorm(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "LayerNorm"
    yield "(y - mean) / standard deviation * gain + shift"
    n = step.numbers
    where = (
        "Pre-LN: only what the feed-forward network reads is normalised, the sum itself goes on"
        if result.layer_norm == "pre"
        else "Post-LN: the sum itself is normalised"
    )
    yield (
        f"{where}. Each token on its own: rows spread by {n['spread_before_low']:.2f} to "
        f"{n['spread_before_high']:.2f} before (standard deviation) and by "
        f"{n['spread_after']:.2f} on average after, where the learned gain has acted too."
    )


def _ffn(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    yield "Feed-forward network"
    yield "f(y) = activation(y W_1 + b_1) W_2 + b_2"
    n = step.numbers
    wide = _count(step.numbers["d_ff"])
    weights = result.step("weights")
    attn = (weights.numbers["parameters_layer"] if weights else None) or 1.0
    end = "its skip" if result.layer_norm == "pre" else "its skip and a second LayerNorm"
    yield (
        f"Each token on its own again: {result.d_model} -> {wide} -> {result.d_model} numbers, "
        f"{_count(n['parameters'])} weights ({(n['parameters'] or 0.0) / attn:.1f} times those "
        f"of attention); {_percent(n['active'])} of the {wide} units are above 0. With {end} this "
        f"is the layer's output."
    )


_WRITERS = (
    _input,
    _weights,
    _qkv,
    _heads,
    _scores,
    _mask,
    _softmax,
    _z,
    _mix,
    _skip,
    _layernorm,
    _ffn,
)
_STEPS = {writer.__name__[1:]: writer for writer in _WRITERS}


def _cards(result: ExplainResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: how it spreads its attention on the sentence."""
    for head in result.heads:
        text = f"{head.entropy:.2f} bits (evenly spread {head.even:.2f})"
        yield Card(head.layer, head.head, facts=[("Entropy on the explained sentence", text)])


def _key_numbers(result: ExplainResult) -> Iterator[KeyNumber]:
    """Yield the entropy of the explained head, and of evenly spread attention."""
    softmax = result.step("softmax")
    if softmax is not None:
        entropy, even = (softmax.numbers[name] for name in ("entropy", "even"))
        yield KeyNumber(
            "entropy of the explained head on its sentence, bits",
            f"{decimal(entropy, 2)} ({result.name})",
            f"even {decimal(even, 2)}",
            Estimate(entropy),
        )


VIEW = view(
    "One sentence, step by step",
    blocks,
    {"explain": ExplainResult.to_frame, "explain-heads": ExplainResult.heads_frame},
    page="explain",
    facts=_cards,
    key_numbers=_key_numbers,
)
