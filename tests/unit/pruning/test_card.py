"""The card of a saved folder: what it says is what was measured, and its snippets run."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from tiny_models import tiny_bert

import headscope
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.loaded import LoadedModel
from headscope.pruning import result as results
from headscope.pruning.card import model_card
from headscope.pruning.result import MaxDrop, PruneResult, SpeedResult
from headscope.pruning.sentences import verdict
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
        ablation=False,
        roles=False,
        save=tmp_path_factory.mktemp("card") / "small",
        command="headscope prune full --heads L0H1,L1H0,L1H3 --save small",
    )


def card_of(result: PruneResult, model: LoadedModel) -> str:
    return model_card(result, model, sentences=False)


def args_of(card: str) -> dict[str, Any]:
    """What the header says that the metric's value rests on, beside the value and its type."""
    (metric,) = ModelCard(card).data.to_dict()["model-index"][0]["results"][0]["metrics"]
    return {**metric["args"], "value": metric["value"], "type": metric["type"]}


def test_header_and_tables(model, result):
    text = (Path(result.saved.folder) / "README.md").read_text(encoding="utf-8")
    assert text == card_of(result, model)
    header = ModelCard(text).data.to_dict()
    assert (header["license"], header["language"]) == ("apache-2.0", "en")
    assert "headscope" in header["tags"]
    assert "x" not in header["tags"]
    assert "base_model" not in header  # a folder is no id of the hub
    said = args_of(text)
    assert said["type"] == "cosine"
    assert said["value"] == pytest.approx(result.saved.measured, abs=5.1e-5)
    point, speed = result.curves[0].points[0], result.speed
    assert speed.parameters_full - speed.parameters_pruned == 3 * (4 * 8 * 32 + 3 * 8)
    for line in (
        "| L0 | 3 of 4 | H1 |",
        "| L1 | 2 of 4 | H0, H3 |",
        "headscope prune full --heads L0H1,L1H0,L1H3 --save small",
        f"| change (paired) | {point.difference.value:+.4f} |",
        f"| this folder, opened again | {result.saved.measured:.4f} |",
        f"It is {speed.speed.value:.2f} (",
    ):
        assert line in text


def test_the_whole_model_stands_beside_the_pruned_one(model, result):
    """Planted: 2 against 3 milliseconds, 1000 against 1500 parameters."""
    speed = SpeedResult(Estimate(1.5, 1.4, 1.6), Estimate(2.0, 1.9, 2.1), 8, "cpu", 2, 1500, 1000)
    baseline = dataclasses.replace(result.baseline, value=Estimate(0.75))
    text = card_of(dataclasses.replace(result, speed=speed, baseline=baseline), model)
    assert f"Without these 3 of 8 heads: the cosine 0.7500 -> {result.kept.value:.4f};" in text
    assert (
        "It is 1.50 (1.40 to 1.60) times as fast as the whole model (torch, batches of 8 texts, 2 "
        "threads, cpu), with 33.3% fewer parameters."
    ) in text
    assert "| all 8 heads | 0.7500 |" in text
    assert args_of(text)["full_model"] == 0.75


def test_a_source_card_that_cannot_be_read(model, result):
    path: Path = model.folder / "README.md"
    for card in ("---\n: [\n---\n", "no header", "---\nlicense: 7\n---\n", ""):
        path.write_text(card, encoding="utf-8")
        try:
            header = ModelCard(card_of(result, model)).data.to_dict()
        finally:
            path.write_text(SOURCE_CARD, encoding="utf-8")
        assert "license" not in header


def test_a_check_that_was_not_run_did_not_fail(model, result):
    line = "Check that headscope's attention is the model's own: "
    for passed, word in ((True, "passed"), (False, "failed"), (None, "not run")):
        said = dataclasses.replace(result, validation=ValidationSummary(passed))
        assert f"{line}{word}\n" in card_of(said, model)


def test_what_a_search_settled_tested_and_refused_is_told(model, result):
    """How many numbers, on how many examples, and what ended it."""
    looks = tuple(
        results.TestedCount(heads, 0.02, lost, allowed)
        for heads, lost, allowed in ((2, 0.02, True), (3, 0.03, True), (4, 0.0623, False))
    )
    n = result.data.examples
    search = MaxDrop(0.05, 3, "manual", "none", looks, (2, 3, 4, 5), left_out=n - 15)
    said = dataclasses.replace(result, max_drop=search)
    text = card_of(said, model)
    words = (
        "the order of 4 numbers of heads were settled beforehand, without these examples. The "
        f"numbers were tested one after the other, each on the 15 of {n} examples that share no "
        "sentence with what heads were chosen on, up to the first refusal: 4 heads (up to 0.0623, "
        "95%)."
    )
    assert words in text
    args = args_of(text)
    assert (args["refused_heads"], args["sequence_of_heads"]) == ([4], [2, 3, 4, 5])
    assert (args["max_drop"], args["examples"], args["difference_level"]) == (0.05, 15, 0.95)
    assert words in verdict(said)
    most_lost = -result.curves[0].points[0].difference.low
    assert f"at most {most_lost:.4f} of the cosine is lost (95%)" in verdict(said)


def test_a_classifier_s_snippet_opens_it_with_its_head(tmp_path):
    """Each as it stands; what transformers opens gives the logits that headscope gives."""
    model = headscope.load(
        str(tiny_bert(tmp_path / "full", task_head="classification")), task_head="auto"
    )
    lines = "".join(f"the cat {'sat ' * i}\t{i % 2}\n" for i in range(1, 9))
    (tmp_path / "lines.tsv").write_text(lines, encoding="utf-8")
    headscope.prune(
        model,
        task="classification",
        data=tmp_path / "lines.tsv",
        heads="L0H1",
        save=tmp_path / "small",
    )
    card = (tmp_path / "small" / "README.md").read_text(encoding="utf-8")
    codes = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(codes) == 1
    small = headscope.load(str(tmp_path / "small"), task_head="auto")
    ids = torch.arange(5, 13)[None]
    expected = small.run(ids, torch.ones_like(ids))[1]
    for code in codes:
        names: dict[str, Any] = {}
        exec(code.replace("path/to/this", str(tmp_path / "small")), names)
        opened = names["model"]
        if isinstance(opened, transformers.PreTrainedModel):
            assert "AutoModelForSequenceClassification" in code
            with torch.no_grad():
                torch.testing.assert_close(opened.eval()(input_ids=ids).logits, expected)
        else:
            assert [site.head_ids for site in opened.sites] == [(0, 2, 3), (0, 1, 2, 3)]
