"""Claims 8 to 10: each rule from planted numbers, and on planted models that are really trained."""

import copy
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_bert

import headscope
from headscope.analyses.transfer.result import (
    TransferCell,
    TransferDifference,
    TransferMissed,
    TransferResult,
    TransferSpread,
)
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.loaded import LoadedModel
from headscope.reports.claims.registry import decide
from headscope.reports.claims.rule import Evidence
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import Insight
from headscope.stats.estimate import Estimate

T = InsightThresholds()
#: A number, and the low and the high end of its interval.
Ends = tuple[float, float | None, float | None]


def difference(other: str, points: Ends, weights: str = "pretrained") -> TransferDifference:
    """LayerNorm alone minus another cell."""
    return TransferDifference("layernorm", "pretrained", other, weights, 64, 3, Estimate(*points))


def cells(optimum: str = "inside", **exceptions: str) -> tuple[TransferCell, ...]:
    """One for each variant and start; ``optimum`` says where the best rates lie.

    ``exceptions`` are by variant, ``random_`` in front where it starts from random weights.
    """
    variants = ("head", "layernorm", "biases", "weights", "lora", "attention", "all")
    pretrained = [
        cell(variant, "pretrained", exceptions.get(variant, optimum)) for variant in variants
    ]
    from_random = [
        cell(variant, "random", exceptions.get(f"random_{variant}", optimum))
        for variant in variants
    ]
    return (*pretrained, *from_random)


def cell(variant: str, weights: str, optimum: str) -> TransferCell:
    """A variant that has 80% of the answers right, from these weights."""
    return TransferCell(
        variant, weights, 64, 10, 1e-3, 3, Estimate(80.0, 70.0, 90.0), 1.0, 0, 0, optimum
    )


def result(*differences: TransferDifference, **fields: Any) -> TransferResult:
    """A run of ``transfer`` at one size, of which only these differences are known."""
    known = TransferResult(
        schema=2,
        provenance={},
        validation=ValidationSummary(passed=True),
        task="planted",
        classes=("a", "b"),
        sizes=(64,),
        not_possible={},
        cells=cells(),
        validation_examples=16,
        test_examples=100,
        dropped=0,
        seeds=3,
        spread_seeds=3,
        steps=8,
        batch=16,
        budget=60.0,
        baselines=(),
        spreads=(),
        runs=(),
        searched=(),
        missed=(),
        differences=differences,
    )
    return dataclasses.replace(known, **fields)


WON: Ends = (8.0, 2.0, 14.0)


def eighth(biases: Ends, weights: Ends, lora: Ends = WON, **fields: Any) -> Insight:
    """LayerNorm alone minus each set of as many parameters."""
    differences = [
        difference("biases", biases),
        difference("weights", weights),
        difference("lora", lora),
    ]
    return decide("layernorm", Evidence(transfer=result(*differences, **fields)))


@pytest.mark.parametrize(
    ("biases", "weights", "lora", "verdict"),
    [
        ((5.0, 0.0, 10.0), WON, WON, "mixed"),  # the interval touches 0
        ((-5.0, -9.0, -1.0), WON, WON, "does not hold"),  # beaten by one is enough
        ((-5.0, -9.0, 0.0), (-2.0, -4.0, 0.0), (-1.0, -2.0, 0.0), "does not hold"),
        (*[(5.0, None, None)] * 3, "not measured"),  # a single seed
    ],
)
def test_layernorm_against_others(biases, weights, lora, verdict):
    assert eighth(biases, weights, lora).verdict == verdict


def test_a_set_that_was_not_reached_is_unknown_and_one_that_is_not_there_does_not_count():
    differences = [difference("weights", WON), difference("lora", WON)]
    not_reached = result(*differences)
    without_biases = result(*differences, not_possible={"biases": "it has none"})
    for transfer, verdict in ((not_reached, "not measured"), (without_biases, "holds")):
        assert decide("layernorm", Evidence(transfer=transfer)).verdict == verdict
    missed = (TransferMissed("layernorm", "pretrained", 64, 0),)
    for name in ("layernorm", "frozen", "unstable"):
        assert decide(name, Evidence(transfer=result(missed=missed))).verdict == "not measured"


@pytest.mark.parametrize("optimum", ["edge", "not searched"])
def test_a_rate_that_is_no_known_optimum_leaves_its_claims_not_measured(optimum):
    concerned = {"layernorm": (True, True, True), "attention": (False, False, True)}
    concerned |= dict.fromkeys(("weights", "biases", "lora"), (True, False, False))
    concerned |= dict.fromkeys(("head", "all", "random_layernorm"), (False, True, False))
    concerned["random_head"] = (False, False, False)
    for name, expected in concerned.items():
        changed = cells(**{name: optimum})
        insights = (
            eighth(WON, WON, cells=changed),
            ninth((1.0, 0.2, 1.8), ABOVE, cells=changed),
            tenth((4.0, 1.5, 9.0), (0.0, -0.4, 0.4), cells=changed),
        )
        for insight, is_lost in zip(insights, expected, strict=True):
            assert insight.verdict == ("not measured" if is_lost else "holds"), name
    assert eighth(WON, WON, cells=cells("lowest")).verdict == "holds"


ABOVE: Ends = (20.0, 10.0, 30.0)


def ninth(
    gap: Ends, over: Ends, worth: Ends = ABOVE, thresholds: InsightThresholds = T, **fields: Any
) -> Insight:
    """Everything minus LayerNorm alone, pretrained minus random weights, everything minus head."""
    mean, low, high = gap
    to_tuned = (-mean, None if high is None else -high, None if low is None else -low)
    transfer = result(
        difference("all", to_tuned),
        difference("layernorm", over, weights="random"),
        dataclasses.replace(difference("head", worth), variant="all"),
        difference("x", to_tuned),
        **fields,
    )
    return decide("frozen", Evidence(transfer=transfer), thresholds)


@pytest.mark.parametrize(
    ("gap", "over", "worth", "verdict"),
    [
        ((1.0, 0.2, 1.8), ABOVE, ABOVE, "holds"),  # told from nothing, but surely small
        ((0.5, -1.0, 2.0), ABOVE, ABOVE, "mixed"),  # the interval touches the limit
        ((8.0, 4.0, 12.0), (-1.0, -3.0, 0.0), ABOVE, "does not hold"),
        ((1.0, 0.2, 1.8), (0.5, -2.0, 3.0), ABOVE, "mixed"),
        ((1.0, None, None), (20.0, None, None), ABOVE, "not measured"),
        ((1.0, 0.2, 1.8), ABOVE, (3.0, 0.0, 6.0), "not measured"),  # tuning gains nothing
    ],
)
def test_frozen_against_tuned(gap, over, worth, verdict):
    assert ninth(gap, over, worth).verdict == verdict


def test_the_gap_is_a_threshold():
    wide = (8.0, 4.0, 12.0)
    assert ninth(wide, ABOVE).parts[0].verdict == "does not hold"
    generous = dataclasses.replace(T, tuning_gap=13.0)
    assert ninth(wide, ABOVE, thresholds=generous).parts[0].verdict == "holds"
    assert "8.00 [4.00, 12.00]" in ninth(wide, ABOVE).parts[0].measured


def tenth(
    ratio: Ends | None, more: Ends | None, bad: int = 0, *, learned: bool = True, **fields: Any
) -> Insight:
    spread = TransferSpread(
        "attention",
        "layernorm",
        64,
        6,
        6,
        Estimate(*(ratio or (None,))),
        bad,
        0,
        Estimate(*(more or (None,))),
        18,
        learned,
    )
    return decide("unstable", Evidence(transfer=result(spreads=(spread,), **fields)))


MORE: Ends = (0.0, -0.4, 0.4)


@pytest.mark.parametrize(
    ("ratio", "more", "bad", "verdict"),
    [
        ((4.0, 1.0, 9.0), MORE, 0, "mixed"),  # the interval touches 1
        ((1.0, 0.3, 3.0), (0.8, 0.1, 0.9), 5, "holds"),
        ((0.2, 0.1, 1.0), MORE, 0, "does not hold"),
        ((0.2, 0.1, 0.9), (0.2, -0.3, 0.6), 1, "mixed"),  # one went wrong: who knows
        (None, None, 0, "not measured"),
    ],
)
def test_divergence_or_spread(ratio, more, bad, verdict):
    assert tenth(ratio, more, bad).verdict == verdict


def test_runs_at_chance_and_larger_sizes_do_not_count():
    """A spread that attention has because it learned nothing does not make the claim hold."""
    wide = (4.0, 1.5, 9.0)
    assert tenth(wide, MORE).verdict == "holds"
    chance = tenth(wide, MORE, learned=False)
    assert chance.verdict == "mixed"
    assert "at chance" in chance.parts[1].measured
    assert tenth((0.2, 0.1, 0.9), MORE, learned=False).verdict == "does not hold"
    assert tenth(wide, MORE, sizes=(32, 64)).verdict == "not measured"


# --- models that are really trained ---
# The answer is which of two groups a letter belongs to. The models know it: half of the dimensions
# are +1 for letters of one group, -1 for those of the other, and nothing for all other words.
# Letters of the test are none of the training's, so random weights cannot know.

GROUPS = {"one": "bcdefghijklm", "two": "nopqrstuvwxy"}
#: The dimensions that hold the group; signs that leave the norm's mean and variance as they are.
HELD = slice(0, 8)
SIGNS = torch.tensor([1.0, -1.0] * 4)
#: Near what is best where norms alone reach the answer, and where they cannot.
NEAR_OPEN: dict[str, tuple[float, ...]] = {
    **{"head": (3e-4, 1e-3, 3e-3), "layernorm": (3e-3, 0.3, 1.1), "all": (3e-2, 9e-2, 0.27)},
    **dict.fromkeys(("biases", "weights", "lora"), (1e-2, 3e-2, 1e-1)),
}
NEAR_BLIND: dict[str, tuple[float, ...]] = {
    **{"head": (1e-2, 3e-2, 1e-1), "layernorm": (1e-3, 3e-3, 1e-2), "lora": (3e-2, 1e-1, 0.3)},
    **{"attention": (1e-2, 3e-2, 1e-1), "all": (9e-2, 0.27, 0.8)},
}
FEW: dict[str, Any] = {"sizes": [32], "seeds": 3, "spread_seeds": 5, "random": []}
EQUAL = ("biases", "weights", "lora")

Files = tuple[Path, Path]


def written(folder: Path, *, wrong: float = 0.0, seed: int = 0) -> Files:
    """Two words and a letter; the training part has each label wrong with some probability."""
    rng = random.Random(seed)
    flips = random.Random(3)
    paths = []
    for name, n, letters in (("train", 160, slice(0, 9)), ("test", 300, slice(9, 12))):
        lines = ["sentence\tlabel\n"]
        for _ in range(n):
            label = rng.choice(list(GROUPS))
            words = rng.choices(("the", "of", "big", "red"), k=2)
            letter = rng.choice(GROUPS[label][letters])
            flipped = name == "train" and flips.random() < wrong
            shown = next(g for g in GROUPS if (g == label) != flipped)
            lines.append(f"{' '.join(words)} {letter}\t{shown}\n")
        paths.append(folder / f"{name}.tsv")
        paths[-1].write_text("".join(lines))
    return paths[0], paths[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return written(tmp_path_factory.mktemp("letters"), seed=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """One layer of two heads, whose word embeddings know the groups: so does their mean."""
    loaded = headscope.load(str(tiny_bert(tmp_path_factory.mktemp("bert"), layers=1, heads=2)))
    embeddings = loaded.model.embeddings
    with torch.no_grad():
        embeddings.word_embeddings.weight[:, HELD] = 0
        embeddings.position_embeddings.weight.zero_()
        embeddings.token_type_embeddings.weight.zero_()
        for sign, letters in zip((1.0, -1.0), GROUPS.values(), strict=True):
            for letter in letters:
                row = embeddings.word_embeddings.weight[VOCABULARY.index(letter)]
                row.zero_()
                row[HELD] = sign * SIGNS
    return loaded


def shut(plain: LoadedModel) -> LoadedModel:
    """Nothing but the last norm's gains stands between the group and the classifier: they are 0.

    All maps are 0, and no gradient leads out of that: neither weights nor rank-one changes move.
    """
    loaded = copy.deepcopy(plain)
    layer = loaded.model.encoder.layer[0]
    with torch.no_grad():
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.zero_()
                module.bias.zero_()
        layer.output.LayerNorm.weight.fill_(0.03)
        layer.output.LayerNorm.weight[HELD] = 0
    return loaded


def blind(plain: LoadedModel, out: float = 10.0) -> LoadedModel:
    """The classifier reads the first token, and W_V = 0 keeps the letter from it: no norm helps."""
    loaded = copy.deepcopy(plain)
    attention = loaded.model.encoder.layer[0].attention
    with torch.no_grad():
        attention.self.value.weight.zero_()
        attention.self.value.bias.zero_()
        attention.output.dense.weight.mul_(out)
    return dataclasses.replace(loaded.pooled_by("cls"), file=None)


def tuned(
    model: LoadedModel, files: Files, *variants: str, **more: Any
) -> tuple[TransferResult, dict[int, Insight]]:
    options = {**FEW, "validate": False, "variants": list(variants), **more}
    transfer = headscope.transfer(model, *files, **options)
    evidence = Evidence(transfer=transfer)
    names = {8: "layernorm", 9: "frozen", 10: "unstable"}
    return transfer, {number: decide(name, evidence) for number, name in names.items()}


def outcomes(insight: Insight) -> list[str]:
    return [p.verdict for p in insight.parts]


def test_where_only_norms_reach_the_answer_8_and_9_hold(plain, files):
    variants = ("head", "layernorm", *EQUAL, "all")
    options = {"random": ["layernorm"], "steps": 30, "rates": NEAR_OPEN}
    _, insights = tuned(shut(plain), files, *variants, **options)
    assert outcomes(insights[8]) == ["holds"] * 3
    assert outcomes(insights[9]) == ["holds"] * 2
    assert (insights[8].verdict, insights[9].verdict) == ("holds", "holds")
    assert insights[10].verdict == "not measured"  # attention was not tuned


def test_where_norms_cannot_reach_it_none_of_them_holds(plain, files):
    """Attention learns to look, always; so do rank-one changes; norms stay at chance."""
    variants = ("head", "layernorm", "lora", "attention", "all")
    options = {"random": ["layernorm"], "steps": 30, "spread_seeds": 3, "rates": NEAR_BLIND}
    transfer, insights = tuned(blind(plain), files, *variants, **options)
    pretrained = [cell for cell in transfer.cells if cell.weights == "pretrained"]
    accuracy = {cell.variant: cell.accuracy.value for cell in pretrained}
    assert min(accuracy["attention"], accuracy["lora"]) > 85
    assert max(accuracy["head"], accuracy["layernorm"]) < 70
    assert insights[8].verdict == "does not hold"
    assert outcomes(insights[9])[0] == "does not hold"
    assert outcomes(insights[9])[1] != "holds"
    assert "holds" not in outcomes(insights[10])
    assert transfer.spreads[0].bad == 0


def test_attention_that_learns_in_some_runs_makes_10_hold(plain, files):
    """Two steps are enough for some runs of attention; norms stay at chance in all of them."""
    rates = {"layernorm": (1e-4, 1e-3, 1e-2), "attention": (1e-2, 3e-2, 1e-1)}
    more: dict[str, Any] = {"rates": rates, "seeds": 1, "sizes": [16], "batch": 8, "steps": 2}
    frail = blind(plain, 0.005)
    _, insights = tuned(frail, files, "layernorm", "attention", **more, spread_seeds=8)
    assert insights[10].verdict == "holds"
    assert outcomes(insights[10])[1] == "holds"


def test_attention_that_diverges_makes_10_hold(plain, tmp_path):
    """With wrong labels a state in a small unit blows up above the best rate, norms' does not."""
    rates = {"layernorm": (1e-5, 1e-4, 1e-3), "attention": (1e-4, 1e-3, 1e-2)}
    options = {"rates": rates, "seeds": 1, "sizes": [64], "steps": 8}
    # Blind, and a little of the other words passes: in its small unit, changes of W_V are huge.
    frail = blind(plain)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        value = frail.model.encoder.layer[0].attention.self.value
        value.weight[:, 8:] = 1e-3 * torch.randn(16, 8, generator=generator)
    transfer, insights = tuned(
        frail, written(tmp_path, wrong=0.3), "layernorm", "attention", **options
    )
    assert (outcomes(insights[10])[0], insights[10].verdict) == ("holds", "holds")
    assert {(c.factor, c.runs) for c in transfer.divergence} == {(f, 5) for f in (1.0, 3.0, 10.0)}
