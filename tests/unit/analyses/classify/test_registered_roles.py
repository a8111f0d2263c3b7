"""A role that a user registers is measured, shown and compared like a built-in one."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from families import tiny
from planted_models import Planted, build_planted
from tiny_models import tiny_tokenizer

import headscope
from headscope import roles
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.view import VIEW
from headscope.core.errors import InputError
from headscope.core.serialise import from_dict, to_json
from headscope.data.batches import Batch
from headscope.reports.page import report_html
from headscope.reports.result import ReportResult


def beside(batch: Batch) -> torch.Tensor:
    """The tokens directly before and after the query."""
    position = torch.arange(batch.size[1])
    return (position - position[:, None]).abs() == 1


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return build_planted(tmp_path_factory.mktemp("planted") / "model")


@pytest.fixture
def neighbour() -> Iterator[roles.Role]:
    words = "looks at the tokens beside it"
    yield roles.register(
        "neighbour", beside, threshold=0.5, words=words, mark="near", before="positional"
    )
    roles.unregister("neighbour")


def test_a_registered_role_is_everywhere_at_once(planted, neighbour):
    """In labels, JSON, tables, cards and the map of a report; and gone once it is unregistered."""
    near = {
        f"L{layer}H{head}"
        for (layer, head), role in planted.roles.items()
        if role.offset in (-1, 1)
    }
    assert near
    options = {"limit": 60, "control": True, "validate": False}
    result = headscope.classify(str(planted.folder), planted.treebank, **options)
    heads = {head.name: head for head in result.heads}
    assert {name for name, head in heads.items() if "neighbour" in head.roles} == near
    for name in near:
        label = next(label for label in heads[name].labels if label.role == "neighbour")
        assert heads[name].primary == "neighbour"
        assert label.score == heads[name].registered["neighbour"]
        assert label.score.low <= label.score.value <= label.score.high
        assert (label.against, label.baseline < 0.2) == ("uniform", True)
        # The weight on both neighbours is what the positional score says of each.
        mass = heads[name].positional.mass
        assert label.score.value == pytest.approx(mass["-1"] + mass["1"], abs=0.2)
    assert result.control.roles["neighbour"] == 0
    assert result.thresholds["neighbour"] == 0.5
    assert from_dict(ClassifyResult, json.loads(to_json(result))) == result
    frame = result.to_frame()
    assert list(frame["neighbour"]) == [h.registered["neighbour"].value for h in result.heads]
    cards = {f"L{card.layer}H{card.head}": card for card in VIEW.facts(result, ())}
    card = cards[min(near)]
    assert (card.primary, card.mark, card.roles[0]) == ("neighbour", "near", "neighbour")
    score = heads[min(near)].registered["neighbour"].value
    assert card.sentence.startswith(f"Looks at the tokens beside it: {score:.2f}, and 0.")
    page = report_html(ReportResult(2, result.provenance, {}, {}, {}, classify=result))
    assert "--neighbour: light-dark(" in page
    assert page.count(">near<") == len(near)

    roles.unregister("neighbour")
    try:
        # A result that was made with the role is still shown where the role is unknown.
        cards = [card for card in VIEW.facts(result, ()) if card.mark == "neigh"]
        assert len(cards) == len(near)
        assert all(card.sentence.startswith("Neighbour: ") for card in cards)
    finally:
        roles.register("neighbour", beside, threshold=0.5)


def test_a_mean_is_that_of_the_weights(neighbour):
    """Against a plain mean over queries of the model's own patterns; also under a causal mask."""
    for kind in ("bert", "gpt2"):
        loaded = headscope.wrap(tiny(kind, vocab_size=60), tiny_tokenizer(38), name=kind)
        line = "the cat sat on the mat"
        result = headscope.classify(loaded, [line], validate=False)
        ids = torch.tensor([loaded.tokenizer(line).input_ids])
        special = set(loaded.tokenizer.all_special_ids)
        loaded.model.set_attn_implementation("eager")
        with torch.no_grad():
            patterns = loaded.model(ids, output_attentions=True).attentions
        for head in result.heads:
            pattern = patterns[head.layer][0, head.head].numpy()
            n = len(pattern)
            weights = [
                sum(pattern[i, j] for j in (i - 1, i + 1) if 0 <= j < n)
                for i in range(2 if kind == "gpt2" else 0, n)
                if int(ids[0, i]) not in special
            ]
            assert head.registered["neighbour"].value == pytest.approx(np.mean(weights), abs=1e-6)
            assert head.registered["neighbour"].interval is None, "one sentence has no interval"


def test_what_cannot_be_registered_is_refused():
    before = list(roles.ROLES)
    for changed, message in (
        *(({"key": k}, f"else '{k}' already") for k in ("broad", "min_trials", "entropy", "head")),
        ({"key": "My role"}, "lower-case letters"),
        ({"name": "rare-word"}, "shown as 'rare-word' already"),
        ({"threshold": 1.5}, "number between 0 and 1"),
        ({"threshold": True}, "number between 0 and 1"),
        ({"mark": "neighbour"}, "longer than five"),
        ({"stacks": ("cross",)}, "choose from"),
        ({"colour": "red"}, "#RRGGBB"),
        ({"before": "nothing"}, "no role 'nothing'"),
    ):
        with pytest.raises(InputError, match=message):
            roles.register(**{"key": "new", "keys": beside, "threshold": 0.5, **changed})
    assert before == roles.ROLES
    with pytest.raises(InputError, match="No role 'broad' was registered"):
        roles.unregister("broad")
    model = headscope.wrap(tiny("bert", vocab_size=60), tiny_tokenizer(38), name="bert")
    for wrong in (lambda batch: None, lambda batch: batch.content, lambda batch: batch.pieces):
        roles.register("wrong", wrong, threshold=0.5)
        try:
            with pytest.raises(InputError, match="The keys of the role wrong are"):
                headscope.classify(model, ["the cat sat", "a dog"], validate=False)
        finally:
            roles.unregister("wrong")
