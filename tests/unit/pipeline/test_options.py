"""No public function swallows an option: what it has no use for, it refuses by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_bert

import headscope
from headscope.errors import InputError, UnusedOptionError
from headscope.models.loaded import LoadedModel
from headscope.results import SECTIONS, Sections

#: Every function of the package, and those of sections that it has no name for yet.
FUNCTIONS = sorted(
    name for name in {*headscope.__all__, *SECTIONS} if inspect.isfunction(getattr(headscope, name))
)
#: Those that take a model in any form, and options for loading it.
OF_MODELS = [
    name
    for name in FUNCTIONS
    if any(
        parameter.kind is parameter.VAR_KEYWORD
        for parameter in inspect.signature(getattr(headscope, name)).parameters.values()
    )
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("options") / "model")))


def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(headscope, name)
    return found


def test_the_functions_are_found() -> None:
    assert {*SECTIONS, "report", "scores", "measure"} == set(OF_MODELS)
    assert {"load", "wrap", "save", "save_dense", "remove_heads"} < set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unknown_option_is_refused(name: str, tiny: LoadedModel) -> None:
    for model in (tiny, tiny.network, "no-such-folder"):
        with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected .*'nonsense'"):
            _function(name)(model, nonsense=3)


@pytest.mark.parametrize("name", OF_MODELS)
@pytest.mark.parametrize("option", ["dtype", "device", "revision", "allow_pickle", "task_head"])
def test_an_option_of_loading_is_refused_beside_a_loaded_model(
    name: str, option: str, tiny: LoadedModel
) -> None:
    if (name, option) == ("depth", "dtype"):
        return  # it converts what is loaded: its own option
    with pytest.raises(UnusedOptionError, match=rf"{name}\(\) got '{option}'.*headscope.load"):
        _function(name)(model=tiny, **{option: "cpu"})
    with pytest.raises(headscope.HeadscopeError) as refused:  # by name it is what loading takes
        _function(name)("no-such-folder", **{option: "none such"})
    assert not isinstance(refused.value, TypeError), refused.value


@pytest.mark.parametrize(
    ("name", "option", "meant"),
    [
        ("flow", "treebank", "corpus"),
        ("flow", "dtyp", "dtype"),
        ("classify", "limits", "limit"),
        ("prune", "method", "methods"),
        ("rank", "no_validate", "validate"),
        ("measure", "referense", "reference"),
    ],
)
def test_a_slip_names_what_may_be_meant(name: str, option: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"{option!r}; did you mean {meant!r}"):
        _function(name)("demo", **{option: 1})


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("classify", {"data": "x.csv"}, "task and data are what ablate"),
        ("classify", {"task": "mlm"}, "task and data are what ablate"),
        ("symmetric", {"data": "x.csv"}, "name the task too"),
        ("linear", {"data": "x.csv"}, "name the task too"),
        ("prune", {"fractions": [0.5], "step": 0.1}, "leave out step or fractions"),
        ("prune", {"heads": "L0H1", "step": 0.1}, "leave out methods, fractions and step"),
        ("prune", {"heads": "L0H1", "methods": ["random"]}, "leave out methods, fractions"),
        ("prune", {"standalone": True}, "give save a folder"),
        ("prune", {"quantize": "int8"}, "quantize needs export"),
        ("spectrum", {"sequences": 2, "precision": 0.1}, "either sequences or precision"),
        ("spectrum", {"resume": True}, "resume"),
        ("explain", {"head": 1}, "no layer is given"),
        ("report", {"settings": {"classify": {"nonsense": 1}}}, "no setting 'nonsense'"),
        ("report", {"settings": {"nonsense": {}}}, "no section 'nonsense'"),
        ("insights", {"settings": {"flow": {"dtype": "float64"}}}, "no setting 'dtype'"),
        ("insights", {"sections": Sections(), "settings": {"nonsense": {}}}, "no section"),
    ],
)
def test_an_option_without_the_one_it_belongs_to_is_refused(
    name: str, options: dict[str, Any], words: str, tiny: LoadedModel
) -> None:
    with pytest.raises(InputError, match=words):
        _function(name)(tiny, **options)


def test_a_revision_is_of_a_hub_id(tmp_path: Path) -> None:
    for model in ("demo", str(tmp_path)):
        with pytest.raises(InputError, match=r"not a hub id.*'main'"):
            headscope.load(model, revision="main")
