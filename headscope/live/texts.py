"""What is typed: how the page's fields begin, and how texts become rows of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from headscope.core.errors import InputError
from headscope.core.safe_text import visible
from headscope.data.pieces import frame, tokenise
from headscope.data.token_rows import Row, encode_rows, unended_rows
from headscope.models.run.head_outputs import gives_one_score
from headscope.models.run.loaded import LoadedModel
from headscope.reports.page import LiveField

LONGEST = 64  # Tokens of the longest text whose patterns are readable
#: Task heads that read two texts at once.
_PAIR_HEADS = ("classification", "token-classification", "question-answering")
_LAST_WORDS = 24  # Characters that are shown of where a text would have to end
_BEGUN = "The capital of France is"
_QUESTION = "What is the capital of France?"
_CONTEXT = f"{_BEGUN} Paris, and that of Germany is Berlin."
_NAMES = "Anna Schmidt moved from Paris to Berlin."
#: A word in the scripts of most languages, for models that read no English: the first is taken
#: that a tokenizer knows in full.
_WORDS = ("سلام", "привет", "你好", "こんにちは", "नमस्ते", "שלום", "γεια", "안녕", "hello")


def reads_pairs(model: LoadedModel) -> bool:
    """Whether two texts are read together, as a pair."""
    return model.task_head in _PAIR_HEADS and not model.encoder_decoder


def fields_of(model: LoadedModel, samples: Sequence[str]) -> tuple[LiveField, LiveField]:
    """Name the two fields for what the model does with them, and say what they begin with.

    ``samples`` are sentences to begin with; only embeddings begin with two, to be compared.
    """
    first = samples[0] if samples else ""
    if reads_pairs(model):
        if model.task_head == "question-answering":
            return LiveField("Question", _QUESTION), LiveField("Text with the answer", _CONTEXT)
        if gives_one_score(model):
            label = "Document; left empty, the model reads the first text alone"
            return LiveField("Query, or the only text", _QUESTION), LiveField(label, _CONTEXT)
        if model.task_head == "token-classification":
            first = _NAMES
        second_label = "Second text, if the model was trained on pairs: it reads both as one pair"
        return LiveField("Text", first), LiveField(second_label)
    if model.task_head == "causal":
        return LiveField("Text to continue", _BEGUN), LiveField("Another, continued on its own")
    if model.task_head == "seq2seq":
        # What it reads, and in which language, is not known: only what its tokenizer knows.
        text = _readable(model, [*samples[:1], *_WORDS])
        return LiveField("Source text", text), LiveField("Another source text, on its own")
    mask = getattr(model.tokenizer, "mask_token", None)
    if model.task_head == "mlm" and mask:
        text = f"{_BEGUN} {mask}."
        label = f"Sentence; the model guesses what {visible(mask)} stands for"
        return LiveField(label, text), LiveField("A second sentence")
    second = samples[1] if len(samples) > 1 else ""
    return LiveField("Sentence", first), LiveField("A second sentence, to compare", second)


def _readable(model: LoadedModel, texts: Sequence[str]) -> str:
    """Return the first text whose tokens a model's tokenizer knows, or nothing."""
    unknown = getattr(model.tokenizer, "unk_token_id", None)
    for text, encoding in zip(texts, tokenise(model, texts, check=False), strict=True):
        fits = len(encoding.ids) <= min(LONGEST, model.max_length)
        if fits and unknown not in encoding.ids:
            return text
    return ""


def rows_of(model: LoadedModel, texts: Sequence[str]) -> list[Row]:
    """Tokenise one text or two; two that a task head reads at once become one row.

    Raises InputError for a text without a word, and for one that is too long to be shown.
    """
    for text in texts:
        if not text.strip():
            raise InputError("Type at least one word.")
        if any(0xD800 <= ord(char) < 0xE000 for char in text):  # the range of surrogates
            raise InputError("The text holds half of a character (a lone surrogate).")
    if len(texts) < 2 and model.task_head == "question-answering":
        raise InputError("Type a question, and a text that has the answer.")
    together = len(texts) == 2 and reads_pairs(model)
    first = texts[:1] if together else texts
    second = texts[1:] if together else None
    if model.task_head == "causal":
        encoded = unended_rows(model, texts)
    else:
        encoded = encode_rows(model, first, second)
    rows = []
    for text, row in zip(first, encoded, strict=True):
        if row is None or len(row) > LONGEST:  # None: longer than the model can read
            raise InputError(_too_long(model, text, second))
        if not row.content:
            raise InputError("The tokenizer makes no token of this text.")
        rows.append(row)
    return rows


def _too_long(model: LoadedModel, text: str, second: Sequence[str] | None) -> str:
    """Say how long a text is, or two that are read together, and how much of it fits."""
    (encoding,) = tokenise(model, [text], pairs=second, check=False)
    causal = model.task_head == "causal"
    n_behind = (
        len(frame(model, model.max_length).after) if causal else 0
    )  # tokens that are left off
    length = len(encoding.ids) - n_behind
    most = min(LONGEST, model.max_length)
    if second is not None:
        return f"The two texts have {length:,} tokens together; {most} fit."

    # Where the last token ends that fits beside the special tokens
    n_special = sum(encoding.special_tokens_mask) - n_behind
    spans = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
    token_ends = [stop for (_, stop), special in spans if not special]
    n_characters = token_ends[max(0, most - n_special - 1)]
    last_words = visible(text[max(0, n_characters - _LAST_WORDS) : n_characters].strip())
    return (
        f"The text has {length:,} tokens; {most} fit, which are {n_characters:,} of its "
        f"{len(text):,} characters, up to \u201c\u2026{last_words}\u201d."
    )
