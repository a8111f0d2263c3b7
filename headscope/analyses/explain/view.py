"""What is shown of ``explain``: a sentence's way through one head, with the model's own numbers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter

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
    sentence, tokens = visible(result.sentence), [visible(token) for token in result.tokens]
    link = next((head.link for head in result.heads if head.name == result.name), 0.0)
    chosen = f"{result.name}{' links the words of this sentence most clearly' * result.chosen}"
    chosen += f": each word gives its favourite {link:.2f} more attention than other words give it."
    pattern = next(step for step in result.steps if step.key == "softmax").matrix("pattern")
    yield b.Text(chosen, "lead")
    title = f"Attention of {result.name}"
    yield replace(_square(result, pattern, tokens), title=title, on=b.TERMINAL)
    yield b.Text("\n".join([model_line(result).plain, f"Text    {sentence}"]), on=b.TERMINAL)
    yield b.Text(f"The sentence: \u201c{sentence}\u201d", on=b.PAGE)
    yield b.Custom(html=arrows(result, tokens), on=b.PAGE)
    for step in result.steps:
        title = f"{step.number}. {_STEPS[step.key][0]}"
        yield b.Details(title, list(_step(result, step, tokens)), b.VERBOSE | b.PAGE)
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
    yield _figure(result, tokens)


def _step(result: ExplainResult, step: ExplainStep, tokens: list[str]) -> Iterator[b.Block]:
    _, formula, sentences = _STEPS[step.key]
    yield b.Text(formula, "formula")
    yield from map(b.Text, sentences(result, step))
    if step.key == "weights":
        columns: list[b.Column] = [
            ("matrix", "name", str),
            ("shape", lambda m: " x ".join(map(str, m.shape)), str),
            ("norm", lambda m: step.numbers[f"norm_{m.name}"], 3),
        ]
        yield b.Table(columns, step.matrices)
    if step.key == "heads":
        cost = step.matrix("cost")
        counted = [
            {**dict(zip(cost.columns, values, strict=True)), "heads": f"{name} wide"}
            for name, values in cost.named_rows()
        ]
        columns = [("heads", itemgetter("heads"), str)]
        columns += [(title, itemgetter(name), _count) for name, title in _COST.items()]
        yield b.Table(columns, counted, "What this sentence costs")
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


def _figure(result: ExplainResult, tokens: list[str]) -> b.Panels:
    """The explained head's matrices, queries down and keys across, and the heads' shares."""
    steps = {step.key: step for step in result.steps}
    shown = (("scores", "scores"), ("softmax", "pattern"), ("mask", "other direction"))
    squares = [_square(result, steps[key].matrix(name), tokens) for key, name in shown]
    heads = steps["mix"].matrix("heads")
    shares = b.Series(
        "share",
        heads.rows,
        [100 * (row[0] or 0.0) for row in heads.values],
        "bars",
        [b.ORANGE if name == result.name else b.SKY for name in heads.rows],
    )
    bars = b.Chart(
        "what each head adds",
        "share of the layer's attention output, %",
        "",
        [shares],
        levels={"even shares": 100 / result.n_heads},
    )
    title = f"{result.name} of {model_name(result)} on one sentence"
    return b.Panels(title, [*squares, bars], "explain", across=2, size=(11.0, 9.5))


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    """Write a share; one that is small but not zero is said to be below what is shown."""
    if value is None:
        return "-"
    return "less than 0.1%" if 0 < abs(value) < 0.0005 else f"{value:.1%}"


def _input(result: ExplainResult, step: ExplainStep) -> list[str]:
    n = len(result.tokens)
    source = "the embeddings" if result.layer == 0 else f"what layer {result.layer - 1} returns"
    if result.layer_norm == "pre":
        source += ", after a LayerNorm (pre-LN: it stands before each sublayer)"
    added = [visible(t) for t, s in zip(result.tokens, result.special, strict=True) if s]
    texts = [
        f"The sentence becomes {n} {plural(n, 'token')}, and each token a row of {result.d_model} "
        f"numbers: x has shape {n} x {result.d_model}. Layer {result.layer} reads {source}."
    ]
    if added:
        texts.append(f"The tokenizer added {joined(list(dict.fromkeys(added)))}.")
    return texts


def _weights(result: ExplainResult, step: ExplainStep) -> list[str]:
    n = step.numbers
    rows, wide = step.matrix("W_Q").shape
    texts = [
        f"Learned once, the same for every sentence. This head: W_Q {rows} x {wide}, "
        f"{_count(n['parameters_head'])} numbers with W_K, W_V and W_O; all "
        f"{result.n_heads} heads of layer {result.layer}: {_count(n['parameters_layer'])}."
        + ("" if n["biases"] else " This model has no biases here: every b is zero.")
    ]
    if n["reads"] == rows:
        texts.append(
            f'Often said: "each head sees a slice of the embedding". No: W_Q has {rows} rows, so '
            f"the head reads all {rows} numbers of each token. Only q, k and v are narrow."
        )
    else:
        texts.append(
            f"An exception: the maps of this family are cut into groups, so this head reads only "
            f"{_count(n['reads'])} of the {rows} numbers of a token. Heads usually read all."
        )
    return texts


def _qkv(result: ExplainResult, step: ExplainStep) -> list[str]:
    texts = [
        "A query says what a token looks for, a key what it offers to be found by, a value what it "
        f"hands over: three rows of {result.d_head} numbers for each token."
    ]
    if result.positions == "rotated":
        texts.append(
            "This family then turns q and k by an angle that grows with the position; the scores "
            "are made of the rotated ones."
        )
    return texts


def _heads(result: ExplainResult, step: ExplainStep) -> list[str]:
    width, shared = result.n_heads * result.d_head, step.numbers["key_heads"]
    texts = [
        f"The heads lie side by side in one matrix. x is multiplied once, and the {width} results "
        f"of each token are cut into {result.n_heads} {plural(result.n_heads, 'head')} of "
        f"{result.d_head}: the same numbers as head by head.",
        f"So the number of heads costs nothing: {width} numbers cut into 1 head or into "
        f"{result.n_heads} need as many parameters and multiplications. Only the exponentials of "
        "the softmax grow.",
    ]
    if shared != result.n_heads:
        texts.append(
            f"Here {result.n_heads} heads share {_count(shared)} heads of keys and values, so W_K "
            "and W_V are narrower than W_Q."
        )
    return texts


def _scores(result: ExplainResult, step: ExplainStep) -> list[str]:
    n, tokens, d_head = step.numbers, len(result.tokens), result.d_head
    scale, root = n["scale"] or 0.0, n["root_d_head"] or 0.0
    own = (
        f"= 1/sqrt(d_head) = 1/sqrt({d_head})"
        if abs(scale - root) < 1e-6
        else f"in this family (1/sqrt(d_head) would be {root:.4f}; the rest is in its weights, or "
        "it has more terms)"
    )
    texts = [
        "One number per pair of tokens: how well the query of the row fits the key of the column. "
        f"The scale is {scale:.4f} {own}, whatever the length of the sentence: products of "
        f"{d_head} numbers spread by {n['spread_products']:.2f} here, scores by "
        f"{n['spread_scores']:.2f} (standard deviations)."
    ]
    if result.positions == "bias":
        texts.append(
            "This family adds terms by relative position to the scaled products: the matrix "
            '"bias", in the model\'s own numbers.'
        )
    texts.append(
        f'Often said: "divide by the square root of the sequence length". No: with '
        f"1/sqrt({tokens}) = {n['root_tokens']:.4f} this head would move "
        f"{_percent(n['moved_by_sequence_scale'])} of its weight (entropy "
        f"{n['entropy_sequence_scale']:.2f} instead of {n['entropy']:.2f} bits), and another "
        "amount in a sentence of another length."
    )
    return texts


def _mask(result: ExplainResult, step: ExplainStep) -> list[str]:
    n, texts = step.numbers, []
    if n["pads"]:
        texts.append(
            f"Sentences of one batch are padded to one length. With {_count(n['pads'])} positions "
            "of padding behind this sentence, the mask leaves them a weight of "
            f"{_percent(n['weight_on_pads'])}; without it they would draw "
            f"{_percent(n['weight_on_pads_without_mask'])}."
        )
    moved = _percent(n["moved_by_other_direction"])
    if result.causal:
        texts.append(
            "This model hides the future: no token sees a later one. If it could, "
            f"{moved} of the weight would lie elsewhere (below)."
        )
    else:
        texts.append(
            "Nothing else is hidden: each token sees those before and after it. If the future were "
            f"hidden, as in a decoder (below), {moved} of the weight would lie elsewhere."
        )
    return texts


def _softmax(result: ExplainResult, step: ExplainStep) -> list[str]:
    n = step.numbers
    return [
        f"Every row sums to 1 (to {tiny(n['row_sum_error'])}). The sum runs over the keys, not "
        f"over the queries: columns sum to anything, here {n['column_sum_low']:.2f} to "
        f"{n['column_sum_high']:.2f}.",
        f"Entropy {n['entropy']:.2f} bits, mean over rows; spread evenly it would be "
        f"{n['even']:.2f}. The largest weight is {n['strongest']:.2f}.",
        'Often said: "attention explains the output". It says what a head reads, not what the '
        "output depends on: headscope classify --ablate takes heads out and measures that.",
    ]


def _z(result: ExplainResult, step: ExplainStep) -> list[str]:
    return [
        "Each token's row of the pattern weighs the values of all tokens: their mean, weighted, is "
        f"its z of {result.d_head} numbers (mean length {step.numbers['length']:.2f})."
    ]


def _mix(result: ExplainResult, step: ExplainStep) -> list[str]:
    n, width = step.numbers, result.n_heads * result.d_head
    shares = {name: row[0] for name, row in step.matrix("heads").named_rows()}
    bias = shares.get("b_O") or 0.0
    texts = [
        f"The heads' z side by side are {width} numbers for each token; W_O mixes them into "
        f"{result.d_model}. Multiplying head by head and adding gives the same, so every head "
        "writes to all numbers of the output: none has a part of its own.",
        f"{result.name} makes up {_percent(n['share'])} of the output (evenly "
        f"{_percent(n['even_share'])}), b_O {_percent(bias)}. Shares are projections on the "
        "output and add up to 100%; below 0 a head works against the others.",
    ]
    if "beside attention" in shares:
        texts.append("This family sends a convolution through W_O as well, beside the heads.")
    return texts


def _skip(result: ExplainResult, step: ExplainStep) -> list[str]:
    n = step.numbers
    return [
        "The layer does not replace its input, it adds to it. Mean length of a token's row: "
        f"{n['length_skip']:.2f} in the input, {n['length_attention']:.2f} in what attention adds, "
        f"{n['length_sum']:.2f} in the sum."
    ]


def _layernorm(result: ExplainResult, step: ExplainStep) -> list[str]:
    n = step.numbers
    where = (
        "Pre-LN: only what the feed-forward network reads is normalised, the sum itself goes on"
        if result.layer_norm == "pre"
        else "Post-LN: the sum itself is normalised"
    )
    return [
        f"{where}. Each token on its own: rows spread by {n['spread_before_low']:.2f} to "
        f"{n['spread_before_high']:.2f} before (standard deviation) and by "
        f"{n['spread_after']:.2f} on average after, where the learned gain has acted too."
    ]


def _ffn(result: ExplainResult, step: ExplainStep) -> list[str]:
    n, wide = step.numbers, _count(step.numbers["d_ff"])
    weights = result.step("weights")
    own = (weights.numbers["parameters_layer"] if weights else None) or 1.0
    end = "its skip" if result.layer_norm == "pre" else "its skip and a second LayerNorm"
    return [
        f"Each token on its own again: {result.d_model} -> {wide} -> {result.d_model} numbers, "
        f"{_count(n['parameters'])} weights ({(n['parameters'] or 0.0) / own:.1f} times those of "
        f"attention); {_percent(n['active'])} of the {wide} units are above 0. With {end} this is "
        f"the layer's output."
    ]


def _cards(result: ExplainResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: how it spreads its attention on the sentence."""
    for head in result.heads:
        text = f"{head.entropy:.2f} bits (evenly spread {head.even:.2f})"
        yield Card(head.layer, head.head, facts=[("Entropy on the explained sentence", text)])


def _key_numbers(result: ExplainResult) -> Iterator[KeyNumber]:
    """Yield how the explained head spreads its attention, beside evenly spread attention."""
    softmax = result.step("softmax")
    if softmax is not None:
        entropy, even = (softmax.numbers[name] for name in ("entropy", "even"))
        yield KeyNumber(
            "entropy of the explained head on its sentence, bits",
            f"{decimal(entropy, 2)} ({result.name})",
            f"even {decimal(even, 2)}",
            Estimate(entropy),
        )


#: Title and formula of each step, and what writes its sentences.
_STEPS: dict[str, tuple[str, str, Callable[[ExplainResult, ExplainStep], list[str]]]] = {
    "input": ("Input: one row of numbers per token", "x", _input),
    "weights": ("Learned matrices", "W_Q, W_K, W_V, W_O; b_Q, b_K, b_V, b_O", _weights),
    "qkv": (
        "Queries, keys and values",
        "q = x W_Q + b_Q    k = x W_K + b_K    v = x W_V + b_V",
        _qkv,
    ),
    "heads": (
        "Split into heads",
        "[q of head 0 | q of head 1 | ...] = x [W_Q of head 0 | W_Q of head 1 | ...]",
        _heads,
    ),
    "scores": ("Scores", "scores = q k^T * scale", _scores),
    "mask": ("Mask", "scores of hidden keys = -infinity", _mask),
    "softmax": (
        "Softmax: the pattern",
        "pattern = exp(scores) / sum over keys of exp(scores)",
        _softmax,
    ),
    "z": ("Head output z", "z = pattern v", _z),
    "mix": (
        "Concatenate, and mix by W_O",
        "output = [z of head 0 | z of head 1 | ...] W_O + b_O = sum of z W_O + b_O",
        _mix,
    ),
    "skip": ("Skip connection", "y = x + output", _skip),
    "layernorm": ("LayerNorm", "(y - mean) / standard deviation * gain + shift", _layernorm),
    "ffn": ("Feed-forward network", "f(y) = activation(y W_1 + b_1) W_2 + b_2", _ffn),
}
VIEW = view(
    "One sentence, step by step",
    blocks,
    {"explain": ExplainResult.to_frame, "explain-heads": ExplainResult.heads_frame},
    page="explain",
    facts=_cards,
    key_numbers=_key_numbers,
)
