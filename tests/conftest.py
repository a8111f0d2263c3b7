"""Fixtures for all tests: offline, on the real demo model, and on ../shared where it is."""

import functools
import os
import random
from itertools import groupby
from pathlib import Path
from typing import Any

import frozen
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
# The files of tests run side by side, so each process takes one core, unless it was asked for more
# (.ci/any-cpu); set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["OMP_WAIT_POLICY"] = "passive"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # without a network torch remarks on each socket


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say what happens to the frozen answers of slow oracles, and in which order tests run."""
    parser.addoption("--recompute-oracles", action="store_true", help="compare frozen answers")
    parser.addoption("--freeze-oracles", action="store_true", help="keep new answers of oracles")
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="files, and their tests, at random"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those that ask for one: ``auto`` is the CPU everywhere."""
    frozen.recompute = config.option.recompute_oracles
    frozen.freeze = config.option.freeze_oracles
    if "gpu" not in (config.option.markexpr or "").split():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


#: What one process with the demo model, its control and a few results in it may need.
_WORKER_BYTES = 3 << 30
_MOST_WORKERS = 8

SHARED = Path(os.environ.get("HEADSCOPE_SHARED", Path(__file__).parents[2] / "shared"))


def pytest_xdist_auto_num_workers() -> int:
    """One process per core, as far as the memory goes round."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(os.cpu_count() or 1, memory // _WORKER_BYTES, _MOST_WORKERS))


#: Files whose tests take longest, first: what starts last would run alone at the end.
_LONGEST = ("test_resume.py", "test_prune_stacks.py", "test_docs.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start with the tests that take longest, or put all in the random order that was asked for."""
    if config.option.shuffle is None:
        items.sort(key=lambda item: item.path.name not in _LONGEST)
        return
    order = random.Random(config.option.shuffle)
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    order.shuffle(files)
    for tests in files:
        order.shuffle(tests)
    items[:] = [item for tests in files for item in tests]


@pytest.fixture(scope="session", autouse=True)
def _short_timing() -> None:
    """Let each model that is saved be timed in as few rounds as an interval needs, text by text."""
    from headscope.pruning import keep
    from headscope.removal import times

    times._SECONDS = 0.0
    keep.BATCH_SIZE = 1


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> None:
    """Let typer build the commands once: a process that runs the command line once does so too."""
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)


#: Certificates by weights; None while each has to be made.
_CERTIFIED: dict[Any, Any] | None = {}


@pytest.fixture(scope="session", autouse=True)
def _demo_certified_once() -> None:
    """Keep the demo model's certificate for the process: a second of each command on it."""
    from headscope.models.certificate import certificate
    from headscope.models.load.source import WEIGHTS_SHA256
    from headscope.models.run.fingerprints import fingerprint

    prove = certificate._validate

    def proven_once(loaded: Any) -> Any:
        if _CERTIFIED is None or loaded.file is None or loaded.file.sha256 != WEIGHTS_SHA256:
            return prove(loaded)
        scales = tuple(site.scale for site in loaded.sites)
        key = (fingerprint(loaded.network), loaded.dtype, loaded.device, loaded.task_head, scales)
        if key not in _CERTIFIED:
            result = prove(loaded)
            if not result.passed:
                return result
            _CERTIFIED[key] = result
        return _CERTIFIED[key]

    certificate._validate = proven_once


@pytest.fixture
def fresh_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run of this test prove the demo model itself."""
    monkeypatch.setitem(globals(), "_CERTIFIED", None)


class _Shared(type(SHARED)):  # type: ignore[misc]
    """A path below the shared folder: a test that asks for one that is not there is skipped."""

    def __truediv__(self, name: str) -> Path:
        path: Path = super().__truediv__(name)
        if not path.exists():
            pytest.skip(f"{path} is not there; CONTRIBUTING.md says how to get it")
        return path


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of models and data that is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip(f"no folder {SHARED} (HEADSCOPE_SHARED); CONTRIBUTING.md says what it holds")
    return _Shared(SHARED)


@pytest.fixture(scope="session")
def ewt(shared: Path) -> Path:
    return shared / "data" / "en_ewt-ud-test.conllu"


@pytest.fixture(scope="session")
def demo():
    """The packaged demo model, loaded once."""
    import headscope

    return headscope.load("demo")


@pytest.fixture(scope="session")
def mpnet() -> Path:
    """The folder of the real all-mpnet-base-v2, for tests that are marked ``large``."""
    folder = Path(os.environ.get("HEADSCOPE_MPNET") or "not set")
    if not (folder / "model.safetensors").is_file():
        pytest.skip(
            f"no all-mpnet-base-v2 in HEADSCOPE_MPNET ({folder}); where there is a shared folder, "
            "its tools/get-mpnet fetches the model and prints what to set"
        )
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the real SmolLM2-135M, a decoder with rotated and shared keys."""
    folder = Path(os.environ.get("HEADSCOPE_SMOLLM2") or "not set")
    if not (folder / "model.safetensors").is_file():
        pytest.skip(
            f"no SmolLM2-135M in HEADSCOPE_SMOLLM2 ({folder}); where there is a shared folder, "
            "its tools/get-smollm2 makes the model and prints what to set"
        )
    return folder


@pytest.fixture
def all_of_it(request: pytest.FixtureRequest) -> None:
    """Go on only where large tests were asked for by name, as they may take minutes."""
    if "large" not in (request.config.option.markexpr or "").split():
        pytest.skip("takes long: pytest -m large runs it")
