"""The rungs of ``shrink``, each against an answer that was planted or that is made another way."""

import dataclasses
import functools
import itertools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from scipy.stats import entropy, spearmanr
from tiny_models import WORDS, tiny_bert, write_translator
from transformers import BertConfig, BertForSequenceClassification

import headscope
from headscope.artefacts.onnx_graph import RuntimeFile
from headscope.core.errors import ArtefactError, InputError, UnsupportedModelError
from headscope.data.token_rows import encode_rows, padded
from headscope.models.run.head_outputs import HeadOutputs
from headscope.models.surgery.layers import remove_layers
from headscope.removal.times import length_batches, spread_places
from headscope.shrinking import distil as d
from headscope.shrinking import serving
from headscope.shrinking.bench import Bench
from headscope.shrinking.card import snippets
from headscope.shrinking.ladder import Ladder
from headscope.shrinking.layers import kept_of_each, nearest_subsets, spread_evenly
from headscope.shrinking.result import MeasuredModel, Target
from headscope.shrinking.text import read_all
from headscope.shrinking.view import answer, loses_nothing
from headscope.stats.estimate import Estimate

_rng = np.random.default_rng(0)
_PIECES = [word for word in WORDS if not word.startswith("#")]


def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    return list(dict.fromkeys(" ".join(rng.choice(_PIECES, rng.integers(4, 9))) for _ in range(n)))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Four layers, the third of which returns what it is given."""
    folder = tiny_bert(tmp_path_factory.mktemp("bert") / "model", layers=4)
    model = headscope.load(str(folder))
    third = model.model.encoder.layer[2]
    for linear in (third.attention.output.dense, third.output.dense):
        linear.weight.data.zero_()
        linear.bias.data.zero_()
    return headscope.wrap(model.network, model.tokenizer, name=str(folder))


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    base = tmp_path_factory.mktemp("text")
    for i, name in enumerate(("train", "judge", "other")):
        (base / f"{name}.txt").write_text("\n".join(sentences(90, i)) + "\n")
    return base


def outputs(model, texts):
    rows = list(encode_rows(model, texts, None))
    with torch.no_grad():
        return d.output_of(model, padded(rows, model.pad_id, model.device))


# --- distillation ---------------------------------------------------------------------------------


def test_the_loss_of_each_kind_of_head():
    ours, theirs = _rng.normal(size=(2, 5, 3))
    loss = d.loss_of(torch.tensor(ours), torch.tensor(theirs), HeadOutputs.CHOICE).numpy()
    expected = [entropy(softmax(t), softmax(o)) for o, t in zip(ours, theirs, strict=True)]
    np.testing.assert_allclose(loss, expected)
    labels = d.loss_of(torch.tensor(ours), torch.tensor(theirs), HeadOutputs.LABELS).numpy()
    holds = [
        [entropy([t, 1 - t], [o, 1 - o]) for o, t in zip(*pair, strict=True)]
        for pair in zip(expit(ours), expit(theirs), strict=True)
    ]
    np.testing.assert_allclose(labels, np.sum(holds, axis=1))
    spread = torch.tensor([0.5, 2.0, 4.0])
    numbers = d.loss_of(torch.tensor(ours), torch.tensor(theirs), HeadOutputs.NUMBERS, spread)
    np.testing.assert_allclose(numbers, (((ours - theirs) / [0.5, 2, 4]) ** 2).mean(1))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (ours, theirs)]
    cosine = d.loss_of(*map(torch.tensor, unit), None)
    np.testing.assert_allclose(cosine, 1 - np.einsum("ij,ij->i", *unit), atol=1e-12)


def rows_of(*models):
    return tuple(list(encode_rows(model, sentences(120), None)) for model in models)


def clock(step=1.0):
    ticks = itertools.count()
    return lambda: step * next(ticks)


def test_a_smaller_model_comes_nearer_and_the_others_stay_as_they_are(bert):
    small = remove_layers(bert, [1])
    before = {name: tensor.clone() for name, tensor in small.network.state_dict().items()}
    trained, found = d.distil(small, bert, rows_of(small, bert), 3.0, clock=clock())
    assert found.steps > 50
    assert found.after < 0.5 * found.before
    assert all(torch.equal(t, before[n]) for n, t in small.network.state_dict().items())
    table = trained.model.embeddings.word_embeddings.weight
    assert torch.equal(table, small.model.embeddings.word_embeddings.weight)
    held = 1 - (outputs(trained, sentences(50, 9)) * outputs(bert, sentences(50, 9))).sum(-1)
    far = 1 - (outputs(small, sentences(50, 9)) * outputs(bert, sentences(50, 9))).sum(-1)
    assert held.mean() < far.mean()  # and so on texts that nobody has trained on


@pytest.mark.parametrize("tokens", [1, 24])
def test_a_step_in_parts_has_the_gradient_of_the_whole_step(bert, monkeypatch, tokens):
    monkeypatch.setattr(d, "TOKENS", tokens)
    small = remove_layers(bert, [1])
    rows = rows_of(small, bert)
    chosen = sorted(range(13), key=lambda i: len(rows[0][i]))
    lesson = d.Lesson(small, bert, rows, {})
    with d._trained(small.network) as parameters:
        lesson.backward(chosen, low=False)
        found = [p.grad for p in parameters if p.grad is not None]
        for p in parameters:
            p.grad = None
        lesson.loss(chosen).backward()
        expected = [p.grad for p in parameters if p.grad is not None]
    assert len(found) == len(expected) > 10
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-3)


def test_weights_that_came_no_nearer_are_not_kept(bert, monkeypatch):
    further = itertools.count(1)
    monkeypatch.setattr(d, "SECONDS", 1.5)
    monkeypatch.setattr(d.Lesson, "distance", lambda lesson, chosen: float(next(further)))
    small = remove_layers(bert, [1])
    trained, found = d.distil(small, bert, rows_of(small, bert), 30.0, clock=clock())
    assert (found.after, found.ended) == (found.before, "no nearer")
    for name, tensor in trained.network.state_dict().items():
        assert torch.equal(tensor, small.network.state_dict()[name])


def test_training_goes_on_from_what_an_interrupted_run_left(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(d, "SECONDS", 3.0)
    small = remove_layers(bert, [1])
    shares = []

    def interrupt(share):
        if share > 0.5:
            raise KeyboardInterrupt

    state = d.State(tmp_path / "state", "this run", (1,))
    rows = rows_of(small, bert)
    with pytest.raises(KeyboardInterrupt):
        d.distil(small, bert, rows, 0.5, state=state, clock=clock(), tell=interrupt)
    held = state.read()
    assert held is not None
    assert held["removed"] == (1,)
    d.distil(small, bert, rows, 0.5, state=state, clock=clock(), tell=shares.append)
    assert 0.3 < shares[0] < 0.6
    assert dataclasses.replace(state, key="another run").read() is None
    state.path.write_bytes(b"damaged")
    assert state.read() is None


def test_a_classifier_learns_its_whole_model_s_probabilities(tmp_path):
    torch.manual_seed(0)
    sizes = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 32}
    config = BertConfig(**sizes, num_labels=3, initializer_range=0.3)
    headed = headscope.wrap(
        BertForSequenceClassification(config).eval(),
        headscope.load(str(tiny_bert(tmp_path / "model"))).tokenizer,
    )
    small = remove_layers(headed, [1])
    _, found = d.distil(small, headed, rows_of(small, headed), 3.0, clock=clock())
    assert found.after < 0.7 * found.before


# --- which layers -----------------------------------------------------------------------------


def test_the_layer_that_does_nothing_goes_first(bert):
    full = outputs(bert, sentences(40))

    def distance(model):
        return float((1 - (outputs(model, sentences(40)) * full).sum(-1)).mean())

    looked = []
    sets = nearest_subsets(bert, 3, distance, lambda i, n: looked.append((i, n)))
    assert sets[0] == (2,)
    assert looked == [(i, 4) for i in range(4)]
    every = {
        gone: distance(remove_layers(bert, gone)) for gone in itertools.combinations(range(4), 2)
    }
    assert nearest_subsets(bert, 2, distance, lambda i, n: None) == sorted(every, key=every.get)


def test_one_at_a_time_where_there_are_many_subsets(bert, monkeypatch):
    monkeypatch.setattr("headscope.shrinking.layers.MOST_SUBSETS", 1)
    costs = {0: 3.0, 1: 2.0, 2: 0.0, 3: 1.0}

    def distance(model):
        left = {site.layer for site in model.sites}
        return sum(cost for layer, cost in costs.items() if layer not in left)

    sets = nearest_subsets(bert, 2, distance, lambda i, n: None)
    assert [set(gone) for gone in sets] == [{2, 3}, {2, 1}, {2, 0}]  # the second is spread evenly


@pytest.mark.parametrize(("count", "gone"), [(3, (2,)), (2, (1, 2)), (1, (1, 2, 3))])
def test_layers_spread_evenly_have_the_first_and_the_last(bert, count, gone):
    assert spread_evenly(bert, count) == gone


def test_both_stacks_of_an_encoder_decoder_get_shorter(tmp_path):
    model = headscope.load(str(write_translator(tmp_path / "marian")), task_head="seq2seq")
    kept = kept_of_each(model, 1)
    assert set(kept) == {"encoder", "decoder"}
    assert set(kept.values()) == {1}


# --- runtimes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    model = headscope.load(str(tiny_bert(folder / "model")))
    rows = encode_rows(model, sentences(20), None)
    texts = [padded([row], model.pad_id, model.device) for row in rows]
    return serving.Files(model, folder, texts)


@pytest.mark.parametrize("form", serving.FORMS, ids=str)
def test_every_form_puts_out_what_the_model_does(form, files):
    rows = list(encode_rows(files.model, sentences(5), None))
    batch = padded(rows, files.model.pad_id, files.model.device)
    try:
        served = files.served(form)
    except UnsupportedModelError:
        if form.precision != "bfloat16":
            raise
        pytest.skip("this processor does not multiply bfloat16")
    if form != serving.TORCH:
        hidden, logits = served(*batch.inputs)
        assert logits is None
        real = batch.attention_mask.bool()
        expected = files.model.run(*batch.inputs)[0]
        limit = {"float32": 1e-5, serving.SMALLEST.precision: 0.75}.get(form.precision, 0.25)
        assert (hidden[real] - expected[real]).abs().max() < limit
        assert files.path(form).is_file()
        assert files.megabytes(form) < 1.3 * files.megabytes(serving.TORCH) + 0.5


def test_nobody_is_told_that_a_runtime_is_used():
    """Neither finds the package that reports; nncf asks for it once, as it is imported."""
    assert serving.without_telemetry("openvino").convert_model
    assert serving.without_telemetry("nncf").quantize
    assert sys.modules["openvino_telemetry"] is None
    assert not hasattr(sys.modules["nncf.telemetry.wrapper"], "Telemetry")


def test_a_runtime_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"openvino needs .*nncf.*headscope\[export,openvino\]"):
        serving.need_runtimes(["torch", "openvino"])
    assert serving.installed_runtimes() == ("torch",)


@pytest.mark.parametrize("form", serving.FORMS, ids=str)
def test_the_snippets_of_a_card_are_python(form, bert):
    codes = snippets(form, bert, sentences=True)
    crosses = dataclasses.replace(bert, task_head="classification")
    codes_of_pairs = snippets(form, crosses, sentences=True)
    assert "CrossEncoder" in codes_of_pairs[0]
    assert len(codes) == 2
    for code in (*codes, *codes_of_pairs):
        compile(code, str(form), "exec")
    told = "f32" in codes[0] and "f32" in codes[1]
    assert told is (str(form) == "openvino float32")  # unasked openvino computes in bfloat16


# --- forms whose outputs depend on the batch ------------------------------------------------------


class _Served(RuntimeFile):
    """The model itself; with ``shared`` above 0 each text reads something of its batch."""

    def __init__(self, model, shared):
        self._model = model
        self._shared = shared

    @torch.no_grad()
    def run(self, input_ids, attention_mask, token_type_ids=None):
        hidden, _ = self._model.run(input_ids, attention_mask, token_type_ids)
        return {"last_hidden_state": hidden + self._shared * hidden[:1, :1] * hidden[-1:, :1]}


@pytest.mark.parametrize("shared", [0.0, 0.2])
def test_what_depends_on_the_batch_is_measured_in_several_orders(bert, tmp_path, lines, shared):
    texts = read_all(
        "fidelity",
        lines / "judge.txt",
        [lines / "train.txt"],
        lines / "other.txt",
        limit=None,
        seed=0,
        trains=False,
        distils=False,
    )
    task = texts.evaluation_task(bert)
    bench = Bench(bert, task, texts, tmp_path, batch_size=8, seed=0)
    found = bench.value(bert, _Served(bert, shared))
    if not shared:
        assert found.batch_effect is None
        assert found.change.same
        return
    effect = found.batch_effect
    assert effect.difference > 0.01
    assert len(set(effect.values)) == len(effect.values) == 5
    assert found.value.value == pytest.approx(np.mean(effect.values))
    assert found.value.low < min(effect.values) < max(effect.values) < found.value.high
    assert found.change.low < min(effect.values) - 1.0
    assert found.change.high > max(effect.values) - 1.0
    assert not found.change.same
    # The first order is that of the batches whose times are taken.
    rows = task.rows
    first = bench._in_order(bert, _Served(bert, shared), None)
    assert effect.values[0] == first.value.value
    whole = length_batches(rows, 8)
    assert all(part in whole for part in spread_places(rows, 8))


# --- what is held against a target ------------------------------------------------------------


_SPEED = Estimate(3.0, 2.9, 3.1)
_MS = Estimate(1.0, 0.9, 1.1)


def model(speed=_SPEED, ms=_MS, most_lost=0.4):
    return MeasuredModel(
        (0, 1),
        64,
        100,
        "openvino",
        "int8",
        20.0,
        ms,
        speed,
        Estimate(80.0),
        Estimate(-0.1, -0.4, 0.2),
        most_lost,
        {},
    )


def test_the_bad_end_of_the_interval_counts_and_what_is_unknown_reaches_nothing():
    measured = model()
    unknown = model(Estimate(9.0), Estimate(0.1), None)
    for name, reached, missed in (("speed", 2.9, 2.95), ("ms", 1.1, 1.05), ("mb", 20, 19)):
        assert measured.reaches(Target(name, reached))
        assert not measured.reaches(Target(name, missed))
    assert measured.reaches(None)
    assert measured.keeps(0.4)
    assert not measured.keeps(0.39)
    for asked in (("speed", 2.0), ("ms", 5.0)):
        assert not unknown.reaches(Target(*asked))
    assert not unknown.keeps(50.0)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({"float32": 0.0, "bfloat16": 0.2, "int8": 0.4}, "int8"),
        ({"float32": 0.0, "bfloat16": 0.2, "int8": 0.6}, "bfloat16"),
        # What loses more by calibration text is not tested after a refusal, though it might pass.
        ({"float32": 0.0, "bfloat16": 0.6, "int8": 0.4}, "float32"),
        ({"float32": 0.6, "bfloat16": 0.0, "int8": 0.0}, "torch"),
    ],
)
def test_forms_are_tested_from_the_least_lossy_to_the_first_refusal(losses, chosen, monkeypatch):
    forms = [serving.Form("openvino", name) for name in ("int8", "bfloat16", "float32")]
    monkeypatch.setattr("headscope.shrinking.ladder.layers_of", lambda model: {"encoder": [0]})
    monkeypatch.setattr("headscope.shrinking.ladder.width_of", lambda model: 0)
    plain = {"target": None, "max_drop": 0.5, "minutes": 0.0, "save": None, "tell": None}
    files = SimpleNamespace(served=lambda form: None, release=lambda: None)
    bench = SimpleNamespace(
        files_of_whole=files,
        full_model=None,
        elsewhere=lambda *models: (),
        task=SimpleNamespace(metric="spearman"),
    )
    ladder = Ladder(bench, ("openvino",), **plain)
    ladder.models = [
        dataclasses.replace(
            model(most_lost=losses.get(form.precision, 0.0)), precision=form.precision
        )
        for form in forms
    ]
    torch_model = dataclasses.replace(
        model(Estimate(1.0), most_lost=0.0), runtime="torch", precision="float32"
    )
    ladder.models.append(torch_model)
    ladder._forms = forms
    ladder._lost = dict(zip(forms, (0.03, 0.001, 0.0), strict=True))
    ladder._smallest_that_keeps()
    assert ladder.chosen is not None
    best = ladder.models[ladder.chosen]
    assert chosen in (best.precision, best.runtime)
    assert (best.runtime == "torch") is (chosen == "torch")
    assert ladder.reached


@pytest.mark.parametrize(
    ("change", "most_lost", "nothing"),
    [
        (Estimate(-0.2, -0.5, 0.1), 0.5, True),  # nothing is shown
        (Estimate(-0.2, -0.3, -0.1), 0.3, False),
        (Estimate(0.3, 0.1, 0.5), -0.1, True),
        (Estimate(-1e-6), 1e-6, True),  # rounding: no resample differs from another
        (Estimate(-1e-6, -2e-6, -1e-7), 2e-6, True),
        (Estimate(-0.2), None, False),
    ],
)
def test_what_loses_nothing(change, most_lost, nothing):
    found = dataclasses.replace(model(most_lost=most_lost), change=change)
    assert loses_nothing(SimpleNamespace(metric="spearman"), found) is nothing


# --- a run ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Too few rounds for intervals; a clock of training that no other program can slow."""
    monkeypatch.setattr("headscope.removal.times.FEWEST", 4)
    distil = functools.partial(d.distil, clock=clock(0.1))
    monkeypatch.setattr("headscope.shrinking.ladder.distil", distil)


def shrink(bert, lines, **options):
    texts = {"data": lines / "judge.txt", "text": [lines / "train.txt"]}
    return headscope.shrink(
        bert, **{**texts, "other_text": lines / "other.txt", "runtimes": ["torch"], **options}
    )


def test_a_run_interrupted_twice_goes_on_with_the_layers_that_it_had_chosen_and_is_saved(
    bert, lines, tmp_path, monkeypatch
):
    monkeypatch.setattr(d, "SECONDS", 0.1)
    monkeypatch.setattr(d, "PATIENCE", 1000)
    mb = 0.8 * serving.megabytes_of(bert)
    folder = tmp_path / "small"
    asked = {"mb": mb, "minutes": 0.04, "save": folder}

    def interrupt(at):
        def tell(what, done, total):
            if what == "distilling" and done > at * total:
                raise KeyboardInterrupt

        return tell

    for share in (0.6, 0.8):
        with pytest.raises(KeyboardInterrupt) as stopped:
            shrink(bert, lines, progress=interrupt(share), **asked)
        assert stopped.value.result.models  # what was measured before is kept
        assert "interrupted" in stopped.value.result.stopped
    monkeypatch.setattr("headscope.shrinking.ladder.nearest_subsets", None)  # none is chosen anew
    result = shrink(bert, lines, **asked)
    best = result.best
    assert result.reached
    assert best is not None
    assert best.training is not None
    assert len(best.layers) == 3
    assert best.megabytes <= 0.8 * result.whole.megabytes
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    assert "AutoModel" in (folder / "README.md").read_text()
    assert result.saved is not None
    assert result.saved.measured == pytest.approx(best.value.value, abs=1e-6)
    again = headscope.load(str(folder))
    assert [site.layer for site in again.sites] == list(best.layers)
    held = shrink(bert, lines, text=None, check_folder=folder, max_drop=1.0)
    assert (held.reached, len(held.models)) == (True, 2)
    missed = shrink(bert, lines, text=None, check_folder=folder, mb=0.01)
    assert not missed.reached
    assert "0.01 MB was asked for" in missed.stopped


def test_text_of_another_kind_and_its_neighbours(bert, lines, monkeypatch):
    monkeypatch.setattr("headscope.shrinking.bench.NEIGHBOURS", 3)
    monkeypatch.setattr("headscope.shrinking.bench.FEWEST_TEXTS", 10)
    result = shrink(bert, lines, mb=0.6 * serving.megabytes_of(bert), minutes=0)
    best = result.best
    assert best is not None
    (found,) = best.elsewhere
    small = remove_layers(bert, sorted(set(range(4)) - set(best.layers)))
    train, judge = (
        set((lines / f"{name}.txt").read_text().splitlines()) for name in ("train", "judge")
    )
    other = [x for x in (lines / "other.txt").read_text().splitlines() if x not in train | judge]
    near = []
    for each in (bert, small):
        e = outputs(each, other).double().numpy()
        s = e @ e.T - 9 * np.eye(len(e))  # none is its own neighbour
        near.append(np.argsort(-s)[:, :3].tolist())
    assert len(best.layers) < 3  # one of the others is gone too
    share = [len(set(a) & set(b)) / 3 for a, b in zip(*near, strict=True)]
    assert found.texts == len(other)
    assert found.neighbours.value == pytest.approx(np.mean(share), abs=0.02)
    full = outputs(bert, other)
    own = outputs(small, other)
    assert found.nearness.value == pytest.approx(float((full * own).sum(-1).mean()), abs=1e-5)


@pytest.mark.parametrize("kind", ["labels", "scores"])
def test_the_outputs_of_a_head_on_text_of_another_kind(lines, tmp_path, kind):
    head = {"num_labels": 1}
    if kind == "labels":
        head = {"num_labels": 3, "problem_type": "multi_label_classification"}
    folder = tiny_bert(tmp_path / "model", layers=4, task_head="classification", **head)
    model = headscope.load(str(folder), task_head="auto")
    result = shrink(model, lines, mb=0.8 * serving.megabytes_of(model), minutes=0)
    (found,) = result.best.elsewhere
    small = remove_layers(model, sorted(set(range(4)) - set(result.best.layers)))
    read = {
        x for name in ("train", "judge") for x in (lines / f"{name}.txt").read_text().split("\n")
    }
    other = [x for x in (lines / "other.txt").read_text().splitlines() if x not in read]
    full, own = (outputs(each, other).double().numpy() for each in (model, small))
    expected = [set(a) == set(b) for a, b in zip(labels_on(full), labels_on(own), strict=True)]
    nearness = np.mean(expected) if kind == "labels" else spearmanr(full[:, 0], own[:, 0])[0]
    assert (found.of, found.texts) == (kind, len(other))
    assert found.nearness.value == pytest.approx(nearness, abs=1e-6)
    assert found.nearness.low < nearness < found.nearness.high
    said = {"labels": "set of labels", "scores": "Spearman correlation of the scores"}
    assert said[kind] in answer(result)


def labels_on(logits):
    """The labels of each text whose probability is above one half."""
    return [[i for i, share in enumerate(expit(row)) if share > 0.5] for row in logits]


def test_a_score_s_distance_does_not_depend_on_its_scale(tmp_path):
    """So that the same loss ruins a model whose scores run from 0 to 1 and one of logits."""
    folder = tiny_bert(tmp_path / "model", layers=3, task_head="classification", num_labels=1)
    distances = []
    for factor in (1.0, 50.0):
        full = headscope.load(str(folder), task_head="auto")
        for parameter in full.network.classifier.parameters():
            parameter.data *= factor
        full = headscope.wrap(full.network, full.tokenizer, name="scaled")
        small = remove_layers(full, [1])
        rows = rows_of(full)[0]
        lesson = d.Lesson(small, full, (rows, rows), {})
        distances.append(lesson.distance(range(len(rows))))
        theirs, ours = (outputs(each, sentences(120)).numpy()[:, 0] for each in (full, small))
        assert distances[-1] == pytest.approx(
            np.mean((ours - theirs) ** 2) / theirs.var(), rel=1e-3
        )
    assert distances[0] == pytest.approx(distances[1], rel=1e-3)
    assert distances[0] > 0.01


def test_sentences_that_judge_neither_train_nor_calibrate(bert, lines, tmp_path):
    both = tmp_path / "both.txt"
    judge = (lines / "judge.txt").read_text()
    both.write_text((lines / "train.txt").read_text() + judge)
    result = shrink(bert, lines, text=[both])
    assert result.dropped == len(set(judge.splitlines()))
    assert (len(result.models), result.chosen, result.saved) == (1, None, None)  # no target
    assert result.whole.speed.value == 1.0
    with pytest.raises(InputError, match="nothing but sentences of the evaluation data"):
        shrink(bert, lines, text=[lines / "judge.txt"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"check_folder": "there", "save": "here"}, "check measures a folder"),
        ({"check_folder": "there"}, "check needs something to hold"),
        ({"check_folder": "nowhere", "mb": 1.0}, "There is no folder nowhere"),
    ],
)
def test_wrong_input(bert, lines, options, words):
    with pytest.raises(InputError, match=words):
        shrink(bert, lines, **options)


def test_a_target_that_nothing_reaches_names_the_nearest_and_keeps_what_was_measured(bert, lines):
    with pytest.raises(ArtefactError, match="Nothing reaches the target: the nearest") as error:
        shrink(bert, lines, mb=0.001)
    assert error.value.result is not None
    assert len(error.value.result.models) == 1
    assert math.isfinite(error.value.result.whole.megabytes)
