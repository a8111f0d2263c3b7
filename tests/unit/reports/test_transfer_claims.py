"""Claims 8 to 10 on planted models that are really trained: a part passes on one, fails on another.

The answer is which of two groups a letter belongs to. The models know it: half of the dimensions
are +1 for letters of one group, -1 for those of the other, and nothing for all other words. Letters
of the test are none of the training's, so random weights cannot know.
"""

import copy
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, tiny_bert

import headscope
from headscope.analyses.transfer.result import TransferResult
from headscope.models.run.loaded import LoadedModel
from headscope.reports.claims.rule import Evidence
from headscope.reports.claims.run import decide
from headscope.reports.result import Insight
from headscope.stats.estimate import Estimate

GROUPS = {"one": "bcdefghijklm", "two": "nopqrstuvwxy"}
#: The dimensions that hold the group; signs that leave the norm's mean and variance as they are.
HELD = slice(0, 8)
SIGNS = torch.tensor([1.0, -1.0] * 4)
RATES: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("head", "layernorm", "biases", "weights", "lora"), (1e-2, 3e-2, 1e-1)),
    **dict.fromkeys(("attention", "all"), (3e-3, 1e-2, 3e-2)),
}
FEW: dict[str, Any] = {
    **{"sizes": [32], "seeds": 3, "spread_seeds": 5},
    **{"random": [], "rates": RATES, "validate": False},
}
EQUAL = ("biases", "weights", "lora")

Files = tuple[Path, Path]


def written(folder: Path, *, wrong: float = 0.0, seed: int = 0) -> Files:
    """Two words and a letter; the training part has each label wrong with some probability."""
    rng, flips = random.Random(seed), random.Random(3)
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


def shut(plain: LoadedModel, rest: float = 0.03) -> LoadedModel:
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
        layer.output.LayerNorm.weight.fill_(rest)
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


def verdicts(found: TransferResult) -> dict[int, Insight]:
    names = {8: "layernorm", 9: "frozen", 10: "unstable"}
    return {n: decide(name, Evidence(transfer=found)) for n, name in names.items()}


def tuned(
    model: LoadedModel, files: Files, *variants: str, **more: Any
) -> tuple[TransferResult, dict[int, Insight]]:
    found = headscope.transfer(model, *files, **{**FEW, "variants": list(variants), **more})
    return found, verdicts(found)


def parts(finding: Insight) -> list[str]:
    return [part.verdict for part in finding.parts]


def test_where_only_norms_reach_the_answer_8_and_9_hold(plain, files):
    variants = ("head", "layernorm", *EQUAL, "all")
    found, told = tuned(shut(plain), files, *variants, random=["layernorm"], steps=40)
    assert parts(told[8]) == ["holds"] * 3
    assert parts(told[9]) == ["holds"] * 2
    assert (told[8].verdict, told[9].verdict) == ("holds", "holds")
    assert told[10].verdict == "not measured"  # attention was not tuned
    # The same runs, had one of the sets ended at the edge of its grid, or not been searched.
    for name, optimum, lost in (("lora", "edge", {8}), ("all", "not searched", {9})):
        cells = [
            dataclasses.replace(cell, optimum=optimum) if cell.variant == name else cell
            for cell in found.cells
        ]
        other = verdicts(dataclasses.replace(found, cells=tuple(cells)))
        assert {n for n in (8, 9) if other[n].verdict == "not measured"} == lost


def test_where_norms_cannot_reach_it_none_of_them_holds(plain, files):
    """Attention learns to look, always; so do rank-one changes; norms stay at chance."""
    variants = ("head", "layernorm", "lora", "attention", "all")
    found, told = tuned(blind(plain), files, *variants, random=["layernorm"], steps=30)
    assert told[8].verdict == "does not hold"
    assert parts(told[9])[0] == "does not hold"
    assert parts(told[9])[1] != "holds"
    assert "holds" not in parts(told[10])
    assert found.spreads[0].bad == 0


def test_attention_that_learns_in_some_runs_makes_10_hold(plain, files):
    """Five steps are enough for most runs of attention; norms stay at chance in all of them."""
    rates = {"layernorm": (1e-4, 1e-3, 1e-2), "attention": (1e-2, 3e-2, 1e-1)}
    more: dict[str, Any] = {"rates": rates, "seeds": 1, "sizes": [16], "batch": 8, "steps": 5}
    found, told = tuned(
        blind(plain, 0.005), files, "layernorm", "attention", **more, spread_seeds=8
    )
    assert told[10].verdict == "holds"
    assert parts(told[10])[1] == "holds"
    # The same runs of LayerNorm, had those of attention differed no more, and none diverged.
    calm = dataclasses.replace(found.spreads[0], bad=0, ratio=Estimate(0.3, 0.1, 0.9))
    assert verdicts(dataclasses.replace(found, spreads=(calm,)))[10].verdict == "does not hold"


@pytest.mark.parametrize(
    ("out", "size", "more", "verdict"),
    [(10.0, 64, "holds", "holds"), (100.0, 32, "open", "does not hold")],
)
def test_attention_that_diverges_makes_10_hold(plain, tmp_path, out, size, more, verdict):
    """With wrong labels a state in a small unit blows up above the best rate, norms' does not.

    With a larger W_O the best rate is lower, and at ten times that nothing happens.
    """
    rates = {"layernorm": (1e-5, 1e-4, 1e-3), "attention": (1e-4, 1e-3, 1e-2)}
    options = {"rates": rates, "seeds": 1, "sizes": [size], "steps": 8}
    # Blind, and a little of the other words passes: in its small unit, changes of W_V are huge.
    frail = blind(plain, out)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        value = frail.model.encoder.layer[0].attention.self.value
        value.weight[:, 8:] = 1e-3 * torch.randn(16, 8, generator=generator)
    files = written(tmp_path, wrong=0.3)
    found, told = tuned(frail, files, "layernorm", "attention", **options)
    assert (parts(told[10])[0], told[10].verdict) == (more, verdict)
    assert {(c.factor, c.runs) for c in found.divergence} == {(f, 5) for f in (1.0, 3.0, 10.0)}
