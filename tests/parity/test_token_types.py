"""Token types are given as transformers reads them, and only where the model's table has rows."""

from typing import Any

import pytest
import torch
from families import tiny
from tiny_models import VOCABULARY, tiny_tokenizer
from tokenizers import processors
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
)

from headscope.core.errors import CorpusError
from headscope.data.examples import Examples
from headscope.data.token_rows import encode_rows, padded
from headscope.live.answers import Answers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.wrapping import wrap
from headscope.tasks.making import make_task

TEXTS = ("the cat sat on the mat", "a dog ran")
OTHERS = ("he saw it", "the big red house")
#: Family, its setting, and whether its model tells two texts apart by their types.
TABLES = (
    ("bert", {}, True),
    ("bert", {"type_vocab_size": 1}, False),
    ("roberta", {"type_vocab_size": 1}, False),
    ("electra", {}, True),
    ("electra", {"type_vocab_size": 1}, False),
    ("albert", {"type_vocab_size": 1}, False),
    ("convbert", {"type_vocab_size": 1}, False),
    ("xlm-roberta-xl", {}, False),
    ("deberta-v2, as v3", {"type_vocab_size": 0}, False),
    ("deberta-v2, as v3", {"type_vocab_size": 2}, True),
    ("distilbert", {}, False),
    ("mpnet", {}, False),
)


def typed_tokenizer(template: str | None = None, pair: str = "") -> Any:
    """A BERT's tokenizer, which gives types, perhaps with types of its own."""
    tokenizer = tiny_tokenizer(max_length=36)
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    if template is not None:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=template, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    return tokenizer


def opened(family: str, auto: Any, tokenizer: Any, **settings: Any) -> LoadedModel:
    more = {"pad_token_id": 0, "vocab_size": len(VOCABULARY), **settings}
    return wrap(tiny(family, auto=auto, **more), tokenizer)


def expected(loaded: LoadedModel, typed: bool, *texts: Any) -> torch.Tensor:
    """Ask plain transformers, with the tokenizer's types or without."""
    inputs = dict(loaded.tokenizer(*texts, padding=True, return_tensors="pt"))
    if not typed:
        del inputs["token_type_ids"]
    with torch.no_grad():
        logits: torch.Tensor = loaded.network(**inputs).logits
    return logits


@pytest.mark.parametrize(("family", "settings", "typed"), TABLES)
def test_a_pair_has_the_types_that_the_table_has_rows_for(family, settings, typed):
    auto = AutoModelForSequenceClassification
    loaded = opened(family, auto, typed_tokenizer(), num_labels=1, **settings)
    rows = [row for row in encode_rows(loaded, TEXTS, OTHERS) if row is not None]
    batch = padded(rows, loaded.pad_id, loaded.device)
    with torch.no_grad():
        logits = loaded.run(*batch.inputs)[1]
    plain = expected(loaded, typed, list(TEXTS), list(OTHERS))
    torch.testing.assert_close(logits, plain, rtol=0, atol=1e-6)
    # As a reranker, and in the live page.
    examples = Examples(
        "made", "0", first=TEXTS, candidates=((0, 1), (0, 1)), documents=OTHERS, relevance=None
    )
    task = make_task("rerank", examples, loaded)
    assert all((row.types is not None) == typed for row in task.rows)
    (answer,) = Answers(loaded)([TEXTS[0], OTHERS[0]], [])["answers"]
    assert float(answer["full"]) == pytest.approx(float(plain[0]), abs=6e-4)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_questions_have_them_too(rows):
    family = "bert" if rows else "deberta-v2, as v3"
    auto = AutoModelForQuestionAnswering
    loaded = opened(family, auto, typed_tokenizer(), type_vocab_size=rows)
    answers = (((4, "cat"),),) * 2
    data = Examples("made", "0", first=OTHERS, second=TEXTS, answers=answers)
    task = make_task("question-answering", data, loaded)
    types = [row.types for row in task.rows]
    of_pairs = [tuple(e.type_ids) for e in loaded.tokenizer(list(OTHERS), list(TEXTS)).encodings]
    assert types == (of_pairs if rows == 2 else [None, None])
    assert task.outputs(loaded)["answer"].shape == (2,)


SINGLE = "[CLS]:0 $A:1 [SEP]:1"


def test_types_of_a_single_text_reach_the_model_in_every_reading():
    """Its states, from which every command starts, and a classifier's logits."""
    tokenizer = typed_tokenizer(SINGLE, pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")
    loaded = opened("bert", AutoModelForSequenceClassification, tokenizer)
    plain = expected(loaded, True, list(TEXTS))
    assert (plain - expected(loaded, False, list(TEXTS))).abs().max() > 1e-2
    rows = [row for row in encode_rows(loaded, TEXTS, None) if row is not None]
    batch = padded(rows, loaded.pad_id, loaded.device)
    with torch.no_grad():
        logits = loaded.run(*batch.inputs)[1]
        unasked = loaded.run(batch.input_ids, batch.attention_mask)[1]
        states = loaded.forward(batch.input_ids, batch.attention_mask)
        inputs = loaded.tokenizer(list(TEXTS), padding=True, return_tensors="pt")
        output = loaded.model(**inputs)
    torch.testing.assert_close(logits, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(unasked, plain, rtol=0, atol=1e-6)
    real = batch.attention_mask.bool()
    torch.testing.assert_close(states[real], output.last_hidden_state[real], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("single", "last"), [("[CLS]:2 $A:0", 1), ("[CLS]:0 $A:0", 2)])
def test_a_type_that_the_table_has_no_row_for_is_refused(single, last):
    tokenizer = typed_tokenizer(single, pair=f"{single} $B:{last}")
    with pytest.raises(CorpusError, match=r"token type 2, but .* types has 2 rows"):
        list(encode_rows(opened("bert", AutoModel, tokenizer), TEXTS, OTHERS))
