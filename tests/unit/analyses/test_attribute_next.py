"""``attribute`` of the token after a text: an oracle, planted heads, and which token is meant."""

import math

import numpy as np
import pytest
import torch
from tiny_models import SEP, VOCABULARY, framed_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

import headscope
from headscope.analyses.attribute.calibration import mean_outputs
from headscope.analyses.attribute.sentences import output_name, sum_sentence
from headscope.core.errors import InputError
from headscope.data.token_rows import encode_rows, unended_rows
from headscope.models.run.intervene import intervene
from headscope.models.run.wrapping import wrap

TEXT = "the cat sat on the"
IDS = [VOCABULARY.index(word) for word in TEXT.split()]
MAT = VOCABULARY.index("mat")
DOG = VOCABULARY.index("dog")
LINES = ["a big red dog ran", "she saw it in the house", "he was on the mat and it was big"]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "initializer_range": 0.3,
}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.4}
#: What differs from ``SIZES``: logits by cap and by factor, embeddings that are scaled or untied.
FAMILIES = {
    "llama": {"tie_word_embeddings": False},
    "qwen3": {"head_dim": 8, "tie_word_embeddings": True},
    "gemma": {"head_dim": 8},
    "stablelm": {"use_parallel_residual": False},
    "gpt2": GPT2,
}


def tiny(family, template="$A [SEP]", **changes):
    """A random causal language model in float64, whose gains and biases matter."""
    torch.manual_seed(5)
    settings = {} if family == "gpt2" else SIZES
    settings = {**settings, **FAMILIES[family], "vocab_size": len(VOCABULARY), **changes}
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return wrap(network, framed_tokenizer(template), name="tiny")


def attributed(loaded, text=TEXT, **options):
    return headscope.attribute(loaded, text, calibration=LINES, validate=False, **options)


@torch.no_grad()
def next_logits(loaded, ids):
    """What transformers itself gives after some tokens."""
    return loaded.network(torch.tensor([ids])).logits[0, -1]


# --- the exact sum --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sum_is_the_difference_of_the_models_own_logits(family):
    loaded = tiny(family)
    logits = next_logits(loaded, IDS)
    result = attributed(loaded, target="mat", against="dog")
    assert result.kind == "next"
    assert result.output.value == pytest.approx(float(logits[MAT] - logits[DOG]), abs=1e-6)
    assert sum(term.direct.value for term in result.parts) == pytest.approx(
        result.output.value, abs=1e-5
    )
    one = attributed(loaded, target="mat")
    assert one.output.value == pytest.approx(float(logits[MAT]), abs=1e-6)


def test_a_capped_logit_is_held_at_its_secant():
    """As in Gemma 2, whose logits pass cap * tanh(logit / cap)."""
    loaded = tiny("llama")
    plain = attributed(loaded, target="mat")
    head = loaded.network.lm_head
    uncapped = head.forward
    head.forward = lambda states: 3 * torch.tanh(uncapped(states) / 3)
    capped = attributed(loaded, target="mat")
    assert capped.output.value == pytest.approx(3 * math.tanh(plain.output.value / 3), abs=1e-6)
    assert capped.check.error < 1e-6
    ratio = capped.output.value / plain.output.value
    for one, other in zip(capped.heads, plain.heads, strict=True):
        assert one.direct.value == pytest.approx(ratio * other.direct.value, abs=1e-6)


def rms(x, gain, eps):
    """Return an RMSNorm of x (pos, d_model), and its scale by position."""
    scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * scale * gain, scale


def rotated(x, theta):
    """Rotate vectors (pos, width) by their position, halves against each other."""
    half = x.shape[1] // 2
    turned = np.zeros_like(x)
    for position in range(len(x)):
        for i in range(half):
            angle = position / theta ** (i / half)
            a, b = x[position, i], x[position, i + half]
            turned[position, i] = a * math.cos(angle) - b * math.sin(angle)
            turned[position, i + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned


def parts_of_llama(network, ids, readout):
    """The oracle: what each part of a Llama adds to ``readout @ normed last state``, by name."""
    weights = {name: p.detach().numpy() for name, p in network.named_parameters()}
    eps = network.config.rms_norm_eps
    theta = network.config.rope_parameters["rope_theta"]
    x = weights["model.embed_tokens.weight"][ids]
    parts = {"embeddings": x[-1]}
    for layer in range(2):
        at = f"model.layers.{layer}"
        read, _ = rms(x, weights[f"{at}.input_layernorm.weight"], eps)
        q, k, v = (read @ weights[f"{at}.self_attn.{name}_proj.weight"].T for name in "qkv")
        W_O = weights[f"{at}.self_attn.o_proj.weight"]
        writes = []
        for head in range(4):
            own = slice(8 * head, 8 * head + 8)
            shared = slice(8 * (head // 2), 8 * (head // 2) + 8)
            scores = rotated(q[:, own], theta) @ rotated(k[:, shared], theta).T / math.sqrt(8)
            scores[np.triu_indices(len(ids), 1)] = -np.inf
            pattern = np.exp(scores - scores.max(-1, keepdims=True))
            pattern /= pattern.sum(-1, keepdims=True)
            writes.append(pattern @ v[:, shared] @ W_O[:, own].T)
            parts[f"decoder:L{layer}H{head}"] = writes[-1][-1]
        x = x + sum(writes)
        read, _ = rms(x, weights[f"{at}.post_attention_layernorm.weight"], eps)
        gate = read @ weights[f"{at}.mlp.gate_proj.weight"].T
        up = read @ weights[f"{at}.mlp.up_proj.weight"].T
        written = (gate / (1 + np.exp(-gate)) * up) @ weights[f"{at}.mlp.down_proj.weight"].T
        parts[f"F{layer}"] = written[-1]
        x = x + written
    gain = weights["model.norm.weight"]
    _, scale = rms(x, gain, eps)
    return {name: float(write * scale[-1] * gain @ readout) for name, write in parts.items()}


def test_parts_are_those_of_the_oracle():
    loaded = tiny("llama")
    W_U = loaded.network.lm_head.weight.detach().numpy()
    expected = parts_of_llama(loaded.network, IDS, W_U[MAT] - W_U[DOG])
    result = attributed(loaded, target="mat", against="dog", tokens=True)
    for head in result.heads:
        assert head.direct.value == pytest.approx(expected[head.name], abs=1e-6)
    for layer in result.layers:
        assert layer.feed_forward.value == pytest.approx(expected[f"F{layer.layer}"], abs=1e-6)
    assert result.part("embeddings").value == pytest.approx(expected["embeddings"], abs=1e-6)
    assert result.part("biases").value == 0
    # By the token that is read: the text's own, without the [SEP] that the tokenizer puts behind.
    assert [token.token for token in result.tokens] == TEXT.split()
    read = sum(token.heads for token in result.tokens)
    assert read == pytest.approx(result.part("heads").value, abs=1e-9)


def test_removed_is_the_model_that_lacks_the_head():
    loaded = tiny("llama")
    result = attributed(loaded, target="mat", against="dog")
    whole = next_logits(loaded, IDS)
    W_O = loaded.model.layers[0].self_attn.o_proj.weight
    kept = W_O.detach().clone()
    with torch.no_grad():
        W_O[:, 8:16] = 0
        without = next_logits(loaded, IDS)
        W_O.copy_(kept)
    lost = float(whole[MAT] - whole[DOG] - without[MAT] + without[DOG])
    (head,) = [head for head in result.heads if head.name == "decoder:L0H1"]
    assert head.removed.value == pytest.approx(lost, abs=1e-6)


def test_the_first_token_has_a_mean_of_its_own():
    loaded = tiny("gpt2", "$A")
    rows = [row for row in encode_rows(loaded, LINES, None) if row is not None]
    z_of_rows = []

    def keep(site, z):
        if site.row == 1:
            z_of_rows.append(z[0])
        return z

    for row in rows:
        with intervene(loaded, z=keep):
            loaded.forward(*loaded.pad([row.ids]))
    means = mean_outputs(loaded, rows)(rows[0])[1][0]  # (n_heads, pos, d_head)
    first = torch.stack([z[:, 0] for z in z_of_rows]).mean(0)
    later = torch.cat([z[:, 1:] for z in z_of_rows], dim=1).mean(1)
    torch.testing.assert_close(means[:, 0], first)
    for position in range(1, len(rows[0])):
        torch.testing.assert_close(means[:, position], later)


# --- a planted answer -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted():
    """A Llama in which L1H2 alone writes what is read of the last state; embeddings are not."""
    loaded = tiny("llama")
    with torch.no_grad():
        loaded.model.embed_tokens.weight[:, 16:] = 0
        loaded.network.lm_head.weight[:, :16] = 0
        for layer in loaded.model.layers:
            layer.mlp.down_proj.weight.zero_()
        first, second = (layer.self_attn.o_proj.weight for layer in loaded.model.layers)
        first.zero_()
        second[:, :16] = 0
        second[:, 24:] = 0
        second[:16] = 0
    return loaded


def test_a_planted_head_is_all_of_the_logit_and_every_ranking_finds_it(planted):
    result = attributed(planted, circuit="L1H2")
    for head in result.heads:
        if head.name == "decoder:L1H2":
            assert head.direct.value == pytest.approx(result.output.value, abs=1e-6)
            assert head.removed.value == pytest.approx(result.output.value, abs=1e-6)
        else:
            assert head.direct.value == 0
            assert head.removed.value == pytest.approx(0, abs=1e-9)
    for curve in result.faithfulness.rankings:
        assert curve.roc == 1.0
        assert curve.signed[1] == pytest.approx(1.0)  # this head alone brings all of it back
    assert min(curve.signed[1] for curve in result.faithfulness.random) == pytest.approx(0.0)


# --- which token ----------------------------------------------------------------------------------


def test_without_a_target_it_is_what_the_model_predicts():
    loaded = tiny("llama")
    logits = next_logits(loaded, IDS)
    likeliest = int(logits.argmax())
    result = attributed(loaded)
    assert result.label == VOCABULARY[likeliest]
    assert result.output.value == pytest.approx(float(logits[likeliest]), abs=1e-6)
    shares = {token.token: token.probability for token in result.next_tokens}
    assert len(shares) == 3
    assert shares[result.label] == pytest.approx(float(logits.softmax(-1)[likeliest]), abs=1e-6)
    named = attributed(loaded, target="mat", against="dog")
    assert {"mat", "dog"} < {token.token for token in named.next_tokens} | {""}
    assert sum_sentence(named).startswith("The logit of mat minus that of dog ")


def byte_level():
    """A tokenizer in which a word and the word behind a space are two pieces, as in GPT-2."""
    pieces = [*"abcdehimnorstu", "Ġ", "th", "the", "ma", "mat", "Ġt", "Ġth", "Ġthe", "Ġm", "Ġma"]
    pieces += ["Ġmat", "on", "Ġo", "Ġon"]
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("Ġ", "m"), ("Ġm", "a"), ("Ġma", "t")]
    merges += [("Ġ", "o"), ("Ġo", "n"), ("t", "h"), ("th", "e"), ("m", "a"), ("ma", "t")]
    merges += [("o", "n")]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "."])}
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_a_word_with_a_space_is_another_token_than_without():
    loaded = tiny("llama")
    loaded.tokenizer = byte_level()
    ids = loaded.tokenizer("on the")["input_ids"]
    logits = next_logits(loaded, ids)
    for target, label in ((" mat", "␣mat"), ("␣mat", "␣mat"), ("mat", "mat")):
        result = headscope.attribute(
            loaded,
            "on the",
            target=target,
            calibration=["the mat", "on mat", "the"],
            validate=False,
        )
        assert result.label == label
        token = loaded.tokenizer.convert_tokens_to_ids(label.replace("␣", "Ġ"))
        assert result.output.value == pytest.approx(float(logits[token]), abs=1e-6)
        warned = " ".join(result.provenance["warnings"])
        assert ("without a space before it" in warned) == (target == "mat")


def test_a_word_that_the_text_would_swallow_is_read_behind_a_full_stop():
    loaded = tiny("llama")
    loaded.tokenizer = byte_level()
    calibration = ["the mat", "on mat", "the"]
    result = headscope.attribute(
        loaded, "the ma", target="t", calibration=calibration, validate=False
    )  # "the mat" is two other tokens
    assert result.label == "t"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "mats"}, r"'mats' is 2 tokens of tiny \(mat, ##s\), and one token comes"),
        ({"target": "mat", "against": "big dog"}, r"'big dog' is 2 tokens of tiny \(big, dog\)"),
        ({"target": "猫"}, "has no token for '猫'"),
        ({"target": " "}, "has no token for ' '"),
        ({"target": ""}, "A text is empty"),
        ({"target": "mat", "against": "mat"}, "Both tokens are mat"),
        ({"label": "mat"}, "name it by 'target'"),
        ({"target": "mat", "at": 1}, "leave 'at' out"),
    ],
)
def test_what_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        attributed(tiny("gpt2"), **options)


def test_special_tokens_behind_a_text_are_left_off():
    for template in ("$A", "$A [SEP]", "$A [SEP] [SEP]"):
        loaded = tiny("gpt2", template)
        (row,) = unended_rows(loaded, [TEXT])
        assert list(row.ids) == IDS
    (whole,) = encode_rows(loaded, [TEXT], None)
    assert whole.ids[-1] == SEP


def test_lines_of_a_file_have_what_the_model_predicts_after_each(tmp_path):
    loaded = tiny("llama")
    texts = [TEXT, "she saw the big", "a dog ran to"]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts))
    result = headscope.attribute(loaded, data=path, calibration=LINES, validate=False)
    singles = [attributed(loaded, text).output.value for text in texts]
    assert result.output.value == pytest.approx(np.mean(singles), abs=1e-6)
    assert result.faithfulness is not None
    assert output_name(result) == "the next token's logit"


def test_two_texts_are_compared_by_their_embeddings():
    result = headscope.attribute(tiny("gpt2"), TEXT, "a dog ran", against="he", validate=False)
    assert result.kind == "cosine"
    assert result.is_difference


# --- a table of prompts ---------------------------------------------------------------------------

PROMPTS = {
    "the cat sat on the": ("mat", "dog"),
    "the big red dog": ("ran", "sat"),
    "she ran to the": ("house", "cat"),
}


def write_prompts(path, prompts, header="prompt,target,against"):
    rows = [header, *(",".join((prompt, *tokens)) for prompt, tokens in prompts.items())]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_each_prompt_of_a_table_has_its_own_pair_of_tokens(tmp_path):
    loaded = tiny("llama")
    data = write_prompts(tmp_path / "prompts.csv", PROMPTS)
    differences = []
    for prompt, (target, against) in PROMPTS.items():
        logits = next_logits(loaded, [VOCABULARY.index(word) for word in prompt.split()])
        difference = logits[VOCABULARY.index(target)] - logits[VOCABULARY.index(against)]
        differences.append(float(difference))
    result = headscope.attribute(loaded, data=data, calibration=LINES, validate=False)
    assert result.kind == "next"
    assert result.examples == len(PROMPTS)
    assert result.output.value == pytest.approx(np.mean(differences), abs=1e-6)
    assert output_name(result) == "the logit of each target minus that of its alternative"


def test_a_table_of_targets_alone_is_about_their_logits(tmp_path):
    loaded = tiny("llama")
    prompts = {prompt: tokens[:1] for prompt, tokens in PROMPTS.items()}
    data = write_prompts(tmp_path / "prompts.csv", prompts, header="text,answer")
    values = []
    for prompt, (target,) in prompts.items():
        logits = next_logits(loaded, [VOCABULARY.index(word) for word in prompt.split()])
        values.append(float(logits[VOCABULARY.index(target)]))
    result = headscope.attribute(loaded, data=data, calibration=LINES, validate=False)
    assert result.output.value == pytest.approx(np.mean(values), abs=1e-6)
    assert output_name(result) == "the logit of each prompt's target"


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (("mat dog", "cat"), r"prompts.csv, line 5: 'mat dog' is 2 tokens"),
        (("mat", "mat"), "prompts.csv, line 5: Both tokens are mat"),
        (("mat", ""), "prompts.csv, line 5: no against"),
    ],
)
def test_a_prompt_without_its_tokens_is_refused_with_its_line(tmp_path, tokens, said):
    data = write_prompts(tmp_path / "prompts.csv", {**PROMPTS, "he was on the": tokens})
    with pytest.raises(InputError, match=said):
        headscope.attribute(tiny("llama"), data=data, calibration=LINES, validate=False)
