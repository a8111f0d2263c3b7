"""Pairs of a user's own: as a treebank's relations, in a protein model, and in cross-attention.

Oracles: the treebank itself, heads planted in the weights, and loops over one pair of texts at a
time without padding.
"""

import dataclasses
import json
import random
from collections.abc import Iterator, Sequence
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted_models import build_planted
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    EsmConfig,
    EsmModel,
    PreTrainedTokenizerFast,
)

import headscope
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.scores import HeadResult
from headscope.core.errors import CorpusError, InputError
from headscope.core.serialise import from_dict, to_dict, to_json
from headscope.data.corpus import ANNOTATED, open_treebank, sample_corpus
from tests.reference import Sentence, read_treebank

WAYS = {"dep->head": "from->to", "head->dep": "to->from"}


def as_rows(sentences: list[Sentence]) -> Iterator[str]:
    """Write the edges of trees as pairs, sentences parted by blank lines."""
    for sentence in sentences:
        text = " ".join(sentence.forms)
        for word, (head, relation) in enumerate(
            zip(sentence.heads, sentence.relations, strict=False)
        ):
            if head > 0:
                yield f"{text}\t{word}\t{head - 1}\t{relation}\n"
        yield f"{text}\n\n"


def test_relations_as_pairs_are_those_of_the_treebank(tmp_path: Path) -> None:
    planted = build_planted(tmp_path / "planted")
    bank = tmp_path / "bank.conllu"
    pairs = tmp_path / "pairs.tsv"
    bank.write_text("\n\n".join(planted.treebank.read_text().split("\n\n")[:250]) + "\n\n")
    pairs.write_text("".join(as_rows(read_treebank(bank))), encoding="utf-8")
    options: dict[str, Any] = {"frequencies": planted.frequencies, "validate": False}
    model = headscope.load(str(planted.folder))
    trees = headscope.classify(model, open_treebank(bank), **options)
    result = headscope.classify(model, pairs=pairs, **options)
    labels = list(chain.from_iterable(head.labels for head in trees.heads))
    assert sum(label.role == "syntactic" for label in labels) == 2
    for one, other in zip(trees.heads, result.heads, strict=True):
        named = [dataclasses.replace(s, direction=WAYS[s.direction]) for s in one.syntactic]
        key = lambda score: (score.relation, score.direction)  # noqa: E731
        assert sorted(named, key=key) == sorted(other.syntactic, key=key)
        expected = []
        for label in one.labels:
            relation, _, way = label.detail.partition(" ")
            if label.role == "syntactic":
                detail = f"{relation} {WAYS[way]}"
                label = dataclasses.replace(label, role=f"pair:{relation}", detail=detail)
            expected.append(label)
        assert sorted(expected, key=str) == sorted(other.labels, key=str)
        assert other.primary == (other.roles or ("none",))[0]
        assert (one.primary == "syntactic") == other.primary.startswith("pair:")
    assert result.control.swapped == trees.control.swapped is not None
    assert result.pairs.stack == "encoder"
    # It survives the way through JSON.
    again = from_dict(ClassifyResult, json.loads(to_json(result)))
    assert to_dict(again) == to_dict(result)
    assert again.possible_roles == result.possible_roles


def random_pairs(n_texts: int, n_copies: int, n_pairs: int) -> str:
    """Pairs that mean nothing, drawn once for each text; every copy of it has the same."""
    rng = random.Random(0)
    blocks = []
    sentences = [s.words for s in list(sample_corpus())[:ANNOTATED] if len(s.words) >= 9]
    for words in rng.sample(sentences, n_texts):
        pairs = rng.sample(list(permutations(range(len(words)), 2)), n_pairs)
        blocks.append("".join(f"{' '.join(words)}\t{a}\t{b}\tx\n" for a, b in pairs))
    return "\n".join(blocks * n_copies)


@pytest.mark.parametrize(
    ("n_texts", "n_copies", "n_pairs", "why"),
    [
        # While each half held all of them, these five earned two labels by chance.
        (5, 24, 6, "fewer than 8 different texts with such pairs in one half"),
        (15, 24, 14, "fewer than 8 different texts with such pairs in one half"),
        (16, 24, 14, None),
        (16, 24, 4, "fewer than 50 trials in one half of the texts"),
    ],
)
def test_random_pairs_in_copies_of_a_few_texts_earn_no_label(
    tmp_path: Path, demo: Any, n_texts: int, n_copies: int, n_pairs: int, why: str | None
) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(random_pairs(n_texts, n_copies, n_pairs), encoding="utf-8")
    result = headscope.classify(demo, pairs=path, validate=False)
    assert not [head.name for head in result.heads if "pair:x" in head.roles]
    assert result.corpus.sentences == n_texts
    assert result.untestable.get("pair:x") == why


def write_tokenizer(
    folder: Path, tokens: Sequence[str], split: Any, template: str, **named: Any
) -> None:
    """Every word is a token, whose number is its place in the list."""
    numbers = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    backend.pre_tokenizer = split
    special = [(token, numbers[token]) for token in template.split() if token in numbers]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    special_tokens = {"unk_token": "<unk>", "pad_token": "<pad>", **named}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens).save_pretrained(folder)


def look(query: Any, key: Any, width: int, places: list[tuple[int, int]]) -> None:
    """Let a layer's second head look from feature i to feature j, for pairs of such places."""
    for projection in (query, key):
        projection.weight[width:].zero_()
        projection.bias[width:].zero_()
    for i, (feature, sought) in enumerate(places):
        query.weight[width + i, feature] = 3.0
        key.weight[width + i, sought] = 3.0


# --- a protein model: every residue is a piece, and contacts are pairs of positions ---

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
FIRST = 4  # Token of the first residue: <cls>, <pad>, <eos> and <unk> stand before.


def partner(residue: int) -> int:
    return (residue + 7) % len(RESIDUES)


@torch.no_grad()
def protein_model(folder: Path) -> Path:
    """An ESM with two layers; L0H1 looks from each residue to those of its partner's kind."""
    tokens = ("<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES)
    named = {"cls_token": "<cls>", "eos_token": "<eos>", "model_max_length": 62}
    split = pre_tokenizers.Split(Regex("."), "isolated")
    write_tokenizer(folder, tokens, split, "<cls> $A <eos>", **named)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokens), "hidden_size": 64, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    special = {"pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "absolute"}
    model = EsmModel(EsmConfig(**sizes, **special), add_pooling_layer=False).eval()
    model.embeddings.position_embeddings.weight.normal_(std=0.02)
    model.embeddings.word_embeddings.weight.zero_()
    model.embeddings.word_embeddings.weight.fill_diagonal_(4.0)
    attention = model.encoder.layer[0].attention.self
    pairs = [(FIRST + i, FIRST + partner(i)) for i in range(len(RESIDUES))]
    look(attention.query, attention.key, 32, pairs)
    model.save_pretrained(folder)
    return folder


def contacts(n: int) -> str:
    """Proteins of twelve different residues, and where each one's partner stands."""
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(n):
        chosen = rng.permutation(len(RESIDUES))[:12].tolist()
        text = "".join(RESIDUES[i] for i in chosen)
        pairs = [
            (i, chosen.index(partner(r))) for i, r in enumerate(chosen) if partner(r) in chosen
        ]
        rows += [f"{text}\t{i}\t{j}\tcontact\n" for i, j in pairs]
    return "".join(rows)


def test_the_head_of_a_protein_model_that_shows_contacts(tmp_path: Path) -> None:
    (tmp_path / "contacts.tsv").write_text(contacts(70), encoding="utf-8")
    folder = protein_model(tmp_path / "esm")
    result = headscope.classify(str(folder), pairs=tmp_path / "contacts.tsv")
    heads = {head.name: head for head in result.heads if "pair:contact" in head.roles}
    assert list(heads) == ["L0H1"]
    labels = [label for label in heads["L0H1"].labels if label.role == "pair:contact"]
    assert len(labels) == 1
    label = labels[0]
    assert label.detail == "contact from->to"
    assert float(label.score) > 0.99 > 0.5 > label.baseline
    assert result.control.swapped.labels == 0


def test_characters_need_a_model_that_reads_characters(tmp_path: Path, demo: Any) -> None:
    (tmp_path / "contacts.tsv").write_text(contacts(4), encoding="utf-8")
    with pytest.raises(CorpusError, match=r"positions count characters, but .* as one piece"):
        headscope.classify(demo, pairs=tmp_path / "contacts.tsv")


# --- pairs of target and source ---

WORDS = 16  # Words of the vocabulary of either side, and positions.


@pytest.fixture(scope="module")
@torch.no_grad()
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BART whose cross-attention head L0H1 looks from position p of the target to p ^ 1."""
    folder = tmp_path_factory.mktemp("translator")
    tokens = ("<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(WORDS)))
    split = pre_tokenizers.WhitespaceSplit()
    write_tokenizer(folder, tokens, split, "$A </s>", eos_token="</s>")
    torch.manual_seed(0)
    width = 64
    sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2, "d_model": width}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": WORDS}
    sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = BartConfig(vocab_size=len(tokens), forced_eos_token_id=None, **sizes)
    model = BartForConditionalGeneration(config).eval()
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.zero_()
        for p in range(WORDS):  # the first rows are an offset of the implementation
            stack.embed_positions.weight[p + stack.embed_positions.offset, width - WORDS + p] = 4.0
    cross = model.model.decoder.layers[0].encoder_attn
    first = width - WORDS
    look(cross.q_proj, cross.k_proj, 32, [(first + p, first + (p ^ 1)) for p in range(WORDS)])
    model.save_pretrained(folder)
    return folder


def texts(n: int, seed: int = 0) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    sizes = 2 * rng.integers(2, 7, size=n)
    draw = lambda size: " ".join(f"w{i}" for i in rng.integers(0, WORDS, size=size))  # noqa: E731
    return [(draw(size), draw(size)) for size in sizes]


def classified(folder: Path, n: int = 60, **options: Any) -> ClassifyResult:
    """Every second word of the source stands one place later in the target, the others before."""
    lines = ["source\ttarget\tfrom\tto\tlabel\n"]
    for source, target in texts(n):
        lines += [
            f"{source}\t{target}\t{position}\t{position ^ 1}\tmeaning\n"
            for position in range(len(source.split()))
        ]
    table = folder / "pairs.tsv"
    table.write_text("".join(lines), encoding="utf-8")
    return headscope.classify(str(folder), pairs=table, validate=False, **options)


def of_cross(result: ClassifyResult) -> dict[str, HeadResult]:
    return {head.name: head for head in result.heads if head.stack == "cross"}


def test_the_cross_attention_head_that_follows_pairs(folder: Path) -> None:
    result = classified(folder)
    heads = of_cross(result)
    following = [name for name, head in heads.items() if "pair:meaning" in head.roles]
    assert following == ["cross:L0H1"]
    (score,) = heads["cross:L0H1"].syntactic
    assert (score.relation, score.direction) == ("meaning", "target->source")
    assert float(score.accuracy) == 1.0
    assert score.baselines["offset"] < 0.6
    # The pairs depend on the length alone, so those of another text are as good.
    assert result.control.swapped.heads == 1
    # Only cross-attention has these labels.
    encoder = result.only("encoder")
    assert (encoder.labels, encoder.control.swapped) == ((), None)
    assert "pair:meaning" not in {role.key for role in encoder.possible_roles}
    assert to_dict(result)["pairs"] == {"stack": "cross", "labels": ["meaning"]}


def test_hits_of_cross_attention_are_those_of_a_loop(folder: Path) -> None:
    """Every head's argmax, one text at a time."""
    result = classified(folder, n=24, stack="cross")
    network = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()
    hits = np.zeros((2, 2))
    trials = 0
    for source, target in texts(24):
        ids = [4 + int(word[1:]) for word in source.split()]
        out = [4 + int(word[1:]) for word in target.split()]
        with torch.no_grad():
            outputs = network(
                input_ids=torch.tensor([[*ids, 2]]),
                decoder_input_ids=torch.tensor([[2, *out]]),
                output_attentions=True,
            )
        patterns = torch.stack(outputs.cross_attentions)[:, 0].numpy()
        weights = patterns[:, :, : len(out), : len(ids)]  # query p is to write word p
        for position in range(len(out)):
            hits += weights[:, :, position].argmax(axis=-1) == position ^ 1
            trials += 1
    for head in of_cross(result).values():
        score = head.syntactic[0]
        assert score.trials == trials
        assert float(score.accuracy) == pytest.approx(hits[head.layer, head.head] / trials)


def test_too_few_pairs_are_not_testable_and_others_refused(folder: Path, demo: Any) -> None:
    few = classified(folder, n=6, prefix_matching=True)
    assert "fewer than 8 different texts" in few.untestable["cross:pair:meaning"]
    # The tokenizer knows no word of the built-in sample.
    assert few.untestable["prefix matching"] == "too few tokens"
    with pytest.raises(InputError, match="needs the stack cross"):
        classified(folder, n=24, stack="decoder")
    with pytest.raises(InputError, match="no encoder-decoder model"):
        headscope.classify(demo, pairs=folder / "pairs.tsv")
    with pytest.raises(InputError, match="pairs come with their own text"):
        headscope.classify(demo, ["a b", "c d"], pairs=folder / "pairs.tsv")
