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
from headscope.analyses.attribute.removal import Versions
from headscope.analyses.attribute.targets import example_of
from headscope.analyses.attribute.view import VIEW
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.data.token_rows import Ends, encode_pairs
from headscope.models.anatomy.readout import Readout, task_head
from headscope.models.anatomy.residual import find_stream, record
from headscope.models.run.wrapping import wrap

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
def attributed(marian, pairs):
    """The mean logit of TARGET given SOURCE, taken apart by token too."""
    return headscope.attribute(
        marian, SOURCE, target=TARGET, tokens=True, calibration=pairs, validate=False
    )


@torch.no_grad()
def logits_of(network, ids=IDS, labels=LABELS) -> torch.Tensor:
    """What transformers itself gives at every position of the target."""
    read = torch.tensor([[PAD, *labels[:-1]]])
    return network(input_ids=torch.tensor([ids]), decoder_input_ids=read).logits[0]


def mean_logit(network, positions=(0, 1, 2, 3, 4)) -> float:
    """Return the mean logit of the target's tokens at some positions."""
    logits = logits_of(network)
    return float(np.mean([float(logits[i, LABELS[i]]) for i in positions]))


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
        prefix = f"model.decoder.layers.{layer}"
        for stack, name in (("decoder", "self_attn"), ("cross", "encoder_attn")):
            maps = [f"{prefix}.{name}.{letter}_proj" for letter in ("q", "k", "v", "out")]
            keys = source if stack == "cross" else None
            carried.attend(f"{stack}:L{layer}H", maps, keys, causal=stack == "decoder")
            carried.norm(f"{prefix}.{name}_layer_norm")
        carried.feed_forward(f"F{layer}", f"{prefix}.fc1", f"{prefix}.fc2")
        carried.norm(f"{prefix}.final_layer_norm")
    W_U = carried.weights["lm_head.weight"][LABELS]
    logits = {name: (written * W_U).sum(-1) for name, written in carried.parts.items()}
    logits["biases"] = logits["biases"] + network.final_logits_bias[0].numpy()[LABELS]
    return logits


def test_parts_of_a_target_are_those_of_the_oracle(marian, attributed):
    expected = {name: logits.mean() for name, logits in parts_of_logits(marian.network).items()}
    assert attributed.output.value == pytest.approx(mean_logit(marian.network), abs=1e-12)
    assert sum(expected.values()) == pytest.approx(attributed.output.value, abs=1e-12)
    assert attributed.check.error < 1e-12
    for head in attributed.heads:
        if head.stack == "encoder":
            assert head.direct.value is None
        else:
            assert head.direct.value == pytest.approx(expected[head.name], abs=1e-12)
    for layer in attributed.layers:
        if layer.stack == "cross":
            assert layer.feed_forward.value is None
        else:
            network = expected[f"F{layer.layer}"]
            assert layer.feed_forward.value == pytest.approx(network, abs=1e-12)
    for kind in ("embeddings", "biases"):
        assert attributed.part(kind).value == pytest.approx(expected[kind], abs=1e-12)
    for stack, kind in (("decoder", "self-attention"), ("cross", "cross-attention")):
        of_stack = sum(value for name, value in expected.items() if name.startswith(stack))
        assert attributed.part(kind).value == pytest.approx(of_stack, abs=1e-12)


def test_the_source_is_read_by_cross_attention_alone(marian, attributed):
    for text, kind in ((0, "cross-attention"), (1, "self-attention")):
        read = sum(token.heads for token in attributed.tokens if token.text == text)
        assert read == pytest.approx(attributed.part(kind).value, abs=1e-12)
    source_tokens = [token.token for token in attributed.tokens if token.text == 0]
    assert source_tokens == [*SOURCE.split(), "[SEP]"]
    embeddings = sum(token.embeddings for token in attributed.tokens)
    assert embeddings == pytest.approx(parts_of_logits(marian.network)["embeddings"].mean())


def test_a_row_of_pairs_is_what_cross_attention_gives_to_a_token_of_the_target(marian, attributed):
    cross = sum(
        logits
        for name, logits in parts_of_logits(marian.network).items()
        if name.startswith("cross")
    )
    rows = np.array(attributed.pairs.values).sum(1) * len(LABELS)
    np.testing.assert_allclose(rows, cross, atol=1e-12)
    assert attributed.pairs.rows == (*TARGET.split(), "[SEP]")
    assert len(attributed.pairs.columns) == len(IDS)


def test_one_token_of_a_target_is_its_own_logit(marian, pairs):
    expected = parts_of_logits(marian.network)
    third = headscope.attribute(marian, SOURCE, target=TARGET, at=3, tokens=True, calibration=pairs)
    assert (third.label, third.pairs.rows) == ("dog", ("dog",))
    assert third.output.value == pytest.approx(mean_logit(marian.network, [2]), abs=1e-12)
    for head in third.heads:
        if head.stack != "encoder":
            assert head.direct.value == pytest.approx(expected[head.name][2], abs=1e-12)


@pytest.mark.parametrize(("stack", "name"), [("cross", "encoder_attn"), ("decoder", "self_attn")])
def test_the_mean_that_is_left_is_of_the_calibration_pairs(marian, attributed, stack, name):
    """The decoder's start token is special, and has a mean of its own.

    A pair that shares a text with what is taken apart is left out of the means.
    """
    network = copy.deepcopy(marian.network)
    columns = slice(8, 12)  # of head 2
    dense = network.get_submodule(f"model.decoder.layers.1.{name}.out_proj")
    z_of_pairs = []
    handle = dense.register_forward_pre_hook(
        lambda _, args: z_of_pairs.append(args[0][0, :, columns])
    )
    unshared = [pair for pair in PAIRS if not {*pair} & {SOURCE, TARGET}]
    assert 1 < len(unshared) < len(PAIRS)
    assert attributed.calibration["dropped"] == len(PAIRS) - len(unshared)
    for source, target in unshared:
        ids = [*(NUMBERS[word] for word in source.split()), SEP]
        labels = [*(NUMBERS[word] for word in target.split()), SEP]
        logits_of(network, ids, labels)
    handle.remove()
    at_start = torch.cat([z[:1] for z in z_of_pairs]).mean(0)
    behind_start = torch.cat([z[1:] for z in z_of_pairs]).mean(0)

    def leave_mean(_, args):
        z = args[0].clone()
        z[0, :, columns] = behind_start
        z[0, 0, columns] = at_start
        return (z,)

    dense.register_forward_pre_hook(leave_mean)
    expected = mean_logit(marian.network) - mean_logit(network)
    head = next(head for head in attributed.heads if head.name == f"{stack}:L1H2")
    assert head.removed_mean.value == pytest.approx(expected, abs=1e-10)


# --- every family ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CROSSED)
def test_the_parts_of_every_family_add_up(name):
    loaded = opened(name, "float64")
    stream = find_stream(loaded)
    inputs = batch(loaded)
    ids, real, read, read_mask = inputs.values()
    decoder = {"decoder_input_ids": read, "decoder_attention_mask": read_mask}
    weights = torch.randn(3, 7, 61, dtype=torch.float64) * read_mask[..., None]

    def linear(logits):
        return (logits * weights).sum((1, 2))[:, None]

    run = record(loaded, stream, ids, real, decoder=decoder, patterns=True)
    head = task_head(loaded, stream.end, ids, real, None, decoder=decoder, read=linear)
    readout = Readout(head, run.hidden)
    output = linear(loaded.network(**inputs).logits.detach())
    torch.testing.assert_close(readout.value, output)
    read_by, constant = readout.of(torch.ones_like(output))
    by_position = run.contributions(read_by, by_source=False)
    by_source = run.contributions(read_by, by_source=True)
    tolerance = 1e-6 if "t5" in name else 1e-12  # T5's norms are of float32.
    for contributions in (by_position, by_source):
        assert error_of(contributions, output[:, 0] - constant) < tolerance
    torch.testing.assert_close(by_position.heads.sum(-1), by_source.heads.sum(-1))
    cross = [site.row for site in loaded.sites if site.stack == "cross"]
    torch.testing.assert_close(
        by_source.cross.sum((1, 2)), by_source.heads[:, cross].sum((1, 2, 3))
    )
    assert float(by_source.heads[:, :2].abs().max()) == 0  # the encoder's


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_layers_that_are_played_back_change_nothing(kind):
    """Sets that begin in different stacks, together, and each in a run of its own."""
    loaded = wrap(translator(kind).double(), framed_tokenizer("$A [SEP]"), name="tiny")
    ends = Ends(loaded.start_id, SEP)
    (row,) = encode_pairs(loaded, [SOURCE], [TARGET], ends)
    example = example_of(row)
    heads = []
    for site in loaded.sites:
        heads += [(site.row, i) for i in range(0, site.n_heads, 2)]
    # One head of the encoder goes with each second head: half of the sets begin there.
    sets = [[head] if i % 2 else [head, heads[1]] for i, head in enumerate(reversed(heads))]
    together = Versions(loaded, example).outputs(sets)
    alone = [float(Versions(loaded, example).outputs([heads_off])[0]) for heads_off in sets]
    np.testing.assert_allclose(together, alone, atol=1e-10)
    assert len(set(np.round(alone, 8))) > len(heads) - 3


# --- what is taken where nothing, or something else, is given ------------------------------------


def test_without_a_target_it_is_what_the_model_writes(tmp_path):
    folder = write_translator(tmp_path / "model")
    source = "a big red dog ran"
    tokenizer = framed_tokenizer("$A [SEP]")
    ids = torch.tensor([tokenizer(source).input_ids])
    ids = translator("marian").generate(ids, num_beams=1, do_sample=False, max_new_tokens=16)
    written = tokenizer.decode(ids[0], skip_special_tokens=True)
    lines = ["the cat sat", "he saw a dog", "it"]
    result = headscope.attribute(
        str(folder), source, tokens=True, calibration=lines, validate=False
    )
    assert (result.kind, result.texts) == ("target", (source, written))
    # Cut short after 16 tokens, it has no end token.
    assert list(result.pairs.rows) == tokenizer.convert_ids_to_tokens(ids[0, 1:])
    assert result.calibration["lines"] == 3
    cards = list(VIEW.cards(result, []))  # The page's heads are the encoder's.
    assert [(card.layer, card.head) for card in cards] == list(itertools.product((0, 1), range(4)))
    assert all("direct" not in card.values for card in cards)


def test_two_texts_are_compared_by_the_encoder(tmp_path):
    folder = write_translator(tmp_path / "model")
    lines = ["the cat sat", "he saw a dog", "it"]
    cosine = headscope.attribute(
        str(folder), "a big red dog ran", "a dog", calibration=lines, validate=False
    )
    assert cosine.kind == "cosine"
    assert {head.stack for head in cosine.heads} == {"encoder"}


def test_data_gives_means_of_single_runs(marian, pairs):
    def output_of(source, target):
        alone = headscope.attribute(
            marian, source, target=target, calibration=pairs, validate=False
        )
        return alone.output.value

    many = headscope.attribute(marian, data=pairs, removals=2, control=True, validate=False)
    assert (many.kind, many.examples, many.removals) == ("target", 3, 2)
    outputs = [output_of(source, target) for source, target in PAIRS]
    assert many.output.value == pytest.approx(np.mean(outputs))
    # The control pairs each target with the next pair's source.
    sources = [source for source, _ in PAIRS]
    next_sources = [*sources[1:], sources[0]]
    shuffled = [
        output_of(source, target) for source, (_, target) in zip(next_sources, PAIRS, strict=True)
    ]
    assert many.shuffled.output.value == pytest.approx(np.mean(shuffled))
    assert many.control.output.value != many.output.value


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
