"""Claims on models that were made to pass or to fail: for every part one of each, measured."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from families import COVERED
from tiny_models import VOCABULARY, WORDS, framed_tokenizer, tiny_tokenizer
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertModel

import headscope
from headscope.data.corpus import as_plain
from headscope.models.run.loaded import LoadedModel
from headscope.reports.claims.kept_roles import measure_kept_roles
from headscope.reports.claims.registry import decide
from headscope.reports.claims.rule import Evidence
from headscope.reports.claims.survivors import judge_survivors
from headscope.reports.result import Insight

YES = "holds"
NO = "does not hold"


def parts(insight: Insight) -> dict[str, str]:
    return {p.name: p.verdict for p in insight.parts}


def bert(**sizes: Any) -> Any:
    torch.manual_seed(0)
    usual = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    small = {"vocab_size": len(VOCABULARY), "intermediate_size": 32, "max_position_embeddings": 64}
    return BertModel(BertConfig(**{**usual, **small, **sizes})).eval()


def opened(network: Any) -> LoadedModel:
    return headscope.wrap(network, tiny_tokenizer(62))


def layers(network: Any) -> Iterable[Any]:
    return (layer.attention for layer in network.encoder.layer)


WHOLE = [word for word in WORDS if not word.startswith("##")]

WEIGHTS = "W_QW_Kᵀ of every head is asymmetric"
PATTERNS = "every head's pattern is asymmetric"
OUTPUT = "symmetric scores move the output more than random changes"
#: Letters by class: a query of one class looks for keys of the next, c for a.
CLASSES = ("aeiou", "bdfgh", "lmnrs")
KINDS = (0,) * 10 + (1,) * 2 + (2,) * 10
LINES = [
    " ".join(CLASSES[kind][(i + j) % 5] for j, kind in enumerate(KINDS[i % 3 :])) for i in range(24)
]


@torch.no_grad()
def directed(seeks: tuple[int, ...], sharpness: float) -> Any:
    """One layer whose tokens have a class each, and seek the class that ``seeks`` says."""
    network = bert(num_hidden_layers=1, num_attention_heads=1)
    for name, parameter in network.named_parameters():
        if "LayerNorm" not in name:
            parameter.zero_()
    words = network.embeddings.word_embeddings.weight
    for kind, letters in enumerate(CLASSES):
        for letter in letters:
            words[VOCABULARY.index(letter), 2 * kind : 2 * kind + 2] = torch.tensor([1.0, -1.0])
    attention = network.encoder.layer[0].attention
    for kind, sought in enumerate(seeks):
        attention.self.query.weight[sought, 2 * kind] = sharpness
        attention.self.key.weight[kind, 2 * kind] = sharpness**0.5
        attention.self.value.weight[kind, 2 * kind] = 1.0
        attention.output.dense.weight[10 + kind, kind] = 5.0
    return network


@torch.no_grad()
def for_claim_0(how: str) -> Any:
    if how == "untrained and sharp":
        network = bert(initializer_range=0.05)
        for layer in layers(network):
            layer.self.query.weight *= 200.0
        return network
    network = directed((1, 0, 2) if how == "tied" else (1, 2, 0), 1e-3 if how == "even" else 2.0)
    if how == "without use":
        network.encoder.layer[0].attention.output.dense.weight.zero_()
    return network


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("directed", (YES, YES, YES)),
        ("tied", (NO, YES, NO)),
        ("even", (YES, NO, NO)),
        ("without use", (YES, YES, NO)),
        ("untrained and sharp", (YES, YES, "open")),
    ],
)
def test_every_part_of_claim_0_holds_for_one_model_and_not_for_another(how, expected):
    network = for_claim_0(how)
    loaded = opened(network)
    ranked = headscope.rank(loaded, text=as_plain(LINES), validate=False)
    moved = headscope.symmetric(loaded, LINES, validate=False)
    insight = decide("asymmetry", Evidence(rank=ranked, symmetric=moved))
    judged = tuple(parts(insight)[name] for name in (WEIGHTS, PATTERNS, OUTPUT))
    assert judged == expected, insight.parts
    if how == "untrained and sharp":
        with_noise = moved.whole["noise"].cosine
        with_symmetric = moved.whole["symmetric"].cosine
        assert with_symmetric.high < with_noise.low  # which is why noise alone is no control


@pytest.mark.parametrize(("tied", "verdict"), [(False, YES), (True, NO)])
def test_rotated_queries_and_keys_are_decided_by_their_scores(tied, verdict):
    """x_i W_Q R(i - j) W_K^T x_j is symmetric where W_Q = W_K, whatever R turns by."""
    family = next(family for family in COVERED if family.name == "modernbert")
    network = family.model(vocab_size=len(VOCABULARY))
    if tied:
        for module in network.modules():
            if hasattr(module, "Wqkv"):
                width = module.Wqkv.weight.shape[1]
                module.Wqkv.weight.data[width : 2 * width] = module.Wqkv.weight.data[:width]
    loaded = headscope.wrap(network, tiny_tokenizer(38))
    ranked = headscope.rank(loaded, control_seeds=2, fresh=False, validate=False)
    if tied:  # at every distance
        assert max(head.over_distances.asymmetry_high for head in ranked.heads) < 1e-12
    moved = headscope.symmetric(loaded, LINES[:8], validate=False)
    insight = decide("asymmetry", Evidence(symmetric=moved, rank=ranked))
    assert parts(insight)["every head's scores are asymmetric"] == verdict
    assert WEIGHTS not in parts(insight)
    assert "W_QW_Kᵀ, which positions rotate, has one of" in insight.measured
    assert decide("asymmetry", Evidence(rank=ranked)).verdict == "not measured yet"


LABELLED = {(0, 1), (0, 5), (1, 2), (1, 3)}
BETTER = "labelled heads do better than random ones"
LITTLE = "little is lost without the others"


@pytest.fixture(scope="module")
def classified() -> headscope.ClassifyResult:
    """A classification that labels some heads, whatever they do."""
    measured = headscope.classify(opened(eight_heads()), limit=4, validate=False)
    labels = [("syntactic",) if (h.layer, h.head) in LABELLED else () for h in measured.heads]
    heads = tuple(replace(h, roles=r) for h, r in zip(measured.heads, labels, strict=True))
    return replace(measured, corpus=replace(measured.corpus, sha256="other"), heads=heads)


@torch.no_grad()
def eight_heads(*, loud: Iterable[tuple[int, int]] = (), quiet: float = 1.0) -> Any:
    """Two layers of eight heads; what the heads that are not loud write is scaled."""
    network = bert(hidden_size=64, num_attention_heads=8, initializer_range=0.2)
    for row, layer in enumerate(layers(network)):
        for head in range(8):
            if (row, head) not in loud:
                layer.output.dense.weight[:, 8 * head : 8 * head + 8] *= quiet
    return network


@pytest.mark.parametrize(
    ("loud", "quiet", "expected"),
    [
        (LABELLED, 0.0, {BETTER: YES, LITTLE: YES}),
        # All of a layer are alike, and the other layer writes nothing: where heads lie is no merit.
        ({(1, head) for head in range(8)}, 0.0, {BETTER: NO}),
        ({(0, 0), (0, 2), (1, 4), (1, 6)}, 0.0, {BETTER: NO, LITTLE: NO}),
        ((), 0.0, {BETTER: NO, LITTLE: YES}),  # no head does anything
    ],
    ids=["labelled", "one layer", "others", "none"],
)
def test_kept_heads_must_beat_others_of_their_layers(loud, quiet, expected, classified):
    loaded = opened(eight_heads(loud=loud, quiet=quiet))
    labelled = measure_kept_roles(loaded, classified, limit=24)
    assert labelled.sets == 28**2
    insight = decide("labelled_heads", Evidence(kept_roles=labelled))
    assert {name: parts(insight)[name] for name in expected} == expected, insight.parts


@torch.no_grad()
def translator(encoder: float, decoder: float, *cross: float, alike: bool = False) -> Any:
    """A BART that writes words, its stacks' outputs scaled: cross-attention's by layer.

    ``alike``: the heads of a layer of cross-attention are copies of one, so each can stand for all.
    """
    sizes = {**tiny_models._SIZES, "encoder_layers": 1, "decoder_layers": len(cross)}
    sizes["decoder_start_token_id"] = tiny_models.CLS
    kinds = {"bart": (BartForConditionalGeneration, BartConfig, sizes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_models, "_KINDS", kinds)
        network = tiny_models.translator("bart")
    network.model.encoder.layers[0].self_attn.out_proj.weight *= encoder
    for layer, scale in zip(network.model.decoder.layers, cross, strict=True):
        layer.self_attn.out_proj.weight *= decoder
        attention = layer.encoder_attn
        attention.out_proj.weight *= scale
        if alike:
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
                linear.weight.copy_(linear.weight[:4].repeat(4, 1))
                linear.bias.copy_(linear.bias[:4].repeat(4))
            attention.out_proj.weight.copy_(attention.out_proj.weight[:, :4].repeat(1, 4) / 4)
    return network


@pytest.mark.parametrize(
    ("make", "step", "expected", "last"),
    [
        (lambda: translator(0.0, 0.0, 0.0, 0.0, 1.0, 1.0), 0.25, YES, YES),
        (lambda: translator(0.0, 0.0, 1.0, 1.0, 0.0, 0.0), 0.25, YES, NO),
        (lambda: translator(5.0, 1.0, 1.0, alike=True), 0.5, NO, "not measured"),
        (lambda: translator(0.0, 0.0, 0.0), 0.5, "not measured", "not measured"),
    ],
    ids=["last layers", "first layers", "heads of cross-attention alike", "no attention"],
)
def test_cross_attention_is_judged_by_what_it_does(make, step, expected, last, tmp_path):
    rng = np.random.default_rng(0)
    sources = tuple(" ".join(rng.choice(WHOLE, rng.integers(2, 7))) for _ in range(16))
    network = make()
    network.save_pretrained(tmp_path / "model")
    framed_tokenizer("$A [SEP]").save_pretrained(tmp_path / "model")
    pairs = tiny_models.own_pairs(network, sources)
    data = tiny_models.write_pairs(tmp_path / "pairs.tsv", pairs)
    pruned = headscope.prune(
        str(tmp_path / "model"),
        task="seq2seq",
        data=data,
        calibration=data,
        step=step,
        methods=["surgeon"],
        repairs=["none"],
        validate=False,
    )
    insight = decide(
        "cross_attention", Evidence(prune=pruned, stacks=("encoder", "decoder", "cross"))
    )
    assert insight.verdict == expected, insight.parts
    assert set(parts(insight).values()) == {expected}
    assert judge_survivors(pruned).outcome == last


SHARED = "layers need fewer dimensions than the control"
SINGLE = "single heads need about as many"


@torch.no_grad()
def projecting(how: str) -> Any:
    """Heads of one shared subspace each turned at random, or of three dimensions each."""
    network = bert(hidden_size=64, num_hidden_layers=3, initializer_range=0.1)
    for layer in layers(network):
        for linear in (layer.self.query, layer.self.key):
            heads = linear.weight.view(4, 16, 64)
            if how == "shared":
                for head in range(1, 4):
                    heads[head] = torch.linalg.qr(torch.randn(16, 16))[0] @ heads[0]
            if how == "thin":
                heads[:, 3:] *= 1e-3
    return network


@pytest.mark.parametrize(
    ("how", "expected", "verdict"),
    [
        ("shared", (YES, YES), YES),
        ("untrained", (NO, YES), NO),
        ("thin", (YES, NO), "mixed"),
    ],
)
def test_heads_share_projections_or_not(how, expected, verdict):
    ranked = headscope.rank(opened(projecting(how)), validate=False)
    insight = decide("shared_projections", Evidence(rank=ranked))
    assert (parts(insight)[SHARED], parts(insight)[SINGLE]) == expected, insight.parts
    assert insight.verdict == verdict


STREAM = as_plain([" ".join(np.random.default_rng(i).choice(WHOLE, 12)) for i in range(60)])


@torch.no_grad()
def itself(network: Any, *, layer_numbers: Iterable[int]) -> None:
    """Let the heads of some layers look at their own position, and pass on what they see there."""
    eye = torch.eye(32)
    for layer in (network.encoder.layer[i].attention for i in layer_numbers):
        layer.self.query.weight.copy_(20 * eye)
        layer.self.key.weight.copy_(20 * eye)
        layer.self.value.weight.copy_(eye)
        layer.output.dense.weight.copy_(eye)


@torch.no_grad()
def flat_or_sharp(how: str) -> Any:
    network = bert(num_attention_heads=4 if how == "untrained" else 1, initializer_range=0.02)
    if how == "sharp":
        itself(network, layer_numbers=(0, 1))
        places = torch.linalg.qr(torch.randn(64, 64))[0][:, :32]
        network.embeddings.position_embeddings.weight.copy_(20 * places)
    return network


@pytest.mark.parametrize(("how", "verdict"), [("untrained", YES), ("sharp", NO)])
def test_patterns_are_of_low_rank_or_not(how, verdict):
    """An untrained model's are, and the text says that this is no sign of learning."""
    loaded = opened(flat_or_sharp(how))
    measured = headscope.spectrum(
        loaded, STREAM, length=16, sequences=10, control=True, validate=False
    )
    insight = decide("low_rank", Evidence(spectrum=measured))
    assert insight.verdict == verdict, insight.parts
    assert insight.control.startswith("Random weights: mean share 0.9")
    assert "nothing about learning" in insight.control or "no sign of learning" in insight.control


FALLS = "attention alone collapses"


@torch.no_grad()
def deep(how: str) -> Any:
    """Four layers of one nearly even head; the feed-forward network undoes what all tokens get."""
    network = bert(num_hidden_layers=4, num_attention_heads=1, initializer_range=0.2)
    common = torch.randn(32)
    common = (common - common.mean()) / (common - common.mean()).norm()
    for layer in network.encoder.layer:
        for linear in (layer.attention.self.query, layer.attention.self.key):
            linear.weight.copy_(0.3 * torch.eye(32))
        layer.attention.output.dense.bias.copy_(3 * common)  # the same for all tokens
        for linear in (layer.intermediate.dense, layer.output.dense):
            linear.weight.zero_()
            linear.bias.zero_()
        layer.intermediate.dense.weight[:2] = torch.stack([common, -common])
        layer.output.dense.weight[:, :2] = torch.stack([-common, common], 1)  # x - common common.x
        if how == "loud":
            layer.attention.output.dense.weight *= 1e4
        if how == "feed-forward adds a constant":
            layer.output.dense.bias.normal_(std=100.0)
        if how == "norm adds a constant":
            layer.attention.output.LayerNorm.bias.normal_(std=10.0)
    looking_at_itself = {"itself": range(4), "norm adds a constant": range(4), "levels": (1, 2)}
    itself(network, layer_numbers=looking_at_itself.get(how, ()))
    if how == "levels":
        network.encoder.layer[3].attention.self.query.weight.zero_()
    return network


@pytest.mark.parametrize(
    ("how", "part_name", "expected"),
    [
        ("collapsing", None, YES),
        ("itself", FALLS, NO),
        ("levels", "at least as fast as exponentially", NO),
        ("loud", "the skip connection prevents it", NO),
        ("feed-forward adds a constant", "the feed-forward network slows it", NO),
        ("norm adds a constant", "LayerNorm plays no role", NO),
    ],
)
def test_every_part_of_claim_7_holds_for_one_model_and_not_for_another(how, part_name, expected):
    measured = headscope.depth(
        opened(deep(how)), STREAM, length=16, sequences=8, control=False, validate=False
    )
    insight = decide("collapse", Evidence(depth=measured))
    judged = set(parts(insight).values()) if part_name is None else {parts(insight)[part_name]}
    assert judged == {expected}, insight.parts
    assert insight.verdict == {None: expected, FALLS: NO}.get(part_name, "mixed")
