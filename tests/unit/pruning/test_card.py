"""The card of a saved folder: what it says is what was measured, and its snippets run.

tests/cli/test_prune_kept.py and test_max_drop.py read the cards of whole runs.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from tiny_models import tiny_bert

import headscope
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.loaded import LoadedModel
from headscope.pruning import result as results
from headscope.pruning.card import model_card, snippets
from headscope.pruning.result import MaxDrop, PruneResult, SpeedResult
from headscope.pruning.sentences import verdict
from headscope.removal.card import hub_task
from headscope.stats.estimate import Estimate

SOURCE_CARD = "---\nlicense: apache-2.0\nlanguage: en\ntags: [x]\n---\n# The full model\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_bert(tmp_path_factory.mktemp("card") / "full")
    (folder / "README.md").write_text(SOURCE_CARD, encoding="utf-8")
    return headscope.load(str(folder))


@pytest.fixture(scope="module")
def result(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> PruneResult:
    return headscope.prune(
        model,
        heads="L0H1,L1H0,L1H3",
        repairs=["none"],
        limit=20,
        save=tmp_path_factory.mktemp("card") / "small",
        command="headscope prune full --heads L0H1,L1H0,L1H3 --save small",
    )


@pytest.fixture
def card(model: LoadedModel, result: PruneResult) -> Any:
    """Write the card of the result with some of its parts replaced."""

    def write(**changes: Any) -> str:
        return model_card(dataclasses.replace(result, **changes), model, sentences=False)

    return write


def args_of(card: str) -> dict[str, Any]:
    """What the header says that the metric's value rests on, beside the value."""
    (metric,) = ModelCard(card).data.to_dict()["model-index"][0]["results"][0]["metrics"]
    return {**metric["args"], "value": metric["value"]}


def test_the_whole_model_stands_beside_the_pruned_one(result, card):
    """Planted: 2 against 3 milliseconds, 1000 against 1500 parameters."""
    assert (Path(result.saved.folder) / "README.md").read_text(encoding="utf-8") == card()
    speed = SpeedResult(Estimate(1.5, 1.4, 1.6), Estimate(2.0, 1.9, 2.1), 8, "cpu", 2, 1500, 1000)
    text = card(speed=speed, baseline=dataclasses.replace(result.baseline, value=Estimate(0.75)))
    point = result.curves[0].points[0]
    for text_of_card in (
        f"Without these 3 of 8 heads: the cosine 0.7500 -> {result.kept.value:.4f};",
        "It is 1.50 [1.40, 1.60] times as fast as the whole model (torch, batches of 8 texts, 2 "
        "threads, cpu), with 33.3% fewer parameters.",
        "| L0 | 3 of 4 | H1 |\n| L1 | 2 of 4 | H0, H3 |",
        "| all 8 heads | 0.7500 |",
        f"| change (paired) | {point.difference.value:+.4f} |",
        f"| this folder, opened again | {result.saved.measured:.4f} |",
        "headscope prune full --heads L0H1,L1H0,L1H3 --save small",
    ):
        assert text_of_card in text
    header = ModelCard(text).data.to_dict()
    assert (header["license"], header["language"]) == ("apache-2.0", "en")
    assert "x" not in header["tags"]
    assert "base_model" not in header  # a folder is no id of the hub
    said = args_of(text)
    assert (said["full_model"], said["value"]) == (0.75, round(result.kept.value, 4))


def test_a_source_card_that_cannot_be_read(model, card):
    path: Path = model.folder / "README.md"
    for source in ("---\n: [\n---\n", "no header", "---\nlicense: 7\n---\n", ""):
        path.write_text(source, encoding="utf-8")
        try:
            assert "license" not in ModelCard(card()).data.to_dict()
        finally:
            path.write_text(SOURCE_CARD, encoding="utf-8")


def test_a_check_that_was_not_run_did_not_fail(card):
    line = "Check that headscope's attention is the model's own: "
    for passed, word in ((True, "passed"), (False, "failed"), (None, "not run")):
        assert f"{line}{word}\n" in card(validation=ValidationSummary(passed))


def test_what_a_search_settled_tested_and_refused_is_told(result, card):
    """How many numbers, on how many examples, and what ended it."""
    looks = tuple(
        results.TestedCount(heads, 0.02, lost, allowed)
        for heads, lost, allowed in ((2, 0.02, True), (3, 0.03, True), (4, 0.0623, False))
    )
    n = result.data.examples
    search = MaxDrop(0.05, 3, "manual", "none", looks, (2, 3, 4, 5), left_out=n - 15)
    text = card(max_drop=search)
    words = (
        "the order of 4 numbers of heads were settled beforehand, without these examples. The "
        f"numbers were tested one after the other, each on the 15 of {n} examples that share no "
        "sentence with what heads were chosen on, up to the first refusal: 4 heads (up to 0.0623, "
        "95%)."
    )
    most_lost = -result.curves[0].points[0].difference.low
    said = verdict(dataclasses.replace(result, max_drop=search))
    assert words in text
    assert words in said
    assert f"at most {most_lost:.4f} of the cosine is lost (95%)" in said
    args = args_of(text)
    assert (args["refused_heads"], args["sequence_of_heads"]) == ([4], [2, 3, 4, 5])
    assert (args["max_drop"], args["examples"], args["difference_level"]) == (0.05, 15, 0.95)


def test_a_classifier_s_snippet_opens_it_with_its_head(result, tmp_path):
    """As it stands; what transformers opens gives the logits that headscope gives."""
    folder = tiny_bert(tmp_path / "full", task_head="classification")
    model = headscope.load(str(folder), task_head="auto")
    small = headscope.remove_heads(model, [(0, 1), (1, 0), (1, 3)])
    headscope.save(small, tmp_path / "small")
    (code,) = snippets(result.saved.opens, model, sentences=False)
    assert "AutoModelForSequenceClassification" in code
    assert "CrossEncoder" in snippets(result.saved.opens, model, sentences=True)[0]
    assert hub_task("fidelity", model) == "text-classification"
    assert hub_task("similarity", model) == "sentence-similarity"
    score = tiny_bert(tmp_path / "score", task_head="classification", num_labels=1)
    reranker = headscope.load(str(score), task_head="auto")
    assert hub_task("similarity", reranker) == hub_task("rerank", reranker) == "text-ranking"
    names: dict[str, Any] = {}
    exec(code.replace("FOLDER", str(tmp_path / "small")), names)
    ids = torch.arange(5, 13)[None]
    with torch.no_grad():
        logits = names["model"].eval()(input_ids=ids).logits
    torch.testing.assert_close(logits, small.run(ids, torch.ones_like(ids))[1])
