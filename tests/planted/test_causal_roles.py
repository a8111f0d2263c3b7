"""Roles of causal stacks: each is found where it was planted, and nowhere else."""

import pytest
import reference
import reference_causal
from planted_decoder import build_decoder, fresh_gpt2, save
from reference import ratio
from transformers import AutoModel

import headscope

#: The only special token is the first and the last one.
SPECIAL = ("special", "last")


def labels_of(role, *, begins):
    """The labels that a head must have, and no other."""
    at_first = [SPECIAL] if begins else []
    return {
        "positional": [("positional", f"{role.offset or 0:+d}")],
        "syntactic": [("syntactic", f"{role.relation} {role.direction}")],
        "broad": [("broad", "")],
        "self": [("self", "")],
        "none": [],
        "induction": [("induction", "")],
        "first_token": [("first_token", "position"), *at_first],
        "token": [("first_token", "token"), SPECIAL] if begins else [("broad", "")],
        "both": [("positional", "-1"), ("first_token", "position"), *at_first],
    }[role.kind]


@pytest.mark.parametrize("begins", [True, False], ids=["with a first token", "without"])
def test_recovers_every_planted_role_and_nothing_else(tmp_path, begins):
    planted = build_decoder(tmp_path / "planted", begins=begins)
    result = headscope.classify(
        str(planted.folder), planted.treebank, frequencies=planted.frequencies
    )
    assert result.stacks == ("decoder",)
    for head in result.heads:
        expected = labels_of(planted.roles[head.layer, head.head], begins=begins)
        assert {(one.role, one.detail) for one in head.labels} == set(expected), head.name
    assert result.control.swapped.labels == 0
    asked = result.corpus.asked_edges
    assert 0.4 < asked["dep->head"] < 0.6  # words stand in random order
    assert 0.85 < sum(asked.values()) < 1 + 1e-9
    by_name = {head.name: head for head in result.heads}
    # It always looks 49 back, to the token after an earlier copy: nothing is gained by repeating.
    fixed = by_name["decoder:L2H2"].prefix.after
    assert fixed.score > 0.9
    assert abs(fixed.gain.value) < 0.02
    # The previous token is its largest, though most of the weight is parked.
    parked = by_name["decoder:L2H3"]
    assert parked.primary == "positional"
    assert parked.first_token.weight.value > 0.6


def test_random_weights_have_none_of_these_roles(tmp_path):
    planted = build_decoder(tmp_path / "planted", begins=True)
    folder = save(fresh_gpt2(3), tmp_path / "random", begins=True)
    result = headscope.classify(
        str(folder), planted.treebank, limit=150, frequencies=planted.frequencies, validate=False
    )
    earned = {role for head in result.heads for role in head.roles}
    assert not earned & {"syntactic", "induction", "first_token", "duplicate", "positional"}
    assert result.prefix.copy == 50


@pytest.mark.parametrize("begins", [True, False], ids=["with a first token", "without"])
def test_every_number_is_that_of_the_oracle(tmp_path, begins):
    planted = build_decoder(tmp_path / "planted", begins=begins)
    n = 60
    result = headscope.classify(
        str(planted.folder), planted.treebank, frequencies=planted.frequencies, limit=n
    )
    sentences = reference.read_treebank(planted.treebank)[:n]
    slow = reference_causal.measure(planted.folder, sentences)
    n_edges = sum(head > 0 for sentence in sentences for head in sentence.heads)
    for head in result.heads:
        counts = slow[head.layer, head.head]
        sink = head.first_token
        assert sink.weight.value == pytest.approx(counts["sink"] / counts["sink queries"], abs=1e-6)
        assert sink.uniform == pytest.approx(counts["sink uniform"] / counts["sink queries"])
        assert result.corpus.queries == counts["queries"]
        for ours, name in (
            (head.self_rate, "self"),
            (head.confidence, "confidence"),
            (head.positional.chance, "chance"),
        ):
            assert ours == pytest.approx(counts[name] / counts["queries"], abs=1e-6), name
        for r in range(-5, 0):
            rate = ratio(counts["offset hits", r], counts["offset queries", r])
            assert head.positional.rates[str(r)] == pytest.approx(rate, abs=1e-9)
        assert head.syntactic
        for score in head.syntactic:
            name = (score.relation, score.direction)
            trials = counts["trials", name]
            assert score.trials == trials, name
            assert score.accuracy.value == pytest.approx(counts["accuracy", name] / trials), name
            assert score.accuracy_mean == pytest.approx(counts["accuracy_mean", name] / trials)
            for baseline, rate in score.baselines.items():
                expected = counts[baseline, name] / trials
                assert rate == pytest.approx(expected), (head.name, name, baseline)
    up = sum(counts["trials", name] for _, name in _names(slow) if name[1] == "dep->head")
    assert result.corpus.asked_edges["dep->head"] == pytest.approx(up / n_edges)


def _names(slow):
    return {key for key in next(iter(slow.values())) if key[0] == "trials"}


def test_induction_is_that_of_the_oracle_on_other_tokens(tmp_path):
    planted = build_decoder(tmp_path / "planted", begins=True)
    result = headscope.classify(str(planted.folder), planted.treebank, limit=20)
    network = AutoModel.from_pretrained(planted.folder, attn_implementation="eager").eval()
    slow = reference_causal.induction(
        network, [2], range(8, network.config.vocab_size), draws=6, copy=50, seed=1
    )
    for head in result.heads:
        gain = slow[head.layer, head.head]
        assert head.prefix.after.gain.value == pytest.approx(gain, abs=0.05), head.name
    assert slow[1, 0] > 0.8


def test_sentences_of_one_word_have_no_word_to_ask_for(tmp_path):
    """A whole batch of them, each at position 0, beside sentences that show roles."""
    planted = build_decoder(tmp_path / "planted", begins=False)
    blocks = planted.treebank.read_text().split("\n\n")[:10]
    word = "# text = .\n1\t.\t_\t_\t_\t_\t0\troot\t_\t_"
    treebank = tmp_path / "short.conllu"
    treebank.write_text("\n\n".join([*[word] * 1100, *blocks]) + "\n\n")
    result = headscope.classify(str(planted.folder), treebank, validate=False)
    assert result.corpus.sentences == 1110
    assert result.heads[0].positional.score.value > 0.9
