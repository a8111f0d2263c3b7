"""Runs of ``shrink`` on a tiny model: targets, saved folders, other text, and what is refused."""

import copy
import functools
import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import spearmanr
from shrinking_models import clock, outputs
from tiny_models import tiny_bert, write_tiny

import headscope
from headscope.core.errors import ArtefactError, InputError
from headscope.models.surgery.layers import remove_layers
from headscope.shrinking import distil as d
from headscope.shrinking import serving
from headscope.shrinking.view import answer


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Too few rounds for intervals; a clock of training that no other program can slow."""
    monkeypatch.setattr("headscope.removal.times.FEWEST", 4)
    distil = functools.partial(d.distil, clock=clock(0.1))
    monkeypatch.setattr("headscope.shrinking.making.distil", distil)


def shrink(model, lines, **options):
    usual = {
        "data": lines / "judge.txt",
        "text": [lines / "train.txt"],
        "other_text": lines / "other.txt",
        "runtimes": ["torch"],
    }
    return headscope.shrink(model, **(usual | options))


def of_the_size_of(result, model):
    """The whole model without the layers that the chosen one lacks, made another way."""
    removed = {site.layer for site in model.sites}.difference(result.best.layers)
    return remove_layers(model, sorted(removed))


def unseen_lines(lines):
    """Lines of the other text that neither train nor judge."""
    texts = {path.stem: path.read_text().splitlines() for path in lines.iterdir()}
    seen = {*texts["train"], *texts["judge"]}
    return [line for line in texts["other"] if line not in seen]


@pytest.fixture
def _whole_layers_only(monkeypatch):
    """As of a model whose feed-forward networks cannot be taken apart."""
    monkeypatch.setattr("headscope.shrinking.sizes.width_of", lambda model: 0)


@pytest.fixture
def saved(bert, lines, tmp_path, monkeypatch):
    """A model of three layers, trained for some steps and saved."""
    monkeypatch.setattr(d, "SECONDS", 0.1)
    megabytes = 0.8 * serving.megabytes_of(bert)
    result = shrink(bert, lines, mb=megabytes, minutes=0.04, save=tmp_path / "small")
    return result, tmp_path / "small"


def test_a_smaller_model_is_trained_and_saved_and_opened_again(saved):
    result, folder = saved
    best = result.best
    assert result.reached
    assert best.training is not None
    assert len(best.layers) == 3
    assert best.megabytes <= 0.8 * result.whole.megabytes
    assert [path.name for path in folder.parent.iterdir()] == ["small"]
    assert "AutoModel" in (folder / "README.md").read_text()
    assert result.saved.measured == pytest.approx(best.value.value, abs=1e-6)
    again = headscope.load(str(folder))
    assert [site.layer for site in again.sites] == list(best.layers)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    assert result.saved.megabytes == pytest.approx(sum(sizes) / 1e6, abs=0.001)  # signed after
    assert any("sentences to train on" in warning for warning in result.warnings)


def test_where_nothing_is_trained_nothing_is_said_of_training(bert, lines):
    result = shrink(bert, lines, mb=0.6 * serving.megabytes_of(bert), minutes=0)
    assert not any("to train on" in warning for warning in result.warnings)


def test_a_float16_model_is_as_large_as_its_file(bert, lines, tmp_path):
    """In memory it takes twice as much, and a model that was trained does so on the disk."""
    network = copy.deepcopy(bert.network).half()
    network.save_pretrained(tmp_path / "half")
    bert.tokenizer.save_pretrained(tmp_path / "half")
    half = headscope.load(str(tmp_path / "half"))
    result = headscope.shrink(
        half, data=lines / "judge.txt", runtimes=["torch"], limit=20, batch_size=4
    )
    file = (tmp_path / "half" / "model.safetensors").stat().st_size / 1e6
    assert 0.9 * file < result.whole.megabytes <= file  # the rest names the tensors
    assert serving.megabytes_of(half) == pytest.approx(2 * result.whole.megabytes)


def test_a_saved_folder_is_held_against_targets(saved, bert, lines):
    _, folder = saved
    keeps = shrink(bert, lines, text=None, check_folder=folder, max_drop=1.0)
    assert (keeps.reached, len(keeps.models)) == (True, 2)
    misses = shrink(bert, lines, text=None, check_folder=folder, mb=0.01)
    assert not misses.reached
    assert "0.01 MB was asked for" in misses.stopped


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ('"precision": "int8 mixed"', "served by a form that shrink no longer has"),
        ('"precision": "int8"', r"has lost its openvino/openvino_model\.xml"),
    ],
)
def test_a_folder_that_cannot_be_served_as_it_says_is_refused(saved, bert, lines, record, words):
    """Folders of headscope 0.1 may name forms that are gone."""
    _, folder = saved
    manifest = folder / "headscope.json"
    text = manifest.read_text().replace('"runtime": "torch"', '"runtime": "openvino"')
    manifest.write_text(text.replace('"precision": "float32"', record))
    with pytest.raises(InputError, match=words):
        shrink(bert, lines, text=None, check_folder=folder, mb=1.0)


def test_a_folder_that_reads_another_vocabulary_is_refused(saved, bert, lines, tmp_path):
    """Those whose vocabulary headscope 0.1 cut open, but are measured by that version only."""
    _, folder = saved
    other = headscope.load(str(folder))
    other.network.resize_token_embeddings(other.vocab_size + 3)
    other = headscope.wrap(other.network, other.tokenizer, name="other")
    headscope.save(other, tmp_path / "other")
    with pytest.raises(InputError, match=r"has a vocabulary of .* rows and .* one of"):
        shrink(bert, lines, text=None, check_folder=tmp_path / "other", mb=1.0)


def test_an_interrupted_run_returns_what_was_measured_before(bert, lines):
    def interrupt(step, done, total):
        if step == "distilling":
            raise KeyboardInterrupt

    megabytes = 0.8 * serving.megabytes_of(bert)
    with pytest.raises(KeyboardInterrupt) as stopped:
        shrink(bert, lines, mb=megabytes, minutes=0.04, progress=interrupt)
    assert len(stopped.value.result.models) == 1
    assert "interrupted" in stopped.value.result.stopped


@pytest.mark.usefixtures("_whole_layers_only")
def test_text_of_another_kind_and_its_neighbours(bert, lines, monkeypatch):
    monkeypatch.setattr("headscope.shrinking.elsewhere.NEIGHBOURS", 3)
    monkeypatch.setattr("headscope.shrinking.elsewhere.FEWEST_TEXTS", 10)
    result = shrink(bert, lines, mb=0.6 * serving.megabytes_of(bert), minutes=0)
    small = of_the_size_of(result, bert)
    assert len(small.sites) < 3  # the layer that does nothing, and another one, are gone

    unseen = unseen_lines(lines)
    neighbours = []
    for model in (bert, small):
        embeddings = outputs(model, unseen).double().numpy()
        cosines = embeddings @ embeddings.T
        np.fill_diagonal(cosines, -9)  # none is its own neighbour
        neighbours.append(np.argsort(-cosines)[:, :3].tolist())
    shares = [
        len(set(of_whole).intersection(of_small)) / 3
        for of_whole, of_small in zip(*neighbours, strict=True)
    ]
    cosine = (outputs(bert, unseen) * outputs(small, unseen)).sum(-1).mean()
    (elsewhere,) = result.best.elsewhere
    assert elsewhere.texts == len(unseen)
    assert elsewhere.neighbours.value == pytest.approx(np.mean(shares), abs=0.02)
    assert elsewhere.nearness.value == pytest.approx(float(cosine), abs=1e-5)


def same_labels(logits, logits_of_small):
    """The share of texts whose sets of labels above one half are equal."""
    return np.mean(((expit(logits) > 0.5) == (expit(logits_of_small) > 0.5)).all(axis=1))


def rank_correlation(scores, scores_of_small):
    return spearmanr(scores[:, 0], scores_of_small[:, 0])[0]


@pytest.mark.usefixtures("_whole_layers_only")
@pytest.mark.parametrize(
    ("kind", "head", "expected", "words"),
    [
        (
            "labels",
            {"num_labels": 3, "problem_type": "multi_label_classification"},
            same_labels,
            "set of labels",
        ),
        ("scores", {"num_labels": 1}, rank_correlation, "Spearman correlation of the scores"),
    ],
)
def test_the_outputs_of_a_head_on_text_of_another_kind(
    lines, tmp_path, kind, head, expected, words
):
    folder = tiny_bert(tmp_path / "model", layers=4, task_head="classification", **head)
    model = headscope.load(str(folder), task_head="auto")
    result = shrink(model, lines, mb=0.8 * serving.megabytes_of(model), minutes=0)
    small = of_the_size_of(result, model)
    unseen = unseen_lines(lines)
    logits = outputs(model, unseen).double().numpy()
    logits_of_small = outputs(small, unseen).double().numpy()
    nearness = expected(logits, logits_of_small)
    (elsewhere,) = result.best.elsewhere
    assert (elsewhere.of, elsewhere.texts) == (kind, len(unseen))
    assert elsewhere.nearness.value == pytest.approx(nearness, abs=1e-6)
    assert elsewhere.nearness.low < nearness < elsewhere.nearness.high
    assert words in answer(result)


def test_sentences_that_judge_neither_train_nor_calibrate(bert, lines, tmp_path):
    judging = (lines / "judge.txt").read_text()
    mixed = tmp_path / "mixed.txt"
    mixed.write_text((lines / "train.txt").read_text() + judging)
    result = shrink(bert, lines, text=[mixed])
    assert result.dropped == len(set(judging.splitlines()))
    assert (len(result.models), result.chosen, result.saved) == (1, None, None)  # no target
    assert result.whole.speed.value == 1.0
    with pytest.raises(InputError, match="nothing but sentences of the evaluation data"):
        shrink(bert, lines, text=[lines / "judge.txt"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"check_folder": "there", "save": "here"}, "check_folder measures a folder"),
        ({"check_folder": "there"}, "check_folder needs something to hold"),
        ({"check_folder": "nowhere", "mb": 1.0}, "There is no folder nowhere"),
    ],
)
def test_wrong_input(bert, lines, options, words):
    with pytest.raises(InputError, match=words):
        shrink(bert, lines, **options)


def test_a_target_that_nothing_reaches_names_the_nearest_and_keeps_what_was_measured(bert, lines):
    with pytest.raises(ArtefactError, match="Nothing reaches the target: the nearest") as error:
        shrink(bert, lines, mb=0.001)
    assert len(error.value.result.models) == 1
    assert math.isfinite(error.value.result.whole.megabytes)


def test_a_model_that_writes_stays_in_torch_and_is_told_so(tmp_path):
    gpt2 = str(write_tiny(tmp_path / "gpt2", "gpt2"))
    sentences = [f"The cat number {i} sat on the mat ." for i in range(200)]
    data = tmp_path / "data.txt"
    data.write_text("\n".join(sentences[:100]))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences[100:]))
    few = {"task": "lm", "data": data, "text": text, "limit": 8, "validate": False}
    measured = headscope.shrink(gpt2, **few)
    assert [model.form for model in measured.models] == ["torch float32"]
    (why,) = measured.refused
    assert why == "onnxruntime and openvino, since this model writes token by token."
