"""What the sections of a report have in common is done once, and changes none of them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import InputError
from headscope.core.serialise import to_dict
from headscope.models.run import fingerprints
from headscope.models.run.loaded import LoadedModel
from headscope.reports import run, sections
from headscope.session.opening import open_for_tasks

SETTINGS: dict[str, dict[str, Any]] = {
    "classify": {"limit": 8, "ablate": False, "prefix_matching": False},
    "rank": {"limit": 4, "control_seeds": 2},
    "flow": {"limit": 8},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_bert(tmp_path_factory.mktemp("models") / "bert"))


def plain(result: Any) -> dict[str, Any]:
    """A result as plain values, without when and by which command it was made."""
    values = to_dict(result)
    del values["provenance"]["created"]
    del values["provenance"]["command"]
    return values


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Count the calls of a function."""
    calls: list[Any] = []
    function = getattr(module, name)

    def wrapper(*args: Any) -> Any:
        calls.append(args)
        return function(*args)

    monkeypatch.setattr(module, name, wrapper)
    return calls


def test_sections_share_the_checksum_and_find_what_they_find_alone(folder, monkeypatch):
    loaded = headscope.load(folder)
    taken = counted(monkeypatch, fingerprints, "_all_checksums")
    report = headscope.report(loaded, only=["validate", *SETTINGS], settings=SETTINGS)
    # One each for certificate, all sections, and the whole.
    assert sum(network is loaded.network for (network,) in taken) == 3
    for name, table in SETTINGS.items():
        kind = getattr(headscope, name).options
        alone = getattr(headscope, name)(loaded, **{**kind.report_defaults(), **table})
        assert plain(getattr(report, name)) == plain(alone), name


def test_depth_has_the_model_alone_in_memory_and_gives_it_back(folder, monkeypatch):
    """It computes in float64: beside the model itself that would be three times its weights."""
    opened: list[LoadedModel] = []
    held: list[int] = []

    def open_model(*args: Any, **options: Any) -> LoadedModel:
        opened.append(open_for_tasks(*args, **options))
        return opened[0]

    def note_held(step: str, done: int, total: int) -> None:
        held.append(sum(weight.nbytes for weight in opened[0].network.parameters()))

    monkeypatch.setattr(run, "open_for_tasks", open_model)
    table = {"length": 16, "sequences": 2, "control": False}
    options = {"only": ["depth", "rank"], "settings": {**SETTINGS, "depth": table}}
    report = headscope.report(folder, progress=note_held, **options)
    assert min(held) == 0 < max(held)
    in_memory = headscope.report(headscope.load(folder), **options)
    for name in ("depth", "rank"):
        assert plain(getattr(report, name)) == plain(getattr(in_memory, name)), name


def test_a_folder_that_changes_under_a_report_is_noticed(folder, tmp_path):
    copied = Path(shutil.copytree(folder, tmp_path / "bert"))

    def change(step: str, done: int, total: int) -> None:
        weights = load_file(copied / "model.safetensors")
        save_file(
            {key: 2 * weight for key, weight in weights.items()}, copied / "model.safetensors"
        )

    table = {"length": 16, "sequences": 2, "control": False}
    with pytest.raises(InputError, match="have changed since the report began"):
        headscope.report(copied, only=["depth"], settings={"depth": table}, progress=change)


def test_weights_that_change_under_a_report_are_noticed(folder):
    loaded = headscope.load(folder)

    def change(step: str, done: int, total: int) -> None:
        loaded.network.embeddings.word_embeddings.weight.data[5] += 1.0

    report = headscope.report(loaded, only=["rank"], settings=SETTINGS, progress=change)
    assert report.provenance["model"]["weights_sha256"] is None


def test_a_report_of_many_heads_removes_them_only_where_that_is_asked_for(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 200 heads or more each would cost several passes, hours of a decoder."""
    monkeypatch.setattr(sections, "MANY_HEADS", 2)
    alone = sections.SectionRun(headscope.load(folder), {}, seed=0, command="")
    assert alone.arguments("classify")["ablate"] is False
    assert "ablate" not in alone.changed("classify")
    ((part, why),) = alone.left_out("classify")
    assert part == "classify: removing each head alone"
    assert "ablate = true" in why
    asked = sections.SectionRun(alone.loaded, {"classify": {"ablate": True}}, seed=0, command="")
    assert asked.arguments("classify")["ablate"] is True
    assert list(asked.left_out("classify")) == []
