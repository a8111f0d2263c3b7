"""A disk without room: every writer says so in one sentence, and leaves what was there."""

import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from outcomes import Command, refused
from result_files import read, write
from shrinking_models import sentences
from tiny_models import tiny_bert

import headscope
from headscope.artefacts.saving import reserved, room_of_save
from headscope.core import disk
from headscope.core.errors import ArtefactError, InputError, UnsavedStateWarning, UnwrittenError
from headscope.core.files import replace_folder, write_atomically
from headscope.data.token_rows import encode_rows, padded
from headscope.session.resume import RunState
from headscope.shrinking import serving


@contextmanager
def files_at_most(n_bytes: int) -> Iterator[None]:
    """Let the system refuse every file that is longer, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def no_look_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run begin that has no room, to see how it ends."""
    for module in ("artefacts.saving", "show.folders", "shrinking.run", "shrinking.saving"):
        monkeypatch.setattr(f"headscope.{module}.need_room", lambda *room, **more: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("disk") / "model")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "text.txt"
    path.write_text("".join(f"{line}\n" for line in sentences(60)), encoding="utf-8")
    return path


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def prune(model: Path, text: Path, folder: Path) -> list[str]:
    data = ["--data", str(text), "--limit", "10"]
    return ["prune", str(model), "--heads", "L0H1", *data, "--save", str(folder)]


def shrink(model: Path, text: Path, folder: Path) -> list[str]:
    texts = ["--data", str(text), "--text", str(text), "--limit", "10"]
    target = ["--mb", "100", "--minutes", "0", "--runtime", "torch"]
    return ["shrink", str(model), *texts, *target, "--save", str(folder)]


@pytest.mark.parametrize("command", [prune, shrink])
@pytest.mark.usefixtures("no_look_before")
def test_a_save_without_room_prints_what_was_measured(
    command: Callable[..., list[str]], run: Command, model: Path, text: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    headscope.save(headscope.load(str(model)), folder)
    manifest = read(folder / "headscope.json")
    write(folder / "headscope.json", {**manifest, "saved_by": command.__name__})
    before = everything_in(tmp_path)
    with files_at_most(20_000):  # the weights have 0.1 MB
        ended = run(*command(model, text, folder))
    assert ended.code == 1
    assert ended.stdout  # the result
    assert ended.stderr.count("\n") == 1
    assert "no file of that size" in ended.stderr
    assert str(folder) in ended.stderr
    assert everything_in(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("command", [prune, shrink])
def test_a_save_without_room_is_refused_before_anything_is_measured(
    command: Callable[..., list[str]],
    run: Command,
    model: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk, "free_room", lambda place: 1_000)
    ended = run(*command(model, text, tmp_path / "saved"))
    refused(ended, "the model that is to be saved".capitalize(), "0.0 MB are free")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_look_before")
def test_results_without_room_are_printed(run: Command, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = ["rank", str(model), "-o", str(folder), "--no-validate"]
    assert run(*arguments).code == 0
    before = everything_in(folder)
    with files_at_most(1_000):
        ended = run(*arguments)
    assert ended.code == 1
    assert "dimensions" in ended.stdout
    assert ended.stderr.count("\n") == 1
    assert f"{folder} could not be written" in ended.stderr
    assert everything_in(folder) == before


@pytest.mark.usefixtures("no_look_before")
def test_a_report_without_room_is_printed(run: Command, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = ["report", str(model), "-o", str(folder), "--only", "validate,rank"]
    with files_at_most(1_000):
        ended = run(*arguments)
    assert ended.code == 1
    assert f"{folder} could not be written" in ended.stderr
    assert "Written to" not in ended.stdout
    assert "## headscope: model" in ended.stdout
    assert "freshly initialised" in ended.flat  # what rank has measured
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_refused_for_want_of_room_is_not_left(
    run: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_room", lambda place: 1_000)
    ended = run("rank", str(model), "-o", str(tmp_path / "new" / "out"))
    refused(ended, "What the run writes may take", "0.0 MB are free")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_printing_into_a_file_without_room_fails(unbuffered: str, tmp_path: Path) -> None:
    """Without a buffer Python itself would drop the rest and go on."""
    path = tmp_path / "schema.json"
    command = shlex.join([sys.executable, "-m", "headscope", "schema", "report"])
    ended = subprocess.run(
        ["sh", "-c", f"ulimit -f 8; exec {command} > {shlex.quote(str(path))}"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert path.stat().st_size < 10_000
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "what is printed, could not be written: the system allows no file" in ended.stderr


@pytest.fixture(scope="module")
def files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> serving.Files:
    loaded = headscope.load(str(model))
    rows = encode_rows(loaded, sentences(4), None)
    texts = [padded([row], loaded.pad_id, loaded.device) for row in rows]
    return serving.Files(loaded, tmp_path_factory.mktemp("disk"), texts)


def test_a_runtimes_file_without_room_is_no_fault_of_the_model(files: serving.Files) -> None:
    with files_at_most(5_000), pytest.raises(UnwrittenError, match="could not be written"):
        files.path(serving.GRAPH)
    files.path(serving.GRAPH)  # now there is room for the graph, and for nothing else
    for form in serving.FORMS:
        if form not in (serving.TORCH, serving.GRAPH):
            with files_at_most(5_000), pytest.raises(UnwrittenError, match="could not be written"):
                files.path(form)


def test_the_room_that_is_asked_for_is_enough(files: serving.Files) -> None:
    loaded = files.model
    forms = [form for form in serving.FORMS if form != serving.TORCH]
    for form in forms:
        written = sum(file.stat().st_size for file in serving.files_of_graph(files.path(form)))
        assert 0 < written <= serving.bytes_of_form(loaded, form), form
    files_of_forms = {file for form in forms for file in serving.files_of_graph(files.path(form))}
    n_bytes = sum(file.stat().st_size for file in files_of_forms)
    assert n_bytes <= serving.room_of_forms(loaded, forms)


def test_the_room_of_a_saved_model_is_known_beforehand(model: Path, tmp_path: Path) -> None:
    for loaded in (headscope.load(str(model)), headscope.load("demo")):
        folder = headscope.save(loaded, tmp_path / "saved" / str(loaded.n_layers))
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        room = room_of_save(loaded, changes_weights=False)
        assert written <= room
    assert room < 1.02 * written  # of the demo, whose weights outweigh the rest


@pytest.mark.parametrize(("save", "n_weights"), [(False, 0), (True, 1)])
def test_one_disk_for_all_files_of_a_run_needs_room_for_all(
    save: bool, n_weights: int, model: Path, text: Path, tmp_path: Path, monkeypatch
) -> None:
    """Files that are measured, those of two smaller models, and the folder that is saved."""
    asked_for: list[float] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(
        "headscope.shrinking.run.need_room",
        lambda place, n_bytes, *words, **more: asked_for.append(n_bytes),
    )
    loaded = headscope.load(str(model))
    texts = {"data": str(text), "text": str(text), "limit": 10}
    folder = str(tmp_path / "saved") if save else None
    headscope.shrink(loaded, mb=100, minutes=0, runtimes=("onnxruntime",), save=folder, **texts)
    forms = [form for form in serving.FORMS if form.runtime == "onnxruntime"]
    graph = serving.bytes_of_form(loaded, serving.GRAPH)
    measured = serving.room_of_forms(loaded, forms) + 2 * (graph + graph)
    assert asked_for[0] == measured
    assert (
        asked_for[1:] == [measured + room_of_save(loaded, changes_weights=True) + graph] * n_weights
    )


@pytest.mark.usefixtures("no_look_before")
def test_an_export_without_room_names_the_file_and_leaves_nothing(
    run: Command, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    headscope.save(headscope.load(str(model)), folder)
    before = everything_in(folder)
    with files_at_most(20_000):
        ended = run("export", str(folder), "openvino")
    refused(ended, f"{folder / serving.GRAPH.file} could not be written", "no file of that size")
    assert everything_in(folder) == before
    assert not (folder / "onnx").exists()


def test_a_run_goes_on_without_the_state_that_it_cannot_save(tmp_path: Path) -> None:
    state = RunState(tmp_path / "state", {})
    with files_at_most(10), pytest.warns(UnsavedStateWarning, match="goes on"):
        state.save()
    state.save()  # says it once
    assert list(tmp_path.iterdir()) == []


def test_whatever_a_library_raises_of_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    for error in (
        OSError(28, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: File too large (os error 27)"),
        RuntimeError("[ErrnoError]: No space left on device"),
    ):
        with pytest.raises(UnwrittenError, match="as it was"), replace_folder(tmp_path / "a"):
            raise error
    with pytest.raises(RuntimeError, match="a fault of ours"), disk.writing(tmp_path):
        raise RuntimeError("a fault of ours")
    unreadable = PermissionError(13, "Permission denied", "data.csv")
    assert disk.lack_of_room(unreadable) is None  # it is no want of room
    assert list(tmp_path.iterdir()) == []


def test_two_runs_cannot_save_into_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "saved"
    with (
        reserved(folder, by="prune"),
        pytest.raises(InputError, match="Another run"),
        reserved(folder, by="prune"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_is_to_be(run: Command, model: Path, text: Path, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    refused(run(*prune(model, text, tmp_path / "file")), "is a file")
    refused(run(*prune(model, text, tmp_path / "file" / "below")), "cannot be made")
    refused(run("export", str(tmp_path / "file"), "onnx"), "is a file", code=2)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB that is full but for 16 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this process may not mount a file system")
    try:
        (folder / "there").write_bytes(bytes(48_000))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.usefixtures("no_look_before")
def test_a_full_disk(run: Command, model: Path, text: Path, tmpfs: Path) -> None:
    with pytest.raises(UnwrittenError, match="the disk is full"):
        write_atomically(tmpfs / "file", bytes(100_000))
    with pytest.raises(UnwrittenError, match="the disk is full"):
        headscope.save(headscope.load(str(model)), tmpfs / "saved")
    for command in (prune, shrink):
        ended = run(*command(model, text, tmpfs / "saved"))
        assert ended.code == 1
        assert ended.stdout
        assert "the disk is full" in ended.stderr
    assert os.listdir(tmpfs) == ["there"]


def test_the_error_has_the_result_in_python(model: Path, text: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("headscope.artefacts.saving.need_room", lambda *room, **more: None)
    with files_at_most(20_000), pytest.raises(ArtefactError) as caught:
        headscope.prune(
            str(model), heads="L0H1", data=str(text), limit=10, save=str(tmp_path / "saved")
        )
    assert caught.value.result.curves
