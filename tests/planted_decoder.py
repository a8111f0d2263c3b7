"""A GPT-2 built by hand whose heads have known roles of causal stacks. No weight is trained.

Features, words, treebank and most heads are those of :mod:`planted_models`: vectors of constant
norm and mean zero, which LayerNorm returns as they are but for one factor. One head of the first
layer writes the identity of each token's predecessor into a block of its own (BEFORE); all other
heads write nothing. So every layer sees the embeddings, and from the second on what stood before.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from planted_models import (
    D_HEAD,
    D_MODEL,
    IDENTITY_ENERGY,
    MAX_POSITIONS,
    N_HEADS,
    N_LAYERS,
    POSITION_ENERGY,
    POSITION_SCORE,
    SPECIAL_SCORE,
    SPECIAL_SIZE,
    Array,
    Head,
    Layout,
    Planted,
    PlantedRole,
    plant_feature,
    plant_positional,
    plant_random,
    plant_syntactic,
    position_features,
    vocabulary,
    word_features,
    write_frequencies,
    write_treebank,
)
from tokenizers.processors import TemplateProcessing
from transformers import BertTokenizer, GPT2Config, GPT2Model, PreTrainedTokenizerFast

BEFORE = slice(160, 192)  # Features that the embeddings leave empty
INDUCTION_SCORE = 40.0
WRITER = (0, 0)


def plant_sink(rng: np.random.Generator, score: float) -> tuple[PlantedRole, Head]:
    """Every query is the same, and the key at position 0 answers it."""
    head = Head()
    first = position_features()[0, Layout.position]
    head.bias[0] = np.sqrt(score * np.sqrt(D_HEAD))
    head.key[0, Layout.position] = head.bias[0] * first / POSITION_ENERGY
    return PlantedRole("first_token"), head.add_noise(rng, 1, 0.5)


def plant_parked(rng: np.random.Generator) -> tuple[PlantedRole, Head]:
    """The previous token gets less than the first position, and more than all others."""
    _, head = plant_positional(rng, -1)
    first = position_features()[0, Layout.position]
    # Position 0 answers every query through a bias that only its own key reads.
    size = np.sqrt(POSITION_SCORE * np.sqrt(D_HEAD) / POSITION_ENERGY)
    head.bias = size * first * 1.4
    return PlantedRole("both"), head


def plant_induction() -> tuple[PlantedRole, Head]:
    """The query's own identity, and the identity of what stood before the key."""
    head = Head()
    size = np.sqrt(INDUCTION_SCORE * np.sqrt(D_HEAD) / IDENTITY_ENERGY)
    head.query[:32, Layout.identity] = head.key[:32, BEFORE] = np.eye(32) * size
    return PlantedRole("induction"), head


def causal_heads(rng: np.random.Generator) -> dict[tuple[int, int], tuple[PlantedRole, Head]]:
    """Twelve heads; one always looks 49 back, which no sentence here shows."""
    return {
        WRITER: plant_positional(rng, -1),
        (0, 1): plant_syntactic(rng, "obj", "dep->head", Layout.obj, Layout.verb),
        (0, 2): (PlantedRole("broad"), Head()),
        (0, 3): plant_sink(rng, 12.0),
        (1, 0): plant_induction(),
        (1, 1): plant_feature(rng, "token", Layout.cls, SPECIAL_SIZE, SPECIAL_SCORE, noise=0.5),
        (1, 2): plant_positional(rng, -2),
        (1, 3): plant_random(rng, "none", 0.09),
        (2, 0): plant_syntactic(rng, "nsubj", "head->dep", Layout.verb, Layout.subj),
        (2, 1): plant_positional(rng, 0),
        (2, 2): (PlantedRole("broad"), plant_positional(rng, -49)[1]),
        (2, 3): plant_parked(rng),
    }


def fresh_gpt2(seed: int) -> GPT2Model:
    """A GPT-2 with transformers' own initialisation, without touching torch's global state."""
    config = GPT2Config(
        vocab_size=len(vocabulary()),
        n_positions=MAX_POSITIONS,
        n_embd=D_MODEL,
        n_layer=N_LAYERS,
        n_head=N_HEADS,
        n_inner=32,
        layer_norm_epsilon=1e-12,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2Model(config).eval()


def save(model: GPT2Model, folder: Path, *, begins: bool) -> Path:
    """With a tokenizer that puts [CLS] before a text (``begins``), or nothing."""
    model.save_pretrained(folder)
    words = BertTokenizer(vocab=vocabulary(), do_lower_case=True).backend_tokenizer
    words.post_processor = TemplateProcessing(
        single="[CLS] $A" if begins else "$A",
        pair="$A $B",
        special_tokens=[("[CLS]", vocabulary()["[CLS]"])],
    )
    names = ("pad", "unk", "cls", "sep", "mask")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_max_length=MAX_POSITIONS,
        **{f"{name}_token": f"[{name.upper()}]" for name in names},
    )
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def build_decoder(folder: Path, *, begins: bool, seed: int = 0) -> Planted:
    """Write a planted decoder, its treebank and its frequency file into ``folder``."""
    rng = np.random.default_rng([seed, 0])
    heads = causal_heads(rng)
    model = fresh_gpt2(seed)
    random = rng.normal(size=(D_MODEL, D_MODEL))
    random[:, 0] = 1.0
    basis = np.linalg.qr(random)[0][:, 1:]  # features to hidden states: columns of mean zero

    def tensor(values: Array) -> torch.Tensor:
        return torch.from_numpy(values).float()

    model.wte.weight.copy_(tensor(word_features(rng) @ basis.T))
    model.wpe.weight.copy_(tensor(position_features() @ basis.T))
    for number, block in enumerate(model.h):
        for norm in (block.ln_1, block.ln_2):
            norm.weight.fill_(1.0)
            norm.bias.zero_()
        planted = [heads[number, index][1] for index in range(N_HEADS)]
        value = np.zeros((N_HEADS, D_HEAD, Layout.total))
        out = np.zeros((N_HEADS, D_HEAD, Layout.total))
        if number == WRITER[0]:
            value[WRITER[1], :32, Layout.identity] = np.eye(32)
            out[WRITER[1], :32, BEFORE] = np.eye(32)
        maps = [
            np.concatenate([head.query for head in planted]),
            np.concatenate([head.key for head in planted]),
            value.reshape(D_MODEL, -1),
        ]
        # GPT-2 keeps its maps as (in, out), q, k and v side by side.
        attention = block.attn
        attention.c_attn.weight.copy_(tensor(np.concatenate(maps) @ basis.T).T)
        attention.c_attn.bias.zero_()
        attention.c_attn.bias[:D_MODEL] = tensor(np.concatenate([head.bias for head in planted]))
        attention.c_proj.weight.copy_(tensor(out.reshape(D_MODEL, -1) @ basis.T))
        attention.c_proj.bias.zero_()
        block.mlp.c_proj.weight.zero_()
        block.mlp.c_proj.bias.zero_()
    save(model, folder, begins=begins)
    treebank = folder / "treebank.conllu"
    frequencies = folder / "frequencies.tsv"
    write_treebank(treebank, np.random.default_rng([seed, 1]), long=False)
    write_frequencies(frequencies)
    return Planted(folder, treebank, frequencies, {a: role for a, (role, _) in heads.items()})
