"""Options of ``prune`` are one value: the same defaults everywhere, and no state in a run."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import pytest
import torch
import typer.main
from tiny_families import tiny
from tiny_models import tiny_bert

import headscope
from headscope.cli.app import app
from headscope.data.overlap import overlap
from headscope.errors import InputError
from headscope.measures.pooling import cosine
from headscope.pipeline.progress import SECONDS
from headscope.pipeline.prune import PruneOptions, prune


def test_function_value_and_command_have_the_same_defaults() -> None:
    of_function = {
        p.name: p.default
        for p in inspect.signature(prune).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name not in ("progress", "command")
    }
    of_value = {field.name: field.default for field in dataclasses.fields(PruneOptions)}
    assert of_function == of_value
    command = typer.main.get_command(app).commands["prune"]  # type: ignore[attr-defined]
    for param in command.params:
        if param.name in ("step", "draws", "seed", "labels", "benchmark", "calibration_limit"):
            assert param.default == of_value[param.name], param.name


def test_options_cannot_change_and_hold_no_list() -> None:
    names = ["fisher", "random"]
    options = PruneOptions(methods=names)
    names.append("magnitude")
    assert options.method_names == ("fisher", "random")
    assert hash(options) == hash(PruneOptions(methods=("fisher", "random")))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 1  # type: ignore[misc]
    # Candidates are named before the run, and the control is none.
    assert PruneOptions().candidates == (("fisher-joint", "none"), ("fisher-joint", "scale"))
    assert PruneOptions(methods=["random"]).candidates == ()
    by_hand = PruneOptions(heads="L0H0", repairs=["refit"])
    assert by_hand.candidates == (("manual", "refit"),)
    with pytest.raises(InputError, match="same folder"):
        PruneOptions(heads="L0H0", save="a", save_dense=Path("b/../a").resolve())


def test_something_is_left_until_the_end(tmp_path: Path) -> None:
    for name, words in (("a.txt", "the cat sat"), ("b.txt", "a dog ran")):
        text = "".join(f"{words} {'big ' * i}\n" for i in range(8))
        (tmp_path / name).write_text(text, encoding="utf-8")
    model, told = tiny_bert(tmp_path / "m"), list[tuple[int, int]]()
    headscope.prune(
        str(model),
        data=tmp_path / "a.txt",
        calibration=tmp_path / "b.txt",
        roles=False,
        ablation=True,
        repairs=["none", "scale", "refit"],
        save=tmp_path / "small",
        fractions=[0.5],
        progress=lambda what, done, total: told.append((done, total)) if what == SECONDS else None,
    )
    assert len(told) > 20
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert all(total > done for done, total in told[:-1]), "nothing left, and work remained"
    assert told[-1][0] == told[-1][1]


def test_overlap_counts_different_sentences_without_regard_to_white_space() -> None:
    found = overlap(["a  cat", "a cat ", "the dog", "it", ""], ["\ta cat", "dog", "it ran"])
    assert (found.shared, found.sentences) == (1, 3)
    assert found.share == pytest.approx(1 / 3)
    assert overlap([], ["a"]).share == 0.0


def test_two_states_of_zeros_are_equal_and_have_a_finite_derivative() -> None:
    ours = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    theirs = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    found = cosine(ours, theirs)
    assert found.tolist() == pytest.approx([1.0, 0.0, 0.6])
    (gradient,) = torch.autograd.grad(found.sum(), ours)
    assert bool(gradient.isfinite().all())


def test_a_copy_that_shares_weights_leaves_the_model_as_it_is() -> None:
    full = headscope.wrap(tiny("bert"))
    before = {name: tensor.clone() for name, tensor in full.network.state_dict().items()}
    own, shared = (
        headscope.remove_heads(full, [(0, 1), (1, 0)], share=share) for share in (False, True)
    )
    ids = torch.randint(5, 61, (2, 9))
    with torch.no_grad():
        assert torch.equal(*(m.forward(ids, torch.ones_like(ids)) for m in (own, shared)))
        for site in shared.sites:
            site.projections.out.weight.zero_()
            site.projections.out.bias.zero_()
    assert all(torch.equal(before[name], t) for name, t in full.network.state_dict().items())
    table = full.model.get_input_embeddings().weight
    assert shared.model.get_input_embeddings().weight is table
    assert own.model.get_input_embeddings().weight is not table
