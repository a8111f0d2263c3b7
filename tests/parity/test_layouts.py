"""Folders as the hub, older tools and users leave them are read as the plain folder is.

Each layout of tests/layouts.py is opened once and has the plain folder's states, from
which every command starts; one goes through classify, prune, attribute and a short report. What
cannot be read is refused with one sentence.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layouts as made
import numpy as np
import pytest
import torch

import headscope
from headscope.core.errors import CheckpointError, CorpusError
from headscope.models.certificate import certificate
from headscope.models.load.source import demo_folder
from headscope.models.run.loaded import LoadedModel, fingerprint
from headscope.session.opening import open_for_tasks

Numbers = dict[str, np.ndarray]
LINES = [
    "The old cat sat on the mat.",
    "A dog ran to the red house because it had seen the cat.",
    "Nobody had read the letters before they were sold.",
    "Rain again.",
    "In March the committee will publish its report on the bridge.",
    "She said so.",
]


@pytest.fixture(scope="module", autouse=True)
def _certified_once() -> Iterator[None]:
    """The certificate of equal weights, read by an equal vocabulary, is made once."""
    prove, done = certificate._validate, dict[Any, Any]()

    def proven_once(loaded: LoadedModel) -> Any:
        scales = tuple(site.scale for site in loaded.sites)
        key = (fingerprint(loaded.network), len(loaded.tokenizer), scales)
        if key not in done:
            done[key] = prove(loaded)
        return done[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "_validate", proven_once)
        yield


def opened(folder: Path | str) -> LoadedModel:
    return headscope.load(str(folder), task_head="auto")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def states(loaded: LoadedModel) -> torch.Tensor:
    """The last states of some lines, from which every command starts."""
    ids, mask = loaded.pad(loaded.tokenizer([line.lower() for line in LINES])["input_ids"])
    with torch.no_grad():
        return loaded.forward(ids, mask)[mask.bool()]


def numbers(loaded: LoadedModel, lines: Path) -> Numbers:
    """What the commands say of a model, as arrays."""
    found: Numbers = {}
    heads = headscope.classify(loaded, lines, control=False).to_frame()
    found["classify"] = heads.select_dtypes("number").to_numpy(float)
    settings = {"spectrum": {"length": 12, "sequences": 2, "control": False}}
    report = headscope.report(loaded, only=["spectrum"], settings=settings)
    assert report.spectrum is not None
    found["report"] = report.spectrum.to_frame().select_dtypes("number").to_numpy(float)
    curve = headscope.prune(
        loaded, data=lines, heads="L0H1,L2H3,L5H0", roles=False, ablation=False
    ).curves[0]
    found["prune"] = np.array([point.value.value for point in curve.points])
    found["attribute"] = attributed(loaded, lines)
    return found


def attributed(loaded: LoadedModel, lines: Path) -> np.ndarray:
    parts = headscope.attribute(loaded, "A cat.", "A dog.", calibration=lines).to_frame()
    found: np.ndarray = parts[["direct", "removed", "removed_mean"]].to_numpy(float)
    return found


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    return states(opened(demo_folder()))


@pytest.mark.parametrize("name", made.SAME)
def test_a_layout_has_the_states_of_the_plain_folder(name, plain, tmp_path):
    layout = made.SAME[name]
    folder = made.plain(tmp_path / "model")
    layout.change(folder)
    loaded = opened(folder)
    assert (loaded.task_head, str(loaded.pooling)) == (layout.head, layout.pooling)
    assert layout.remarks == len(loaded.remarks), loaded.remarks
    if layout.compared or layout.says:
        result = headscope.validate(loaded)
        assert result.passed, result.reasons
        assert result.embedding is not None
        said = " ".join((*loaded.remarks, *result.embedding.settings))
        for words in layout.says:
            assert words in said
    if layout.compared:
        assert result.embedding.not_compared is None
        assert result.embedding.max_abs <= 1e-6
        assert result.embedding.cut_alike
    expected = plain
    if layout.rounded is not None:
        reference = opened(demo_folder())
        for parameter in reference.network.parameters():
            parameter.data = parameter.data.to(layout.rounded).float()
        expected = states(reference)
    assert torch.equal(states(loaded), expected)


def test_commands_have_the_numbers_of_the_plain_folder(lines, tmp_path):
    """Of one with other names in its weights, and half of a head."""
    expected, folder = numbers(opened(demo_folder()), lines), made.plain(tmp_path / "model")
    made.SAME["half a head"].change(folder)
    for command, values in numbers(opened(folder), lines).items():
        np.testing.assert_array_equal(values, expected[command], err_msg=command)


@pytest.mark.parametrize("name", made.REFUSED)
def test_a_layout_is_refused_with_its_mend(name, tmp_path):
    change, words = made.REFUSED[name]
    folder = made.plain(tmp_path / "model")
    change(folder)
    with pytest.raises(CheckpointError) as refused:
        opened(folder)
    said = str(refused.value)
    assert said.count(". ") <= 1
    assert "\n" not in said
    for word in (str(folder), *words):
        assert word in said


def test_a_model_of_the_hubs_cache_by_its_id_and_by_its_path(plain, tmp_path, monkeypatch):
    snapshot = made.hub_cache(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    by_id = opened("org/demo")
    assert (by_id.revision, by_id.folder) == (snapshot.name, snapshot)
    for loaded in (by_id, opened(f"{snapshot}/")):
        assert str(loaded.pooling) == "mean, normalize"
        assert torch.equal(states(loaded), plain)


def test_what_names_no_row_of_the_embedding_is_refused_where_a_text_has_it(plain, tmp_path):
    folder = made.plain(tmp_path / "model")
    made.one_more_token(folder)
    loaded = opened(folder)
    assert torch.equal(states(loaded), plain)
    with pytest.raises(CorpusError, match=r"token id 30522, but .* has 30522 rows"):
        headscope.attribute(loaded, "The [NEW] cat sat.", "A dog ran.")


def test_the_heads_of_a_cross_encoder_and_its_activation(plain, lines, tmp_path):
    """One label: the logit is compared and ranked by, whatever activation comes after it."""
    found = []
    for i, values in enumerate(made.ACTIVATIONS):
        folder = made.plain(tmp_path / str(i))
        made.cross_encoder(**values)(folder)
        loaded = opened(folder)
        assert (loaded.task_head, loaded.network.config.num_labels) == ("classification", 1)
        assert ("puts Sigmoid after the logits" in " ".join(loaded.remarks)) == bool(i)
        assert torch.equal(states(loaded), plain)
        found.append(attributed(loaded, lines))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining"])
def test_a_whole_head_is_read(head, tmp_path):
    """As bert-base-uncased stores it, whatever class config.json names."""
    folder = made.plain(tmp_path / "model")
    change = made.prefixed("bert.", more=made.head_of_mlm())
    made.tensors(lambda t: made.old_names(change(t)), architectures=[f"Bert{head}"])(folder)
    assert opened(folder).task_head == ("mlm" if head == "ForMaskedLM" else None)
    assert open_for_tasks(str(folder), task="mlm").task_head == "mlm"
    network = headscope.load(str(folder), task_head="mlm").network
    bias = made.head_of_mlm()["cls.predictions.bias"]
    assert torch.equal(network.get_output_embeddings().bias, bias)


def test_layer_norm_after_pooling_and_an_embedding_that_differs(tmp_path, monkeypatch):
    """The embedding is that of sentence-transformers; another one fails validate."""
    folder = made.plain(tmp_path / "model")
    made.with_norm(folder)
    loaded = opened(folder)
    assert str(loaded.pooling) == "mean, layer norm"
    check = headscope.validate(loaded).embedding
    assert check is not None
    assert check.max_abs is not None
    assert check.max_abs < 1e-6
    assert check.texts == 6
    object.__setattr__(loaded.pooling.steps[0], "weight", loaded.pooling.steps[0].weight + 1e-4)
    failed = headscope.validate(loaded)
    assert not failed.passed
    assert failed.reasons[0].startswith("embeddings differ from those of SentenceTransformer")
    monkeypatch.setattr("headscope.artefacts.sentence_transformers.find_spec", lambda name: None)
    without = headscope.validate(loaded)
    assert without.passed
    assert "sentence-transformers is not installed" in str(without.embedding)
