"""``attribute`` of an encoder-decoder: its target against an oracle that goes forwards."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from contribution_sums import Carried, error_of
from families import BY_NAME, batch, opened
from tiny_models import (
    PAD,
    SEP,
    VOCABULARY,
    framed_tokenizer,
    translator,
    write_pairs,
    write_translator,
)

import headscope
from headscope.analyses.attribute.measure import Example, margin_of
from headscope.analyses.attribute.removal import Versions
from headscope.analyses.attribute.view import VIEW
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.data.token_rows import Ends, encode_pairs
from headscope.models.anatomy.readout import Readout, task_head
from headscope.models.anatomy.residual import find_stream, record
from headscope.models.run.loaded import wrap

SOURCE = "the cat sat on the mat"
TARGET = "a big dog ran"
PAIRS = [(SOURCE, TARGET), ("she saw it", "he saw"), ("a red house", "it was red and big")]
NUMBERS = {piece: i for i, piece in enumerate(VOCABULARY)}
IDS = [*(NUMBERS[word] for word in SOURCE.split()), SEP]
LABELS = [*(NUMBERS[word] for word in TARGET.split()), SEP]
CROSSED = [name for name, family in BY_NAME.items() if "cross" in family.stacks]


@pytest.fixture(scope="module")
def marian():
    network = translator("marian").double()
    torch.manual_seed(8)
    for name, parameter in network.named_parameters():
        if "layer_norm.weight" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    network.final_logits_bias.normal_()
    return wrap(network, framed_tokenizer("$A [SEP]"), name="tiny")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.tsv", PAIRS)


@pytest.fixture(scope="module")
def found(marian, pairs):
    few = {"calibration": pairs, "resamples": 0, "validate": False}
    return headscope.attribute(marian, SOURCE, target=TARGET, tokens=True, **few)


@torch.no_grad()
def logits_of(network, ids=IDS, labels=LABELS) -> torch.Tensor:
    """What transformers itself gives at every position of the target."""
    read = torch.tensor([[PAD, *labels[:-1]]])
    return network(input_ids=torch.tensor([ids]), decoder_input_ids=read).logits[0]


def gold(network, places=(0, 1, 2, 3, 4)) -> float:
    return float(np.mean([float(logits_of(network)[i, LABELS[i]]) for i in places]))


def parts_of_logits(network) -> dict[str, np.ndarray]:
    """The oracle: of the logit of each of the target's tokens, by the name of the part."""
    config = network.config
    decoder = network.get_decoder()
    source = network.get_encoder()(torch.tensor([IDS])).last_hidden_state[0].detach().numpy()
    scale = math.sqrt(config.d_model if config.scale_embedding else 1)
    x = decoder.embed_tokens.weight[[PAD, *LABELS[:-1]]] * scale
    x = x + decoder.embed_positions.weight[: len(LABELS)]
    carried = Carried(network, x.detach().numpy(), config.decoder_attention_heads, 1e-5)
    for layer in range(config.decoder_layers):
        at = f"model.decoder.layers.{layer}"
        for stack, name in (("decoder", "self_attn"), ("cross", "encoder_attn")):
            maps = [f"{at}.{name}.{part}_proj" for part in ("q", "k", "v", "out")]
            keys = source if stack == "cross" else None
            carried.attend(f"{stack}:L{layer}H", maps, keys, causal=stack == "decoder")
            carried.norm(f"{at}.{name}_layer_norm")
        carried.feed_forward(f"F{layer}", f"{at}.fc1", f"{at}.fc2")
        carried.norm(f"{at}.final_layer_norm")
    W = carried.weights["lm_head.weight"][LABELS]
    found = {name: (part * W).sum(-1) for name, part in carried.parts.items()}
    found["biases"] = found["biases"] + network.final_logits_bias[0].numpy()[LABELS]
    return found


def test_parts_of_a_target_are_those_of_the_oracle(marian, found):
    expected = {n: part.mean() for n, part in parts_of_logits(marian.network).items()}
    assert found.output.value == pytest.approx(gold(marian.network), abs=1e-12)
    assert sum(expected.values()) == pytest.approx(found.output.value, abs=1e-12)
    assert found.check.error < 1e-12
    for head in found.heads:
        own = None if head.stack == "encoder" else pytest.approx(expected[head.name], abs=1e-12)
        assert head.direct.value == own
    for layer in found.layers:
        own = expected[f"F{layer.layer}"]
        known = None if layer.stack == "cross" else pytest.approx(own, abs=1e-12)
        assert layer.feed_forward.value == known
    for kind in ("embeddings", "biases"):
        assert found.part(kind).value == pytest.approx(expected[kind], abs=1e-12)
    for stack, kind in (("decoder", "self-attention"), ("cross", "cross-attention")):
        own = sum(part for name, part in expected.items() if name.startswith(stack))
        assert found.part(kind).value == pytest.approx(own, abs=1e-12)
    # By the token that was read: the source by cross-attention alone.
    for text, kind in ((0, "cross-attention"), (1, "self-attention")):
        read = sum(token.heads for token in found.tokens if token.text == text)
        assert read == pytest.approx(found.part(kind).value, abs=1e-12)
    assert sum(t.embeddings for t in found.tokens) == pytest.approx(expected["embeddings"])
    assert [t.token for t in found.tokens if t.text == 0] == [*SOURCE.split(), "[SEP]"]
    # The rows of the table are what cross-attention gives to each of the target's tokens.
    by_row = {n: p for n, p in parts_of_logits(marian.network).items() if n.startswith("cross")}
    rows = np.array(found.pairs.values).sum(1) * len(LABELS)
    np.testing.assert_allclose(rows, sum(by_row.values()), atol=1e-12)
    assert found.pairs.rows == (*TARGET.split(), "[SEP]")
    assert len(found.pairs.columns) == len(IDS)


def test_one_token_of_a_target_is_its_own_logit(marian, pairs):
    expected = parts_of_logits(marian.network)
    found = headscope.attribute(
        marian, SOURCE, target=TARGET, at=3, tokens=True, calibration=pairs, resamples=0
    )
    assert (found.label, found.pairs.rows) == ("dog", ("dog",))
    assert found.output.value == pytest.approx(gold(marian.network, [2]), abs=1e-12)
    for head in found.heads:
        if head.stack != "encoder":
            assert head.direct.value == pytest.approx(expected[head.name][2], abs=1e-12)


@pytest.mark.parametrize(("stack", "side"), [("cross", "encoder_attn"), ("decoder", "self_attn")])
def test_the_mean_that_is_left_is_of_the_calibration_pairs(marian, found, stack, side):
    """The decoder's start token is special, and has a mean of its own.

    A pair that shares a text with what is taken apart is left out of the means.
    """
    network = copy.deepcopy(marian.network)
    own = slice(8, 12)
    dense = network.get_submodule(f"model.decoder.layers.1.{side}.out_proj")
    seen = []
    handle = dense.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, :, own]))
    others = [pair for pair in PAIRS if not {*pair} & {SOURCE, TARGET}]
    assert 1 < len(others) < len(PAIRS)
    assert found.calibration["dropped"] == len(PAIRS) - len(others)
    for source, target in others:
        ids, labels = ([*(NUMBERS[w] for w in t.split()), SEP] for t in (source, target))
        logits_of(network, ids, labels)
    handle.remove()
    first, rest = (torch.cat([z[part] for z in seen]).mean(0) for part in (slice(1), slice(1, 99)))

    def leave(_, args):
        z = args[0].clone()
        z[0, :, own] = rest
        z[0, 0, own] = first
        return (z,)

    dense.register_forward_pre_hook(leave)
    expected = gold(marian.network) - gold(network)
    head = next(h for h in found.heads if h.name == f"{stack}:L1H2")
    assert head.removed_mean.value == pytest.approx(expected, abs=1e-10)


# --- every family ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CROSSED)
def test_the_parts_of_every_family_add_up(name):
    loaded = opened(name, "float64")
    stream = find_stream(loaded)
    given = batch(loaded)
    ids, real, read, read_mask = given.values()
    decoder = {"decoder_input_ids": read, "decoder_attention_mask": read_mask}
    weights = torch.randn(3, 7, 61, dtype=torch.float64) * read_mask[..., None]

    def linear(logits):
        return (logits * weights).sum((1, 2))[:, None]

    run = record(loaded, stream, ids, real, decoder=decoder, patterns=True)
    head = task_head(loaded, stream.end, ids, real, None, decoder=decoder, read=linear)
    readout = Readout(head, run.hidden)
    own = linear(loaded.network(**given).logits.detach())
    torch.testing.assert_close(readout.value, own)
    g, constant = readout.of(torch.ones_like(own))
    by_place, by_source = (run.contributions(g, by_source=by) for by in (False, True))
    for parts in (by_place, by_source):
        # T5's norms are of float32.
        assert error_of(parts, own[:, 0] - constant) < (1e-6 if "t5" in name else 1e-12)
    torch.testing.assert_close(by_place.heads.sum(-1), by_source.heads.sum(-1))
    cross = [site.row for site in loaded.sites if site.stack == "cross"]
    torch.testing.assert_close(
        by_source.cross.sum((1, 2)), by_source.heads[:, cross].sum((1, 2, 3))
    )
    assert float(by_source.heads[:, :2].abs().max()) == 0  # the encoder's


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_layers_that_are_played_back_change_nothing(kind):
    """Sets that share heads, in an order that mixes all stacks, and each in a run of its own."""
    loaded = wrap(translator(kind).double(), framed_tokenizer("$A [SEP]"), name="tiny")
    ends = Ends(loaded.start_id, SEP)
    (row,) = encode_pairs(loaded, [SOURCE], [TARGET], ends)
    example = Example("target", (row,), positions=tuple(range(len(LABELS))))
    heads = [(site.row, i) for site in loaded.sites for i in range(0, site.n_heads, 2)]
    base = [heads[5], heads[-1]]
    sets = [base, *((*base, head) for head in heads[::-1])]
    together = Versions(loaded, example, margin_of).measure(sets, base=base)
    alone = [
        float(Versions(loaded, example, margin_of).measure([own], base=own)[0]) for own in sets
    ]
    np.testing.assert_allclose(together, alone, atol=1e-10)
    assert len(set(np.round(alone, 8))) > len(heads) - 3


# --- what is taken where nothing, or something else, is given ------------------------------------


def test_without_a_target_it_is_what_the_model_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("headscope.analyses.attribute.reversal.SEARCHES", 2)
    folder = write_translator(tmp_path / "model")
    source = "a big red dog ran"
    tokenizer = framed_tokenizer("$A [SEP]")
    ids = torch.tensor([tokenizer(source).input_ids])
    ids = translator("marian").generate(ids, num_beams=1, do_sample=False, max_new_tokens=16)
    written = tokenizer.decode(ids[0], skip_special_tokens=True)
    lines = ["the cat sat", "he saw a dog", "it"]
    few = {"calibration": lines, "resamples": 0, "validate": False}
    found = headscope.attribute(str(folder), source, flip=True, tokens=True, **few)
    assert (found.kind, found.texts) == ("target", (source, written))
    # Cut short after 16 tokens, it has no end token.
    assert list(found.pairs.rows) == tokenizer.convert_ids_to_tokens(ids[0, 1:])
    assert found.calibration["lines"] == 3
    assert found.reversal.question == "predicted"
    assert found.reversal.margins[0] > 0
    same = 0.2 * found.reversal.margins[0] + 1e-9
    assert all(abs(o.margin - found.reversal.margins[0]) <= same for o in found.reversal.others)
    cards = list(VIEW.facts(found, []))  # The page's heads are the encoder's.
    assert [(card.layer, card.head) for card in cards] == list(itertools.product((0, 1), range(4)))
    assert all("direct" not in card.values for card in cards)
    # Two texts are compared by the encoder, as before.
    both = headscope.attribute(str(folder), source, "a dog", **few)
    assert both.kind == "cosine"
    assert {head.stack for head in both.heads} == {"encoder"}


def test_data_gives_means_of_single_runs(marian, pairs):
    few = {"resamples": 0, "validate": False}
    found = headscope.attribute(marian, data=pairs, removals=2, control=True, **few)
    few["calibration"] = pairs
    alone = [headscope.attribute(marian, a, target=b, **few) for a, b in PAIRS]
    assert (found.kind, found.examples, found.removals) == ("target", 3, 2)
    assert found.output.value == pytest.approx(np.mean([r.output.value for r in alone]))
    swapped = headscope.attribute(marian, PAIRS[1][0], target=PAIRS[0][1], **few).output.value
    others = [(PAIRS[2][0], PAIRS[1][1]), (PAIRS[0][0], PAIRS[2][1])]
    rest = [headscope.attribute(marian, a, target=b, **few).output.value for a, b in others]
    assert found.shuffled.output.value == pytest.approx(np.mean([swapped, *rest]))
    assert found.control.output.value != found.output.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"first": SOURCE, "second": "x", "target": TARGET}, "leave 'second' out"),
        ({"first": SOURCE, "target": TARGET, "label": "cat"}, "leave 'label' out"),
        ({"first": SOURCE, "target": TARGET, "at": 6}, "'at' from 1 to 5"),
        ({"first": SOURCE, "target": "dog " * 90}, "has no token, or more than"),
        ({"first": SOURCE, "target": "漢"}, "has no token for a part of the target"),
        ({"target": TARGET}, "give that text too"),
        ({"first": SOURCE, "target": TARGET, "of": "cosine"}, "two texts|gives a cosine"),
    ],
)
def test_what_is_refused(marian, options, words):
    with pytest.raises(InputError, match=words):
        headscope.attribute(marian, **options, validate=False)


def test_a_decoder_with_another_part_is_refused(marian):
    odd = copy.deepcopy(marian.network)
    layer = odd.model.decoder.layers[1]
    forward = layer.forward

    def more(hidden, *args, **kwargs):
        out = forward(hidden, *args, **kwargs)
        first = out[0] if isinstance(out, tuple) else out
        return (first + hidden.flip(-1), *out[1:]) if isinstance(out, tuple) else first + hidden

    layer.forward = more
    with pytest.raises(UnsupportedModelError, match="decoder layer 1"):
        find_stream(wrap(odd, marian.tokenizer))
