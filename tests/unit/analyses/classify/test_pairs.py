"""classify on pairs, from the texts to the numbers, against patterns of the model's own eager run.

The slow way shares no code with the package: one pair at a time, without padding, with loops.
"""

import json
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from scipy import stats
from tiny_models import some_pairs, tiny_bert, write_pairs, write_tiny
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import headscope
from headscope.analyses.classify.known_roles import find_roles
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.errors import CorpusError, InputError
from headscope.core.serialise import from_dict, to_dict, to_json
from headscope.reports.facts import Number, facts_of, settings_of
from headscope.reports.reading import Results
from headscope.session.resume import RunState
from tests.reference import lowest_argmax

PAIRS = some_pairs(70, seed=5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("pairs")
    return {
        "bart": write_tiny(base / "bart", "bart"),
        "bart, framed": write_tiny(base / "framed", "bart", template="[CLS] $A [SEP]"),
        "t5": write_tiny(base / "t5", "t5"),
    }


@pytest.fixture(scope="module")
def bart(folders: dict[str, Path]) -> ClassifyResult:
    return headscope.classify(str(folders["bart"]), PAIRS, dtype="float64", control=True)


class Pair(NamedTuple):
    """One pair as a model reads it, and its patterns by layer (heads, queries, keys)."""

    source: list[int]
    labels: list[int]
    decoder: list[Tensor]
    cross: list[Tensor]


class Slow:
    """Reads pairs with transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.network = AutoModelForSeq2SeqLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager"
        ).eval()

    def tokens(self, source: str, target: str) -> tuple[list[int], list[int]]:
        """Source with its special tokens; target with exactly one end token."""
        labels = self.tokenizer(text_target=target)["input_ids"]
        while labels[-1] == 3:
            labels = labels[:-1]
        return self.tokenizer(source)["input_ids"], [*labels, 3]

    @torch.no_grad()
    def read(self, source: list[int], labels: list[int]) -> Pair:
        out = self.network(
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([[2, *labels[:-1]]]),
            output_attentions=True,
        )
        decoder, cross = ([p[0] for p in x] for x in (out.decoder_attentions, out.cross_attentions))
        return Pair(source, labels, decoder, cross)


def special(token: int) -> bool:
    return token in (0, 2, 3)


def cross_numbers(pairs: list[Pair], layer: int, head: int) -> dict[str, Any]:
    """Where every predicted content token looks: key, weight, mass of special tokens."""
    found: dict[str, list[float]] = {"alignment": [], "confidence": [], "mass": [], "uniform": []}
    for pair in pairs:
        if any(sum(not special(x) for x in side) < 3 for side in (pair.source, pair.labels)):
            continue
        keys = [j for j, token in enumerate(pair.source) if not special(token)]
        places = []
        for i, token in enumerate(pair.labels):  # row i predicts label i
            if not special(token):
                row = pair.cross[layer][head][i].tolist()
                content = [row[j] for j in keys]
                places.append(lowest_argmax(content, range(len(content))))
                found["confidence"].append(max(content))
                found["mass"].append(sum(w for j, w in enumerate(row) if j not in keys))
                found["uniform"].append(1 / len(row))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rho = float(stats.spearmanr(range(len(places)), places).statistic)
        found["alignment"].append(0.0 if math.isnan(rho) else rho)
    means = {name: pytest.approx(sum(v) / len(v), abs=1e-9) for name, v in found.items()}
    return {**means, "pairs": len(found["alignment"])}


def decoder_numbers(pairs: list[Pair], layer: int, head: int) -> dict[str, float]:
    hits, tries, top, itself, mass, n, chance = [0] * 6, [0] * 6, 0.0, 0, 0.0, 0, 0.0
    for pair in pairs:
        ids = [2, *pair.labels[:-1]]
        content = [j for j, token in enumerate(ids) if not special(token)]
        for i in content:
            row = pair.decoder[layer][head][i]
            seen = [j for j in content if j <= i]
            best = lowest_argmax(row.tolist(), seen)
            n, top, itself = n + 1, top + max(float(row[j]) for j in seen), itself + (best == i)
            mass += sum(float(row[j]) for j in range(len(ids)) if j not in content)
            chance += 1 / len(seen)
            for back in range(1, 6):
                if i - back in content:
                    tries[back] += 1
                    hits[back] += best == i - back
    rates = {str(-back): hits[back] / tries[back] for back in range(1, 6)}
    named = {"confidence": top / n, "self_rate": itself / n, "special_mass": mass / n}
    return {**named, "chance": chance / n, "queries": n, **rates}


@pytest.mark.parametrize("name", ["bart", "bart, framed", "t5"])
def test_numbers_of_decoder_and_cross_attention(name, folders):
    slow = Slow(folders[name])
    pairs = [slow.read(*slow.tokens(*pair)) for pair in PAIRS]
    result = headscope.classify(str(folders[name]), PAIRS, dtype="float64")
    # Each target with the nearest other source before it that has as many content tokens.
    swapped = []
    for i, pair in enumerate(pairs):
        length = sum(not special(x) for x in pair.source)
        for before in reversed(pairs[:i]):
            same = sum(not special(x) for x in before.source) == length
            if same and before.source != pair.source:
                swapped.append(slow.read(before.source, pair.labels))
                break
    assert 40 < len(swapped) < len(pairs)
    cross, decoder = result.only("cross"), result.only("decoder")
    assert len(cross.heads) == sum(len(layer) for layer in pairs[0].cross)
    for head in cross.heads:
        expected = cross_numbers(pairs, head.layer, head.head)
        assert head.alignment.pairs == expected["pairs"] < len(PAIRS)
        assert head.alignment.score.value == expected["alignment"]
        assert head.confidence == expected["confidence"]
        assert head.sharpness.uniform == expected["uniform"]
        assert head.special_mass == expected["mass"]
        other = cross_numbers(swapped, head.layer, head.head)["alignment"]
        assert head.alignment.swapped.value == other
    for head in decoder.heads:
        expected = decoder_numbers(pairs, head.layer, head.head)
        rates = {k: v for k, v in head.positional.rates.items() if k.startswith("-")}
        assert rates == pytest.approx({k: expected[k] for k in rates}, abs=1e-9)
        assert head.positional.chance == pytest.approx(expected["chance"], abs=1e-9)
        for number in ("confidence", "self_rate", "special_mass"):
            assert getattr(head, number) == pytest.approx(expected[number], abs=1e-9)
        assert decoder.corpus.queries == expected["queries"]
        assert head.rare is None
        assert head.syntactic == ()
    marks = slow.tokenizer.convert_tokens_to_ids([",", "."])
    masses = []
    for pair in pairs:
        ids = [2, *pair.labels[:-1]]
        at = [j for j, token in enumerate(ids) if token in marks]
        content = [i for i, token in enumerate(ids) if not special(token)]
        masses += [float(pair.decoder[1][2][i][at].sum()) for i in content]
    (head,) = (head for head in decoder.heads if head.name == "decoder:L1H2")
    assert head.punctuation_mass == pytest.approx(sum(masses) / len(masses), abs=1e-9)
    assert sum(masses) > 0


def test_a_stack_alone_is_as_among_all(bart, folders):
    loaded = headscope.load(str(folders["bart"]), dtype="float64")
    for stack in ("encoder", "decoder", "cross"):
        alone = headscope.classify(loaded, PAIRS, stack=stack, control=True)
        part = bart.only(stack)
        assert alone.heads == part.heads
        assert alone.untestable == part.untestable
        for name in ("sentences", "skipped", "queries", "pairs"):
            assert getattr(alone.corpus, name) == getattr(part.corpus, name)
        known = {k: v for k, v in vars(alone.control).items() if v is not None}
        assert {k: v for k, v in vars(part.control).items() if v is not None} == known
    # The encoder reads the sources as sentences; a view is measured by default.
    alone = headscope.classify(loaded, [source for source, _ in PAIRS])
    assert (alone.stacks, alone.heads) == (("encoder",), bart.only("encoder").heads)
    assert alone.provenance["model"]["n_layers"] == 8  # of all stacks: it is the same model
    assert headscope.classify(loaded.only("cross"), PAIRS).heads == bart.only("cross").heads


def test_a_decoder_alone_reads_sentences(tmp_path):
    """gpt2 has one stack; no row sees a token to its right."""
    folder = write_tiny(tmp_path / "gpt2", "gpt2")
    lines = [source for source, _ in PAIRS]
    loaded = headscope.load(str(folder), dtype="float64")
    found = headscope.classify(loaded, lines)
    assert found.stacks == ("decoder",)
    assert "decoder:special" in found.untestable
    assert not any(name.endswith(("syntactic", "rare")) for name in found.untestable)
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    network = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    tops = []
    for ids in AutoTokenizer.from_pretrained(folder)(lines)["input_ids"]:
        content = [j for j, token in enumerate(ids) if not special(token)]
        with torch.no_grad():
            out = network(input_ids=torch.tensor([ids]), output_attentions=True)
        tops += [float(out.attentions[1][0, 3, i][content].max()) for i in content]
    head = found.heads[-1]
    assert head.name == "decoder:L1H3"
    assert head.confidence == pytest.approx(sum(tops) / len(tops), abs=1e-9)
    assert headscope.classify(loaded, lines, stack="all").heads == found.heads
    with pytest.raises(InputError, match="has no stack 'encoder'; it has decoder"):
        headscope.classify(loaded, lines, stack="encoder")


def test_what_does_not_fit(tmp_path, folders):
    bart = headscope.load(str(folders["bart"]))
    bert = headscope.load(str(tiny_bert(tmp_path / "bert")))
    (tmp_path / "half.tsv").write_text("a cat\tsat\na dog\n")
    sentence = ["a cat sat"]
    long = ("the " * 60, "a cat sat")
    for error, model, texts, stack, words in (
        (InputError, bart, sentence, "all", r"stacks decoder and cross of .* read pairs of source"),
        (InputError, bart, None, "cross", r"stack cross of .* reads pairs of source and target"),
        (InputError, bert, sentence, "cross", "no stack 'cross'; it has encoder"),
        (InputError, bert, PAIRS, None, "is no encoder-decoder model, so it cannot read pairs"),
        (CorpusError, bart, [("a cat", "sat"), ("a dog", " ")], None, "Pair 2 in memory"),
        (CorpusError, bart, tmp_path / "half.tsv", None, r"half\.tsv, line 2: 1 column where 2"),
        (CorpusError, bart, [long] * 2, "cross", "None of the 2 pairs of in memory could be"),
    ):
        with pytest.raises(error, match=words):
            headscope.classify(model, texts, stack=stack)
    # A pair that cannot be read whole is skipped.
    result = headscope.classify(bart, [long, *PAIRS, long[::-1]], stack="decoder")
    assert (result.corpus.sentences, result.corpus.skipped) == (len(PAIRS), 2)
    # Of a table an encoder reads the sentences.
    table = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    (tmp_path / "pairs.txt").write_text("\n".join(source for source, _ in PAIRS))
    found = headscope.classify(bert, table)
    assert found.heads == headscope.classify(bert, tmp_path / "pairs.txt").heads
    assert not found.corpus.pairs


def without_time(result: ClassifyResult) -> str:
    document = to_dict(result)
    del document["provenance"]["created"]
    return to_json(document)


def test_killed_and_resumed(tmp_path, folders, monkeypatch):
    """In each of the passes that are run of all stacks, in this order."""
    passes = ["model, sources", "model, pairs", "swapped sources"]
    passes += ["control, sources", "control, pairs"]
    monkeypatch.setattr("headscope.session.texts.BATCH_TOKENS", 128)
    loaded, note = headscope.load(str(folders["bart"])), RunState.note

    def save_always(self: RunState[Any], name: str, done: int, sums: Any, **_: Any) -> None:
        note(self, name, done, sums, final=True)

    def run(**options: Any) -> ClassifyResult:
        return headscope.classify(loaded, PAIRS[:30], control=True, command="same", **options)

    whole = without_time(run())
    monkeypatch.setattr(RunState, "note", save_always)
    for stop_in in passes:
        state, seen, again = tmp_path / f"{stop_in}.safetensors", list[str](), list[str]()

        def stop(name: str, *_: int, stop_in: str = stop_in, seen: list[str] = seen) -> None:
            seen.append(name)
            if name == stop_in and seen.count(name) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(state=state, progress=stop)
        resumed = run(state=state, resume=True, progress=lambda name, *_, a=again: a.append(name))
        assert stop_in in again
        assert not set(again) & set(passes[: passes.index(stop_in)])
        assert without_time(resumed) == whole


def test_results_of_earlier_versions_are_read(bart):
    document = json.loads(to_json(bart))
    assert from_dict(ClassifyResult, document) == bart
    old = json.loads(to_json(bart.only("encoder")))
    for name in ("pairs", "by_stack"):
        del old["corpus"][name]
    del old["control"]["by_stack"]
    for head in old["heads"]:
        del head["stack"], head["alignment"], head["sharpness"]
    read = from_dict(ClassifyResult, old)
    assert read.heads == bart.only("encoder").heads
    assert read.only("encoder") is read


def test_roles_are_found_by_stack(bart, folders):
    whole = headscope.load(str(folders["bart"]))
    known = find_roles(whole, bart)
    assert len(known.by_place) == len(bart.heads)
    assert known.by_place[2 + 3 + 1, 2].name == "cross:L1H2"
    view = whole.only("cross")
    for result in (bart, bart.only("cross")):
        assert find_roles(view, result).by_place[1, 2].name == "cross:L1H2"
    with pytest.raises(InputError, match="covers 12 of the 28 heads"):
        find_roles(whole, bart.only("cross"))


def test_what_diff_compares(bart):
    facts = facts_of(Results("x", classify=bart), ["classify"])
    (head,) = (head for head in bart.heads if head.name == "cross:L2H3")
    found = {key[1:]: number for key, number in facts.items()}
    assert found["cross:L2H3", "alignment"] == Number(*vars(head.alignment.score).values())
    swapped = found["cross:L2H3", "alignment, swapped sources"]
    assert swapped.value == head.alignment.swapped.value
    assert found["cross:L2H3", "confidence"].interval == head.sharpness.confidence.interval
    assert found["random weights, cross", "monotonic heads"].value == 0
    assert ("random weights, encoder", "monotonic heads") not in found
    assert settings_of(bart)["pairs"] == len(PAIRS)
