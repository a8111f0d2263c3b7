"""What the public functions take: nothing is swallowed, and options of prune are one value."""

import dataclasses
import inspect

import pytest
import torch
from families import tiny
from tiny_models import tiny_bert

import headscope
from headscope import prune
from headscope.analyses.rank import RankOptions
from headscope.cli.app import click_command
from headscope.core.errors import InputError, UnusedOptionError
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine
from headscope.pruning.options import PruneOptions
from headscope.reports.registry import SECTIONS
from headscope.shrinking.options import ShrinkOptions

#: Every function of the package, and those of sections that it has no name for yet.
FUNCTIONS = sorted(
    name for name in {*headscope.__all__, *SECTIONS} if inspect.isfunction(getattr(headscope, name))
)
#: Those that take a model in any form, and options for loading it.
OF_MODELS = [
    name
    for name in FUNCTIONS
    if {"model", "command"} <= set(inspect.signature(getattr(headscope, name)).parameters)
]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("options") / "model")))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unknown_option_is_refused(name, bert):
    for model in (bert, bert.network, "no-such-folder"):
        with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected .*'nonsense'"):
            getattr(headscope, name)(model, nonsense=3)


@pytest.mark.parametrize("name", OF_MODELS)
@pytest.mark.parametrize("option", ["dtype", "device", "revision", "task_head"])
def test_an_option_of_loading_is_refused_beside_a_loaded_model(name, option, bert):
    if (name, option) == ("depth", "dtype"):
        return  # it converts what is loaded: its own option
    with pytest.raises(UnusedOptionError, match=rf"{name}\(\) got '{option}'.*headscope.load"):
        getattr(headscope, name)(model=bert, **{option: "cpu"})
    with pytest.raises(headscope.HeadscopeError) as refused:  # by name it is what loading takes
        getattr(headscope, name)("no-such-folder", **{option: "none such"})
    assert not isinstance(refused.value, TypeError), refused.value


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("flow", {"treebank": 1}, "'treebank'; did you mean 'corpus'"),
        ("prune", {"method": 1}, "'method'; did you mean 'methods'"),
        ("classify", {"data": "x.csv"}, "task and data say what ablate"),
        ("classify", {"patch_pairs": 20}, "patch_pairs limits the pairs that patch takes"),
        ("symmetric", {"data": "x.csv"}, "name the task too"),
        ("prune", {"fractions": [0.5], "step": 0.1}, "leave out step or fractions"),
        ("prune", {"heads": "L0H1", "step": 0.1}, "leave out methods, fractions and step"),
        ("spectrum", {"sequences": 2, "precision": 0.1}, "either sequences or precision"),
        ("spectrum", {"resume": True}, "resume"),
        ("explain", {"head": 1}, "no layer is given"),
        ("report", {"settings": {"classify": {"nonsense": 1}}}, "no setting 'nonsense'"),
        ("insights", {"settings": {"flow": {"dtype": "float64"}}}, "no setting 'dtype'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(name, options, words, bert):
    with pytest.raises(InputError, match=words):
        getattr(headscope, name)(bert, **options)


def test_options_as_one_object_stand_in_place_of_single_ones(bert):
    options = RankOptions(share="sigma", fresh=False)
    result = headscope.rank(model=bert, options=options)
    assert result.heads == headscope.rank(bert, share="sigma", fresh=False).heads
    assert result.heads != headscope.rank(bert, fresh=False).heads
    for beside, given in (({"share": "sigma2"}, options), ({}, PruneOptions())):
        with pytest.raises(UnusedOptionError, match=r"rank\(\) takes options, a RankOptions"):
            headscope.rank(bert, options=given, **beside)


def test_function_and_command_have_the_defaults_of_the_options():
    of_value = {field.name: field.default for field in dataclasses.fields(PruneOptions)}
    of_function = inspect.signature(prune).parameters
    assert {"model", *of_value} == set(of_function)
    assert all(of_function[name].default == default for name, default in of_value.items())
    command = click_command("prune")
    for param in command.params:
        if param.name in ("step", "draws", "seed", "labels", "calibration_limit"):
            assert param.default == of_value[param.name], param.name


def test_options_cannot_change_and_hold_no_list():
    names = ["fisher", "random"]
    options = PruneOptions(methods=names)
    names.append("magnitude")
    assert options.method_names == ("fisher", "random")
    assert hash(options) == hash(PruneOptions(methods=("fisher", "random")))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 1
    # Methods and repairs are named before the run, and the control is none that scores heads.
    assert (PruneOptions().scored, PruneOptions().repair_kinds) == (("surgeon",), ("surgeon",))
    named = PruneOptions(methods=["fisher"])
    assert (named.scored, named.repair_kinds) == (("fisher",), ("none", "surgeon"))
    assert PruneOptions(methods=["random"]).scored == ()
    # One value stands for a list of one.
    assert PruneOptions(methods="fisher").method_names == ("fisher",)
    assert PruneOptions(fractions=0.5).fractions == (0.5,)
    assert ShrinkOptions(text="a.txt", runtimes="torch").text == ("a.txt",)
    by_hand = PruneOptions(heads="L0H0", repairs=["scale"])
    assert (by_hand.manual, by_hand.scored, by_hand.repair_kinds) == (True, (), ("scale",))


def test_two_states_of_zeros_are_equal_and_have_a_finite_derivative():
    ours = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    changed = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    similarity = cosine(ours, changed)
    assert similarity.tolist() == pytest.approx([1.0, 0.0, 0.6])
    (gradient,) = torch.autograd.grad(similarity.sum(), ours)
    assert bool(gradient.isfinite().all())


def test_a_copy_that_shares_weights_leaves_the_model_as_it_is():
    full = headscope.wrap(tiny("bert"))
    before = {name: tensor.clone() for name, tensor in full.network.state_dict().items()}
    copied, shared = (
        headscope.remove_heads(full, [(0, 1), (1, 0)], share=s) for s in (False, True)
    )
    ids = torch.randint(5, 61, (2, 9))
    with torch.no_grad():
        assert torch.equal(*(m.forward(ids, torch.ones_like(ids)) for m in (copied, shared)))
        for site in shared.sites:
            site.projections.out.weight.zero_()
            site.projections.out.bias.zero_()
    assert all(torch.equal(before[name], t) for name, t in full.network.state_dict().items())
    table = full.model.get_input_embeddings().weight
    assert shared.model.get_input_embeddings().weight is table
    assert copied.model.get_input_embeddings().weight is not table
