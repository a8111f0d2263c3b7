"""What models answer, read from their outputs: classes, tags, words, embeddings, written texts.

Every function takes the outputs of several *models* (:mod:`.answers`): the full one, the one with
heads off, and those with random sets off; a tensor's first axis is the model. It returns a
:class:`Told`: a list of all answers for the page's table, and the one that the page's sentence is
about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.safe_text import visible
from headscope.data.pieces import tokenise
from headscope.data.readable_pieces import readable_pieces
from headscope.data.token_rows import PairRow, Row
from headscope.live.sentences import Lead, NumberChange
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine

_GUESSES = 3  # Classes or labels, or words for a masked token, that are listed
_NEXT_TOKENS = 5  # Tokens after a text that are listed
_TAGS = 12  # Tagged tokens that are listed
_LONGEST_ANSWER = 30  # Tokens of an answer to a question, as the task has them
_NAMED_TAGS = 3  # Tagged tokens that a sentence names
_NAMED_NUMBERS = 4  # Of several numbers of a regression, those that a sentence names
#: One output, as the page shows it: its ``name``, and its value of the ``full`` model, with heads
#: ``off``, and of the ``random`` sets (smallest and largest; empty if no head is off). The ``unit``
#: of numbers that are drawn as bars is ``probability``; of others it is empty.
Answer = dict[str, str]


class Told(NamedTuple):
    """What the models answer."""

    answers: list[Answer]
    lead: Lead
    of_second: Lead | None = None  # About the second of two texts that are read each on its own


def off_model(n_models: int) -> int:
    """Return the index of the model with heads off; of the full one, 0, if no head is off."""
    return 1 if n_models > 1 else 0


def token_names(model: LoadedModel, ids: Sequence[int]) -> list[str]:
    """Return tokens as a reader may see them, a space as ``␣`` and a new line as ``↵``."""
    pieces = readable_pieces(model.tokenizer, ids)
    return [visible(piece.replace("\n", "\u21b5")) for piece in pieces]


# --- embeddings -----------------------------------------------------------------------------------


def similarities(embedded: Tensor, n_heads: int) -> Told:
    """Compare embeddings (models, texts, width), of each other and with the full model's."""
    cosines = cosine(embedded, embedded[:1])  # [models, texts]
    name = "embedding: cosine to the whole model's"
    if embedded.shape[1] == 1:
        cosines_of_text = cosines[:, 0].tolist()
        subject = "the embedding\u2019s cosine to the whole model\u2019s"
        lead = Lead(
            statement=f"All {n_heads} heads are on", subject=subject, values=cosines_of_text
        )
        return Told([numbers(name, cosines_of_text)], lead)
    similarity = cosine(embedded[:, 0], embedded[:, 1]).tolist()
    answers = [
        numbers("similarity of the two sentences", similarity),
        numbers(f"first {name}", cosines[:, 0].tolist()),
        numbers(f"second {name}", cosines[:, 1].tolist()),
    ]
    statement = f"Similarity {_two_decimals(similarity[0])}"
    return Told(answers, Lead(statement=statement, subject="similarity", values=similarity))


# --- a task head ----------------------------------------------------------------------------------


def classes(model: LoadedModel, logits: Tensor) -> Told:
    """Tell the likeliest classes or labels, or a regression's numbers; (models, outputs)."""
    outputs = head_outputs(model)
    names = label_names(model)
    if outputs is not HeadOutputs.NUMBERS:
        shares = outputs.shares(logits)
        ranking = ranked(shares, lambda i: visible(names.get(i, i)))
        if outputs is HeadOutputs.LABELS:  # each label holds or not, whatever the others do
            return ranking._replace(lead=ranking.lead._replace(after=""))
        return ranking
    columns = logits.T.tolist()
    only_one = len(columns) == 1  # of a cross-encoder, or a regression
    titles = ["score"] if only_one else [visible(names.get(i, i)) for i in range(len(columns))]
    answers = [numbers(title, values) for title, values in zip(titles, columns, strict=True)]
    if only_one:
        (scores,) = columns
        statement = f"The model says: score {_two_decimals(scores[0])}"
        return Told(answers, Lead(statement=statement, subject="score", values=scores))
    return Told(answers, _lead_of_several(titles, logits))


def _lead_of_several(titles: Sequence[str], outputs: Tensor) -> Lead:
    """Lead with the number that changes most of several, (models, outputs).

    Each random set is compared by its own largest change, whichever number that is of: a number
    picked because it changes most would else look special beside random sets.
    """
    full = outputs[0].tolist()
    without = outputs[off_model(len(outputs))].tolist()
    named = [f"{title} {_two_decimals(value)}" for title, value in zip(titles, full, strict=True)]
    n_more = len(named) - _NAMED_NUMBERS
    more = f" and {n_more} more" if n_more > 0 else ""
    return Lead(
        statement=f"The model says: {', '.join(named[:_NAMED_NUMBERS])}{more}",
        subject="the largest change",
        values=(outputs - outputs[:1]).abs().amax(dim=1).tolist(),
        several=list(map(NumberChange, titles, full, without)),
    )


def masked_token(model: LoadedModel, logits: Tensor) -> Told:
    """Tell the likeliest tokens at a mask; (models, vocabulary)."""

    def name(token: int) -> str:
        return token_names(model, [token])[0]

    mask = visible(model.tokenizer.mask_token)
    return ranked(logits.softmax(dim=-1), name, says=f"Likeliest at {mask}:", in_sentence=_word)


def _word(token: str) -> str:
    """Write a token as a word of a sentence: \u201cParis\u201d for ``␣Paris``."""
    return "a space" if token == "␣" else _quoted(token.removeprefix("␣"))


def next_tokens(model: LoadedModel, logits: Tensor) -> Told:
    """Tell the likeliest tokens after each text; (models, texts, vocabulary)."""

    def name(token: int) -> str:
        return token_names(model, [token])[0]

    answers: list[Answer] = []
    leads: list[Lead] = []
    one_text = logits.shape[1] == 1
    for i in range(logits.shape[1]):
        says = "Likeliest next:"
        if not one_text:
            says = ("Likeliest after the first text:", "after the second:")[i]
        shares = logits[:, i].softmax(dim=-1)
        ranking = ranked(shares, name, _NEXT_TOKENS, says=says, in_sentence=_word)
        prefix = "" if one_text else ("first: ", "second: ")[i]
        answers += [
            {**answer, "name": f"{prefix}next {answer['name']}"} for answer in ranking.answers
        ]
        leads.append(ranking.lead)
    return Told(answers, *leads)


def tags(model: LoadedModel, logits: Tensor, row: Row) -> Told:
    """Tell the tags of a text's tokens, and how many change; (models, pos, labels)."""
    names = label_names(model)
    content = list(row.content)
    shares = logits[:, content].softmax(dim=-1)  # [models, tokens, labels]
    chosen = shares.argmax(dim=-1)  # [models, tokens]
    changed = (chosen != chosen[:1]).sum(dim=1).tolist()
    full_tag_shares = shares.gather(2, chosen[:1, :, None].expand(len(shares), -1, -1))[..., 0]

    tokens = token_names(model, [row.ids[position] for position in content])
    full = [visible(names.get(i, i)) for i in chosen[0].tolist()]
    without = [visible(names.get(i, i)) for i in chosen[off_model(len(chosen))].tolist()]
    tagged = list(zip(tokens, full, without, strict=True))
    usual = Counter(full).most_common(1)[0][0]  # in most texts the tag of words that are no name
    telling = [tag for tag in tagged if tag[1] != usual or tag[2] != usual]

    random = [f"{n}" for n in (min(changed[2:]), max(changed[2:]))] if changed[2:] else []
    answers = [
        answer_of(
            "tags that change", "0", str(changed[off_model(len(changed))]), " to ".join(random)
        ),
        numbers(
            "probability of the whole model's tags, mean", full_tag_shares.mean(dim=1).tolist()
        ),
        *(answer_of(token, before, now, "") for token, before, now in telling[:_TAGS]),
    ]
    named = [f"{token} {before}" for token, before, _ in telling if before != usual][:_NAMED_TAGS]
    statement = f"Tags: {', '.join(named)}" if named else f"Every token is tagged {usual}"
    moved = [f"{token} {before} to {now}" for token, before, now in tagged if before != now]
    lead = Lead(
        statement=statement,
        subject=f"tags change ({', '.join(moved[:_NAMED_TAGS])})" if moved else "tags change",
        values=changed,
        counted=len(content),
    )
    return Told(answers, lead)


def spans(model: LoadedModel, logits: Tensor, row: Row, texts: Sequence[str]) -> Told:
    """Tell the likeliest answers to a question; (models, pos, 2) of where one begins and ends.

    An answer is a stretch of the second text, the context, and has the product of two
    probabilities: that it begins at its first token, and ends at its last. Many models mark at the
    first special token that there is none; so it is among the answers here. ``texts`` are the
    question and its context, of which answers are cut out as they were typed.
    """
    question, typed_context = texts
    (encoding,) = tokenise(model, [question], pairs=[typed_context])
    context = [position for position in row.content if position >= (row.second or 0)]
    special = [position for position in range(len(row.ids)) if position not in row.content]
    places = [*special[:1], *context]
    begins, ends = logits[:, places].softmax(dim=1).unbind(dim=-1)  # [models, places] each
    joint = begins[:, :, None] * ends[:, None, :]  # [models, begin, end]
    allowed = torch.ones_like(joint[0]).triu().tril(_LONGEST_ANSWER - 1)
    if special:
        allowed[0, 1:] = 0  # what begins at the special token is no stretch of the context
    shares = (joint * allowed).flatten(1)

    def name(span: int) -> str:
        begin, end = divmod(span, len(places))
        if special and begin == 0:
            return "no answer"
        first_character, _ = encoding.offsets[places[begin]]
        _, stop = encoding.offsets[places[end]]
        return visible(typed_context[first_character:stop]).strip()

    def in_sentence(answer: str) -> str:
        return answer if answer == "no answer" else _quoted(answer)

    return ranked(shares, name, says="The model answers:", in_sentence=in_sentence)


def label_names(model: LoadedModel) -> Mapping[int, str]:
    """Return the names of a head's outputs by their numbers, as far as the model has any."""
    names: Mapping[int, str] = getattr(model.network.config, "id2label", None) or {}
    return names


# --- what an encoder-decoder model writes ---------------------------------------------------------


def written_texts(
    pairs: Sequence[PairRow], written: Sequence[Sequence[str]], logits: Tensor
) -> Told:
    """Tell what was written for each text, and how likely what the full model wrote is.

    ``pairs`` are the texts with what the full model wrote; ``written[model][text]`` are texts of up
    to three models; ``logits`` are (models, texts, pos, vocabulary).
    """
    log_probabilities = F.log_softmax(logits, dim=-1)
    answers: list[Answer] = []
    leads: list[Lead] = []
    for i, pair in enumerate(pairs):
        prefix = "" if len(pairs) == 1 else ("first: ", "second: ")[i]
        texts = [of_model[i] for of_model in written]
        full = texts[0]
        off = texts[off_model(len(texts))]
        random = f"one writes {_quoted(texts[2])}" if len(texts) > 2 else ""
        answers.append(answer_of(f"{prefix}written", full, off, random))

        n_labels = len(pair.labels)
        of_labels = log_probabilities[:, i, range(n_labels), pair.labels]  # [models, n_labels]
        means = of_labels.mean(dim=-1).exp().tolist()  # geometric, of the tokens' probabilities
        name = f"{prefix}the whole model's text, probability of a token"
        answers.append(numbers(name, means))

        writes = "it still writes" if off == full else f"it writes {_quoted(off)} in place of"
        statement = f"It writes {_quoted(full)}"
        if len(pairs) > 1:
            statement = f"{('For the first text it writes', 'for the second')[i]} {_quoted(full)}"
        lead = Lead(
            statement=statement,
            before=f"{writes} {_quoted(full)}, ",
            subject="whose tokens\u2019 mean probability",
            values=means,
        )
        leads.append(lead)
    return Told(answers, *leads)


def _quoted(text: str) -> str:
    """Write a text as it is quoted."""
    return f"\u201c{text}\u201d" if text else "nothing"


# --- answers --------------------------------------------------------------------------------------


def ranked(
    probabilities: Tensor,
    name: Callable[[int], str],
    n_guesses: int = _GUESSES,
    says: str = "The model says:",
    in_sentence: Callable[[str], str] = str,
) -> Told:
    """Tell the likeliest classes or words of the full model and of the one with heads off.

    ``probabilities`` are (models, outputs); ``name`` names an output by its index, and
    ``in_sentence`` writes that name for the sentence, which is about the likeliest one of the full
    model.
    """
    n_listed = min(n_guesses, probabilities.shape[-1])
    likeliest = probabilities[:2].topk(n_listed, dim=-1).indices  # [full and off, n_listed]
    outputs = dict.fromkeys(likeliest.flatten().tolist())  # each once, the full model's first
    answers = []
    for i in outputs:
        answer = numbers(name(i), probabilities[:, i].tolist())
        answers.append({**answer, "unit": "probability"})

    first = int(likeliest[0, 0])
    now = int(likeliest[-1, 0])  # of the model with heads off
    values: list[float] = probabilities[:, first].tolist()
    after = ""
    if now != first:
        share = float(probabilities[off_model(len(values)), now])
        likeliest_now = in_sentence(name(now))
        after = f", and the likeliest becomes {likeliest_now} ({_two_decimals(share)})"
    subject = in_sentence(name(first))
    statement = f"{says} {subject} {_two_decimals(values[0])}"
    return Told(answers, Lead(statement=statement, subject=subject, values=values, after=after))


def answer_of(name: str, full: str, off: str, random: str) -> Answer:
    """Make an answer of texts."""
    return {"name": name, "full": full, "off": off, "random": random, "unit": ""}


def numbers(name: str, values: Sequence[float]) -> Answer:
    """Make an answer of numbers, one for each model: full, heads off, and random sets."""
    full = values[0]
    off = values[off_model(len(values))]
    random_values = values[2:]
    random = f"{min(random_values):.3f} to {max(random_values):.3f}" if random_values else ""
    return answer_of(name, f"{full:.3f}", f"{off:.3f}", random)


def _two_decimals(value: float) -> str:
    return f"{value:.2f}".replace("-", "\u2212")
