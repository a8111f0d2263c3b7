"""The model card says what was done, and the hub can read its header."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from tiny_models import tiny_bert

import headscope
from headscope.models.card import CardFacts, model_card
from headscope.models.loaded import LoadedModel
from headscope.results import DropLook, DropPart, MaxDrop, PruneResult, ValidationSummary
from headscope.show.prune.words import verdict

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
        benchmark=True,
        command="headscope prune full --heads L0H1,L1H0,L1H3 --save small",
    )


def card_of(result: PruneResult, model: LoadedModel) -> str:
    measured = result.saved[0].measured
    return model_card(result, model, CardFacts("compact", "import headscope", measured))


def test_header_and_tables(model: LoadedModel, result: PruneResult) -> None:
    text = card_of(result, model)
    header = ModelCard(text).data.to_dict()
    assert (header["license"], header["language"]) == ("apache-2.0", "en")
    assert "headscope" in header["tags"]
    assert "x" not in header["tags"]
    assert "base_model" not in header  # a folder is no id of the hub
    metric = header["model-index"][0]["results"][0]["metrics"][0]
    assert metric["type"] == "cosine"
    assert metric["value"] == pytest.approx(result.saved[0].measured, abs=1e-6)
    point = result.curves[0].points[0]
    row = result.speed.rows[0]
    for line in (
        "| L0 | 3 of 4 | H1 |",
        "| L1 | 2 of 4 | H0, H3 |",
        "headscope prune full --heads L0H1,L1H0,L1H3 --save small",
        f"| change (paired) | {point.difference:+.4f} |",
        f"| this folder, opened again | {result.saved[0].measured:.4f} |",
        f"| {row.batch_size} x {row.length} | torch | {row.full_ms:.1f} |",
    ):
        assert line in text


def test_a_source_card_that_cannot_be_read(model: LoadedModel, result: PruneResult) -> None:
    path: Path = model.folder / "README.md"
    for card in ("---\n: [\n---\n", "no header", "---\nlicense: 7\n---\n", ""):
        path.write_text(card, encoding="utf-8")
        try:
            header = ModelCard(card_of(result, model)).data.to_dict()
        finally:
            path.write_text(SOURCE_CARD, encoding="utf-8")
        assert "license" not in header


def test_a_check_that_was_not_run_did_not_fail(model: LoadedModel, result: PruneResult) -> None:
    line = "Check that headscope's attention is the model's own: "
    for passed, word in ((True, "passed"), (False, "failed"), (None, "not run")):
        said = dataclasses.replace(result, validation=ValidationSummary(passed))
        assert f"{line}{word}\n" in card_of(said, model)


def test_what_a_search_refused_is_told(model: LoadedModel, result: PruneResult) -> None:
    """Number, level and how much might be lost; the chosen number and all that came before."""
    part = DropPart(3, 120, 1.0, 0.98, -0.02, (-0.03, -0.01), 0.975)
    looks = tuple(
        DropLook("fisher", "none", heads, where, 0.05, lost, 0.975, allowed)
        for heads, where, lost, allowed in (
            (6, "choosing", 0.04, True),
            (5, "confirming", 0.0712, False),
            (4, "confirming", 0.0623, False),
            (3, "confirming", 0.03, True),
        )
    )
    found = MaxDrop(
        *(0.05, 3, "fisher", "none", part, part, part, 2, None, looks), measured_on="confirming"
    )
    said = dataclasses.replace(result, max_drop=found)
    text = card_of(said, model)
    assert "Refused before: 5 heads (up to 0.0712, 97.5%), 4 heads (up to 0.0623, 97.5%)." in text
    args = ModelCard(text).data.to_dict()["model-index"][0]["results"][0]["metrics"][0]["args"]
    assert args["refused_heads"] == [5, 4]
    assert (args["max_drop"], args["examples"]) == (0.05, 120)
    headline = verdict(said)
    assert "Refused before: 5 heads (up to 0.0712, 97.5%), 4 heads" in headline
    assert "at most 0.0300 of the cosine is lost (97.5%)" in headline
