"""Heads that carry their role and heads that do not: planted, and patched by hand."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import planted_models
import pytest
import torch
from families import tiny
from planted_models import D_HEAD, D_MODEL, Planted, build_planted, pool, row
from scipy import stats
from tiny_models import SOURCES, VOCABULARY, framed_tokenizer
from transformers import BertModel

import headscope
from headscope.analyses.classify.optional.minimal_pairs import positional_pairs, syntactic_pairs
from headscope.analyses.classify.optional.patched_runs import patch
from headscope.analyses.classify.optional.patching import SMALLEST, evidence, p_above, verdict
from headscope.analyses.classify.result import ClassifyResult
from headscope.data.corpus import open_treebank
from headscope.data.sentences import Sentence
from headscope.data.word_pieces import encode_words, placed
from headscope.models.run import replay
from headscope.reports.reading import Results
from headscope.reports.section_rows import rows_of


def write_clauses(path: Path) -> Path:
    """Clauses of one verb, its object and plain words, in any order."""
    rng = np.random.default_rng(3)
    blocks = []
    all_levels = range(planted_models.N_LEVELS)
    for _ in range(240):
        n_plain = int(rng.integers(2, 6))
        kinds = ["verb", "obj", *["plain"] * n_plain]
        chosen = [
            str(rng.choice([w.form for w in pool(kind, -1 if kind == "plain" else 0, all_levels)]))
            for kind in kinds
        ]
        order = rng.permutation(len(kinds)).tolist()
        verb = order.index(0) + 1
        relations = {"verb": "root", "obj": "obj", "plain": "obl"}
        rows = [
            row(i + 1, chosen[k], "0" if k == 0 else str(verb), relations[kinds[k]], "_", "_")
            for i, k in enumerate(order)
        ]
        blocks.append("\n".join(rows) + "\n\n")
    path.write_text("".join(blocks), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def clauses(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planted, Path]:
    folder = tmp_path_factory.mktemp("planted")
    return build_planted(folder), write_clauses(folder / "clauses.conllu")


@torch.no_grad()
def with_writes(planted: Planted, obj: str) -> Any:
    """Only the first layer writes; L0H1 follows ``obj``.

    L0H0 (previous token) writes nothing, L0H2 looks at arbitrary words and L0H3 two tokens ahead,
    and what both write is read. What L0H1 writes is read too (``carries``), or lies in a direction
    that no later map reads (``unread``), or is nothing (``silent``).
    """
    model = BertModel.from_pretrained(planted.folder).eval()
    attentions = [layer.attention for layer in model.encoder.layer]
    first = attentions[0]
    later = attentions[1:]
    for name in ("query", "key"):
        source = getattr(later[0].self, name).weight[3 * D_HEAD :]
        getattr(first.self, name).weight[2 * D_HEAD : 3 * D_HEAD] = source
    drawn = torch.Generator().manual_seed(0)
    writes = torch.randn(D_MODEL, D_MODEL, generator=drawn) * 0.04
    writes[:, :D_HEAD] = 0.0
    if obj == "silent":
        writes[:, D_HEAD : 2 * D_HEAD] = 0.0
    if obj == "unread":
        unread = torch.randn(D_MODEL, generator=drawn)
        unread -= unread.mean()
        unread /= unread.norm()
        along = torch.randn(D_HEAD, generator=drawn) / D_HEAD**0.5 / 3
        writes[:, D_HEAD : 2 * D_HEAD] = torch.outer(unread, along)
        for attention in later:
            for name in ("query", "key", "value"):
                weight = getattr(attention.self, name).weight
                weight -= torch.outer(weight @ unread, unread)
    first.output.dense.weight.copy_(writes)
    tokenizer = headscope.load(str(planted.folder)).tokenizer
    return headscope.wrap(model, tokenizer, name="planted")


EXPECTED = {
    "carries": {"later heads": "carries", "output": "carries"},
    "unread": {"later heads": "does not", "output": "carries"},
    "silent": {"later heads": "does not", "output": "does not"},
}


@pytest.fixture(scope="module")
def classified(clauses: tuple[Planted, Path]) -> Callable[[str], ClassifyResult]:
    planted, treebank = clauses
    options = {"patch": True, "patch_pairs": 24, "validate": False, "limit": 200}
    return cache(lambda obj: headscope.classify(with_writes(planted, obj), treebank, **options))


@pytest.mark.parametrize("obj", EXPECTED)
def test_planted_heads_carry_their_role_or_do_not(classified, obj):
    result = classified(obj)
    patched = {}
    for head in result.heads:
        patched |= {(head.name, patch.detail): patch for patch in head.patched}
    obj_patch = patched["L0H1", "obj dep->head"]
    assert {effect.reader: effect.verdict for effect in obj_patch.effects} == EXPECTED[obj]
    assert obj_patch.verdict == ("does not" if obj == "silent" else "carries")
    assert obj_patch.follows.value > 0.95
    assert obj_patch.pairs == 24
    assert patched["L0H0", "-1"].verdict == "does not"
    assert patched["L0H3", "+2"].verdict == "carries"
    for name, detail in (("L1H1", "+1"), ("L2H1", "-2")):  # nothing in their layers writes
        assert patched[name, detail].verdict == "does not"
        assert patched[name, detail].effects[-1].layer_change == 0.0
    assert [effect.reader for effect in patched["L2H1", "-2"].effects] == ["output"]


def test_what_is_written_and_compared(classified):
    result = classified("unread")
    assert len(result.patched_frame()) == 9
    effect = result.heads[1].patched[0].effects[0]
    assert result.patched_frame()["gain_high"][2] == effect.gain.high
    rows = {(row.where, row.name): row for row in rows_of(Results("x", classify=result))}
    gain = rows["L0H1", "syntactic, later heads, patched"]
    assert (gain.value, gain.interval) == (effect.gain.value, effect.gain.interval)
    assert rows["L0H1", "syntactic, verdict"].words == "carries"


def test_text_without_trees_has_positional_heads_alone(clauses):
    planted, treebank = clauses
    texts = [sentence.text for sentence in open_treebank(treebank)][:60]
    result = headscope.classify(
        with_writes(planted, "carries"), texts, patch=True, patch_pairs=8, validate=False
    )
    assert result.patching.notes == (
        "Syntactic heads were not patched: that needs gold trees (give a treebank).",
    )
    patched = {head.name: head.patched[0] for head in result.heads if head.patched}
    assert {patch.role for patch in patched.values()} == {"positional"}
    assert {patch.pairs for patch in patched.values()} == {8}
    assert patched["L0H3"].verdict == "carries"


def by_hand(model: BertModel, pair: Any, layer: int) -> np.ndarray:
    """Patch with hooks of the test's own; (reads, 1 + 2 heads): all heads, then each, twice."""
    ids = {name: torch.tensor([getattr(pair, name)]) for name in ("sentence", "elsewhere", "same")}
    rows = list(pair.queries)
    n_heads = model.config.num_attention_heads
    rows_of = {"elsewhere": list(pair.queries_elsewhere), "same": rows}
    attention = model.encoder.layer[layer].attention
    with torch.no_grad():
        patterns = {
            name: model(ids[name], output_attentions=True).attentions[layer][0][:, rows_of[name]]
            for name in rows_of
        }
        values: list[torch.Tensor] = []
        with attention.self.value.register_forward_hook(lambda *a: values.append(a[2][0])):
            model(ids["sentence"])
    by_head = values[0].view(len(values[0]), n_heads, -1)

    def reads(change: Callable[[torch.Tensor], None] | None) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []
        with torch.no_grad(), ExitStack() as hooks:

            def before(_: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
                z = args[0].clone()
                if change is not None:
                    change(z)
                return (z,)

            hooks.enter_context(attention.output.dense.register_forward_pre_hook(before))
            for later in model.encoder.layer[layer + 1 :]:
                for name in ("query", "key", "value"):
                    linear = getattr(later.attention.self, name)
                    hooks.enter_context(
                        linear.register_forward_hook(lambda *a: seen.append(a[2][0, rows]))
                    )
            last = model(ids["sentence"]).last_hidden_state[0, rows]
        return [*seen, last]

    def patched(kind: str, heads: range) -> list[float]:
        def change(z: torch.Tensor) -> None:
            for head in heads:
                for query, weights in zip(rows, patterns[kind][head], strict=True):
                    width = slice(head * by_head.shape[2], (head + 1) * by_head.shape[2])
                    z[0, query, width] = weights @ by_head[:, head]

        pairs = zip(reads(change), reads(None), strict=True)
        return [float((now - was).double().norm()) for now, was in pairs]

    columns = [patched("elsewhere", range(n_heads))]
    for head in range(n_heads):
        columns += [patched(kind, range(head, head + 1)) for kind in ("elsewhere", "same")]
    return np.array(columns).T


def test_shares_equal_those_of_hooks(clauses):
    planted, treebank = clauses
    loaded = with_writes(planted, "carries")
    encoded = [s for s in encode_words(loaded, placed(open_treebank(treebank))) if s is not None]
    drawn = np.random.default_rng(0)
    pairs = syntactic_pairs(encoded, "obj", "dep->head", 5, drawn)
    pairs += positional_pairs(encoded, 2, 4, drawn, causal=False)
    patches = patch(loaded, pairs, 0, range(4))
    oracle = BertModel.from_pretrained(planted.folder, attn_implementation="eager").eval()
    oracle.load_state_dict(loaded.model.state_dict())
    pairs.sort(key=lambda pair: len(pair.sentence))
    changes = np.stack([by_hand(oracle, pair, 0) for pair in pairs], axis=-1)
    changes /= changes[:, :1].mean(axis=-1, keepdims=True)
    expected = np.stack([changes[:-1].mean(axis=0), changes[-1]])  # later layers, the output
    np.testing.assert_allclose(patches.together, expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(patches.shares.reshape(2, -1, 9), expected[:, 1:], atol=1e-4)


def test_a_bias_that_all_rows_share_is_played_back_as_it_was(monkeypatch):
    """T5's layers return their bias by relative position, which has one row, behind the state."""
    network = tiny("t5", vocab_size=len(VOCABULARY))
    view = headscope.wrap(network, framed_tokenizer("$A [SEP]"), name="t5").only("encoder")
    lines = [Sentence(tuple(line.split())) for line in (*SOURCES, *SOURCES[::-1])]
    encoded = [s for s in encode_words(view, placed(lines)) if s is not None]
    pairs = positional_pairs(encoded, 1, 6, np.random.default_rng(0), causal=False)
    played = patch(view, pairs, 1, [0, 2])
    monkeypatch.setattr(replay, "layer_lists", lambda *_: {})  # every layer runs again
    run_again = patch(view, pairs, 1, [0, 2])
    np.testing.assert_allclose(played.shares, run_again.shares, atol=1e-5)
    assert len(pairs) > 2
    assert played.shares.max() > 0.1


def test_evidence_is_two_t_tests():
    rng = np.random.default_rng(0)
    for mean in (-0.1, 0.02, 0.04, 0.3):
        gains = rng.normal(mean, 0.1, size=(3, 40))
        gains[1:] -= 0.5 * mean
        together = rng.normal(1.0, 0.2, size=40)
        gain = gains[1]
        over_others = gain - (gains[0] + gains[2]) / 2
        expected = []
        for values in (gain, over_others, SMALLEST * together - gain):
            p = float(stats.ttest_1samp(values, 0.0).pvalue)
            expected.append(p if values.mean() > 0 else 1.0)
        carries, does_not = evidence(gains[[1, 0, 2]], together)
        assert carries == pytest.approx(max(expected[:2]))
        assert does_not == pytest.approx(expected[2])
    assert p_above(np.zeros(9)) == 1.0
    assert p_above(np.ones(9)) == 0.0
    # An effect whose sign is sure and whose size does not count.
    assert verdict(1e-9, 1e-9) == "does not"
