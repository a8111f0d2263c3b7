"""Embedders and rerankers built on decoders: folders as they are published, of tiny weights."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_folders as folders
import torch

import headscope
from headscope.analyses.validate.view import VIEW
from headscope.core.errors import CheckpointError, InputError, UnsupportedModelError
from headscope.data.examples import Examples
from headscope.data.token_rows import encode_rows, padded
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import cast
from headscope.tasks.making import make_task

TEXTS = ("the cat sat on the mat", "a dog", "he saw the big red house and she ran to it", "x")
Make = Callable[[Path], Path]
EMBEDDERS: dict[str, tuple[Make, str]] = {
    "Qwen3-Embedding": (folders.as_qwen3_embedding, "decoder"),
    "Qwen3-Embedding of llama": (partial(folders.as_qwen3_embedding, kind="llama"), "decoder"),
    "EmbeddingGemma": (folders.as_embeddinggemma, "encoder"),
    "a llama that sees both sides": (
        partial(folders.as_embeddinggemma, kind="llama", is_causal=False),
        "encoder",
    ),
    "E5-Mistral": (folders.as_e5_mistral, "decoder"),
    "SGPT": (folders.as_sgpt, "decoder"),
    "ModernBERT": (folders.as_modernbert, "encoder"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Make], Path]:
    """Write each folder once."""
    written: dict[int, Path] = {}

    def folder(make: Make) -> Path:
        if id(make) not in written:
            written[id(make)] = make(tmp_path_factory.mktemp("m") / "model")
        return written[id(make)]

    return folder


def package(folder: Path, name: str = "SentenceTransformer") -> Any:
    import sentence_transformers

    headscope.register()
    return getattr(sentence_transformers, name)(str(folder), device="cpu")


def same(actual: Any, expected: Any, within: float = 1e-5) -> None:
    size = np.linalg.norm(np.atleast_2d(expected), axis=-1).min()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=within * size)


@pytest.mark.parametrize("name", EMBEDDERS)
def test_validate_proves_the_embeddings(name, made):
    make, stack = EMBEDDERS[name]
    folder = made(make)
    result = headscope.validate(str(folder))
    assert result.passed, result.reasons
    check = result.embedding
    assert check is not None
    assert check.not_compared is None
    assert check.max_abs is not None
    assert check.max_abs <= 1e-5
    assert check.cut_alike
    assert check.padding_shifts is None
    assert {layer.stack for layer in result.layers} == {stack}


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_site_is_causal_where_no_later_token_changes_a_state(name, made):
    make, stack = EMBEDDERS[name]
    loaded = headscope.load(str(made(make)))
    ids = torch.tensor([[9, 12, 30, 8, 25, 7, 11]])
    other_ids = ids.clone()
    other_ids[0, -1] = 40
    with torch.no_grad():
        first, other = (loaded.forward(x, torch.ones_like(x))[0, -2] for x in (ids, other_ids))
    looks_ahead = bool((first - other).abs().max() > 1e-3)
    assert looks_ahead == (stack == "encoder")
    assert {site.causal for site in loaded.sites} == {not looks_ahead}


@pytest.mark.parametrize("name", ["Qwen3-Embedding", "EmbeddingGemma"])
def test_retrieval_reads_queries_and_documents_after_their_prompts(name, made):
    folder = made(EMBEDDERS[name][0])
    loaded = headscope.load(str(folder))
    examples = Examples("few", "", first=TEXTS[:2], documents=TEXTS, relevance=({0: 1.0}, {2: 1.0}))
    task = make_task("retrieval", examples, loaded)
    by_row: dict[int, np.ndarray] = {}
    for batch in task.batches(loaded):
        with torch.no_grad():
            states = loaded.forward(*batch.inputs[:2])
            embeddings = loaded.pooling.embed(states, batch.attention_mask)
        by_row |= dict(zip(batch.index.tolist(), embeddings.numpy(), strict=True))
    model = package(folder)
    same([by_row[row] for row in task._queries], model.encode_query(list(TEXTS[:2])))
    same([by_row[row] for row in task._documents], model.encode_document(list(TEXTS)))
    assert abs(model.encode_query(TEXTS[0]) - model.encode(TEXTS[0])).max() > 1e-2
    assert "A query is read after the prompt" in task.notes[0]


def test_prompts_that_a_folder_names_otherwise(tmp_path):
    """A passage is a document; a prompt that is not pooled is refused; no name, the default."""
    folder = folders.as_qwen3_embedding(tmp_path / "m", kind="llama")
    settings = folder / "config_sentence_transformers.json"
    folders.changed(settings, prompts={"query": "a ", "passage": "the "})
    pooling = headscope.load(str(folder)).pooling
    assert (pooling.prompt, pooling.query_prompt, pooling.document_prompt) == ("", "a ", "the ")
    folders.changed(folder / "1_Pooling/config.json", include_prompt=False)
    examples = Examples("few", "", first=TEXTS[:2], documents=TEXTS, relevance=({0: 1.0},) * 2)
    loaded = headscope.load(str(folder))
    with pytest.raises(InputError, match="include_prompt"):
        make_task("retrieval", examples, loaded)
    loaded.pooling.check()
    folders.changed(settings, prompts={"s2s": "it "}, default_prompt_name="s2s")
    pooling = headscope.load(str(folder)).pooling
    assert (pooling.prompt, pooling.query_prompt, pooling.document_prompt) == ("it ",) * 3


def test_padding_that_moves_positions_is_told_from_a_difference(tmp_path):
    """GPT-2 counts positions from the padding on the left, so encode depends on the batch."""
    folder = folders.as_sgpt(tmp_path / "m")
    folders.changed(folder / "tokenizer_config.json", padding_side="left")
    result = headscope.validate(str(folder))
    assert result.passed, result.reasons
    assert result.embedding is not None
    assert (result.embedding.padding_shifts or 0) > 1e-2
    assert "set padding_side to right" in " ".join(" ".join(map(str, VIEW.human(result))).split())


@pytest.mark.parametrize("name", ["Qwen3-Embedding", "EmbeddingGemma"])
def test_a_pruned_folder_opens_in_sentence_transformers(name, made, tmp_path):
    pruned = headscope.remove_heads(headscope.load(str(made(EMBEDDERS[name][0]))), [(0, 1), (1, 2)])
    headscope.save(pruned, tmp_path / "small")
    opened = headscope.load(str(tmp_path / "small"))
    expected = package(tmp_path / "small").encode(list(TEXTS))
    for loaded in (pruned, opened):
        ids, mask = loaded.pad(loaded.tokenizer(list(TEXTS))["input_ids"])
        with torch.no_grad():
            same(loaded.pooling.embed(loaded.forward(ids, mask), mask), expected)
    assert opened.tokenizer.padding_side == opened.tokenizer.init_kwargs["padding_side"]


# --- rerankers ------------------------------------------------------------------------------------

PAIRS = tuple(zip(TEXTS, (TEXTS[2], TEXTS[0], "she was on the mat", "it is red"), strict=True))
RERANKERS: dict[str, Make] = {
    "Qwen3-Reranker": folders.as_qwen3_reranker,
    "untied": partial(folders.as_qwen3_reranker, kind="llama", tie_word_embeddings=False),
    "without a template": partial(folders.as_qwen3_reranker, kind="llama", template=None),
}


def scored(loaded: LoadedModel) -> np.ndarray:
    rows = [row for row in encode_rows(loaded, *zip(*PAIRS, strict=True)) if row is not None]
    batch = padded(rows, loaded.pad_id, loaded.device)
    with torch.no_grad():
        _, logits = loaded.run(*batch.inputs)
    assert logits is not None
    return logits[:, 0].numpy()


def predicted(folder: Path) -> np.ndarray:
    """Score pairs by the package, before its activation."""
    model = package(folder, "CrossEncoder")
    return model.predict([list(pair) for pair in PAIRS], activation_fn=torch.nn.Identity())


@pytest.mark.parametrize("name", RERANKERS)
def test_scores_are_those_of_cross_encoder(name, made, tmp_path):
    folder = made(RERANKERS[name])
    loaded = headscope.load(str(folder), task_head="auto")
    assert loaded.task_head == "classification"
    same(scored(loaded), predicted(folder))
    result = headscope.validate(str(folder))
    assert result.passed, result.reasons
    assert result.embedding is not None
    assert result.embedding.scores
    assert (result.embedding.max_abs or 0) <= 1e-5

    # Pruned and saved, it is a sequence classifier with the same scores, for the package too.
    pruned = headscope.remove_heads(loaded, [(0, 0), (1, 3)])
    headscope.save(pruned, tmp_path / "small")
    same(scored(pruned), predicted(tmp_path / "small"))
    same(scored(headscope.load(str(tmp_path / "small"), task_head="auto")), scored(pruned))
    assert abs(scored(pruned) - scored(loaded)).max() > 1e-3


def test_a_folder_that_cross_encoder_itself_saved(made, tmp_path):
    """Of a plain causal model and a tokenizer with a template, as the docs have it."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    plain = tmp_path / "plain"
    shutil.copytree(made(folders.as_qwen3_reranker), plain)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (plain / name).unlink()
    start = Transformer(str(plain), transformer_task="text-generation")
    model = CrossEncoder(modules=[start, LogitScore(30, 31)], device="cpu")
    model.save(str(tmp_path / "saved"), create_model_card=False)
    loaded = headscope.load(str(tmp_path / "saved"), task_head="auto")
    same(scored(loaded), predicted(tmp_path / "saved"))


def test_a_score_of_one_logit(made, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(made(folders.as_qwen3_reranker), folder)
    both = scored(headscope.load(str(folder), task_head="auto"))
    (folder / "1_LogitScore/config.json").write_text('{"true_token_id": 30}')
    one = scored(headscope.load(str(folder), task_head="auto"))
    same(one, predicted(folder))
    assert abs(one - both).max() > 1e-2


def _score(folder: Path, **values: Any) -> None:
    (folder / "1_LogitScore/config.json").write_text(json.dumps(values))


def _module(folder: Path) -> None:
    listed = json.loads((folder / "modules.json").read_text())
    listed.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.Dense"})
    (folder / "modules.json").write_text(json.dumps(listed))


def _ends_in_pad(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("the {{ messages[0].content }} [PAD]")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no token": (_score, "names the tokens None and None"),
    "a name": (lambda f: _score(f, true_token_id="yes"), "names the tokens yes and None"),
    "far": (lambda f: _score(f, true_token_id=9000), "token id 9000"),
    "further module": (_module, "chain of 3 modules"),
    "padding": (_ends_in_pad, "ends every pair in the token that pads"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_reranker_is_refused_in_one_sentence(case, made, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(made(folders.as_qwen3_reranker), folder)
    breaks, said = BROKEN[case]
    breaks(folder)
    with pytest.raises(CheckpointError) as refused:
        headscope.load(str(folder), task_head="auto")
    assert said in str(refused.value)
    assert headscope.load(str(folder)).task_head is None  # measuring attention needs no score


def test_a_template_that_fails_is_refused_as_text_is_read(made, tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(made(folders.as_qwen3_reranker), folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('only user and system') }}")
    with pytest.raises(headscope.HeadscopeError, match="only user and system"):
        headscope.load(str(folder), task_head="auto")


@pytest.mark.parametrize(
    ("kind", "config"),
    [("granite", {"logits_scaling": 4.0}), ("gemma2", {"final_logit_softcapping": 3.0})],
)
def test_logits_that_are_no_linear_map_are_refused(kind, config, tmp_path):
    folder = folders.as_qwen3_reranker(tmp_path / "m", kind=kind, **config)
    with pytest.raises(UnsupportedModelError, match=r"its logits .* by CrossEncoder|no sequence-"):
        headscope.load(str(folder), task_head="auto")


def test_an_embedder_with_a_chat_template_is_refused(tmp_path):
    folder = folders.as_qwen3_embedding(tmp_path / "m", kind="llama")
    message = {"method": "forward", "method_output_name": "last_hidden_state"}
    reading = {"modality_config": {"text": message, "message": message}}
    (folder / "sentence_bert_config.json").write_text(json.dumps(reading))
    with pytest.raises(CheckpointError, match="puts each text into a chat template"):
        headscope.load(str(folder)).pooling.check()


def test_scores_in_half_precision(made):
    folder = made(folders.as_qwen3_reranker)
    loaded = headscope.load(str(folder), task_head="auto", dtype="bfloat16")
    assert loaded.dtype == "bfloat16"
    assert abs(scored(cast(loaded, "float32")) - predicted(folder)).max() < 0.2
