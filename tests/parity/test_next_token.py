"""The task lm, against plain transformers on the same windows, and its gradients."""

import functools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from derivatives import check_derivatives
from families import BY_NAME, Family
from scipy import stats
from tiny_models import VOCABULARY, framed_tokenizer, tiny_bert, write_tiny
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import headscope
from headscope.core.errors import CorpusError, InputError
from headscope.models.run import task_heads
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import remove_layers
from headscope.pruning.sentences import verdict
from headscope.session.opening import open_for_tasks
from headscope.shrinking.distil import Lesson
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples

LINES = [
    "the cat sat on the mat",
    "a big red dog ran to the house",
    "she saw it and he was in the house of the big cat and ran to a red mat",
    "it was was a house house house of dogs",  # a model that repeats its input is right at times
]
SIZES: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": 32, "intermediate_size": 48},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 64, "initializer_range": 0.3},
    **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
}


def _writes(family: Family) -> bool:
    """Whether a family predicts the next token."""
    return family.stacks == ("decoder",) and family.kind != "xlm"


Open = Callable[..., tuple[LoadedModel, Task]]


def write_llama(folder: Path) -> Path:
    """Write a random Llama that begins every text with [CLS], and tends to repeat its input."""
    torch.manual_seed(3)
    config = AutoConfig.for_model("llama", tie_word_embeddings=True, **SIZES)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    framed_tokenizer("[CLS] $A").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("next-token")
    return {
        "gpt2": write_tiny(folder / "gpt2", "gpt2", template="$A"),
        "llama": write_llama(folder / "llama"),
    }


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(LINES * 12))
    return path


@pytest.fixture(scope="module")
def opened(folders: dict[str, Path], text: Path) -> Open:
    @functools.cache
    def load(family: str) -> LoadedModel:
        return open_for_tasks(str(folders[family]), dtype="float64")

    def open_(family: str, task: str = "lm") -> tuple[LoadedModel, Task]:
        return load(family), make_task(task, read_examples(task, text), load(family))

    return open_


@pytest.fixture
def many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the head read seven positions at a time."""
    monkeypatch.setattr(task_heads, "LOGITS_AT_ONCE", 7 * len(VOCABULARY))


def windows(folder: Path, lines: list[str], begin: list[int], length: int) -> Tensor:
    """Cut the lines into windows by a loop of its own: (windows, length)."""
    tokenizer = framed_tokenizer("$A")
    stream: list[int] = []
    for line in lines:
        stream += tokenizer(line, add_special_tokens=False).input_ids
    width = length - len(begin)
    count = len(stream) // width
    cut = [begin + stream[i * width : (i + 1) * width] for i in range(count)]
    return torch.tensor(cut)


@pytest.mark.usefixtures("many_slices")
@pytest.mark.parametrize(("family", "begin"), [("gpt2", []), ("llama", [2])])
def test_equal_to_transformers(family: str, begin: list[int], folders, opened) -> None:
    """The loss of ``labels=``, which is a mean over all positions of windows of one length."""
    loaded, task = opened(family)
    ids = windows(folders[family], LINES * 12, begin, length=64)
    assert [list(row.ids) for row in task.rows] == ids.tolist()
    network = AutoModelForCausalLM.from_pretrained(folders[family], dtype=torch.float64)
    with torch.no_grad():
        output = network(ids, labels=ids)
    right = (output.logits[:, :-1].argmax(-1) == ids[:, 1:]).double().mean()
    metrics = task.metrics(task.outputs(loaded))
    assert metrics == pytest.approx(
        {
            "nll": float(output.loss),
            "perplexity": float(output.loss.exp()),
            "next_token_accuracy": 100 * float(right),
        },
        rel=1e-6,  # transformers takes its loss in float32
    )
    assert family == "gpt2" or metrics["next_token_accuracy"] > 0
    by_accuracy = make_task("lm-accuracy", task.data, loaded)
    assert by_accuracy.value(by_accuracy.outputs(loaded)) == metrics["next_token_accuracy"]
    assert by_accuracy.higher_is_better


@pytest.mark.usefixtures("many_slices")
@pytest.mark.parametrize(("task", "labels"), [("lm", True), ("lm", False), ("fidelity", False)])
def test_derivatives(task, labels, opened) -> None:
    loaded, task_of_model = opened("gpt2", task)
    check_derivatives(task_of_model, loaded, labels=labels)


@pytest.mark.usefixtures("many_slices")
@pytest.mark.parametrize(("task", "labels"), [("lm", True), ("lm", False), ("fidelity", False)])
def test_gradients_are_those_of_whole_logits(task, labels, opened, monkeypatch) -> None:
    """Of losses and of e, against autograd through the logits of every position at once."""

    def gradients() -> list[Tensor]:
        found = []
        for batch in task_of_model.loss_batches(loaded, labels=labels):
            gates = torch.full_like(batch.gates("token"), 0.8).requires_grad_()
            found += torch.autograd.grad(batch.loss(gates).sum(), gates)
            output = batch.embed(gates)
            weights = torch.linspace(-1, 1, output.numel()).view_as(output).to(output)
            found += torch.autograd.grad((output * weights).sum(), gates)
        return found

    loaded, task_of_model = opened("llama", task)
    in_slices = gradients()
    whole = lambda self, hidden, head, _: self.read(head(self.pick(hidden)), slice(None))  # noqa: E731
    monkeypatch.setattr(task_heads.InSlices, "of_states", whole)
    for ours, expected in zip(in_slices, gradients(), strict=True):
        assert float(expected.abs().max()) > 1e-6
        torch.testing.assert_close(ours, expected)


def test_slices_change_nothing(opened, monkeypatch) -> None:
    loaded, task = opened("llama")
    whole = task.outputs(loaded)
    monkeypatch.setattr(task_heads, "LOGITS_AT_ONCE", 1)  # one position at a time
    sliced = task.outputs(loaded)
    for name, values in whole.items():
        np.testing.assert_allclose(sliced[name], values, rtol=1e-12)


@pytest.mark.usefixtures("many_slices")
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_fidelity_is_the_divergence_of_next_tokens(family: str, opened) -> None:
    """Of every token that follows another, against SciPy on whole logits."""
    loaded, task = opened(family, "fidelity")
    same = task.metrics(task.outputs(loaded))
    assert same == pytest.approx({"cosine": 1.0, "kl": 0.0}, abs=1e-9)
    compact = headscope.remove_heads(loaded, [(0, 1), (1, 2)])
    outputs = task.outputs(compact)
    expected = []
    for row in task.rows:
        ids = torch.tensor([row.ids])
        with torch.no_grad():
            p = loaded.network(ids).logits[0].softmax(-1)
            q = compact.network(ids).logits[0].softmax(-1)
        read = [position - 1 for position in row.content if position > 0]
        expected.append(np.mean([stats.entropy(p[i], q[i]) for i in read]))
    np.testing.assert_allclose(outputs["kl"], expected, rtol=1e-6)  # Llama's norms are float32
    assert min(expected) > 1e-5


@torch.no_grad()
@pytest.mark.usefixtures("many_slices")
def test_threads_take_turns_at_the_reference(opened, monkeypatch) -> None:
    """Two batches side by side: each is compared with its own reference, and nothing is left."""
    loaded, task = opened("gpt2", "fidelity")
    gates = torch.ones(loaded.n_layers, loaded.n_heads)
    gates[0, 1] = 0.0
    monkeypatch.setattr(task, "alone", True)
    alone = task.outputs(loaded, gates)

    at_once = []
    most_at_once = []
    head_of_states = LoadedModel.logits_of

    def slow_head(model: LoadedModel, states: Tensor) -> Tensor:
        at_once.append(states)
        most_at_once.append(len(at_once))
        time.sleep(0.02)  # the other thread gets here meanwhile, unless it has to wait
        logits = head_of_states(model, states)
        at_once.pop()
        return logits

    monkeypatch.setattr(LoadedModel, "logits_of", slow_head)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(task, "batches", partial(Task.batches, task, tokens=32))
    monkeypatch.setattr(task, "alone", False)
    beside = task.outputs(loaded, gates)
    assert len(most_at_once) > 4
    assert max(most_at_once) == 1
    assert not any("forward" in vars(module) for module in loaded.network.modules())
    np.testing.assert_allclose(beside["kl"], alone["kl"], atol=1e-6)


def test_e_is_the_divergence_to_second_order(opened) -> None:
    """In the mean over tokens drawn; over many draws of every window."""
    loaded, task = opened("llama")
    moved = []
    expected = []
    for draw in range(60):
        task._seed = draw
        task._drawn = {}
        for batch in task.loss_batches(loaded, labels=False):
            full = batch.gates().detach()
            less = full - 0.02
            moved.append((batch.embed(less) - batch.embed(full)).square().sum(-1) / 2)
            expected.append(batch.loss(less))
    assert float(torch.cat(moved).mean() / torch.cat(expected).mean()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("name", [name for name in BY_NAME if _writes(BY_NAME[name])])
def test_a_head_reads_states_as_its_network_does(name: str) -> None:
    """Also where logits are capped or scaled, or the base model has a decoder inside."""
    network = BY_NAME[name].model(auto=AutoModelForCausalLM)
    ids = torch.tensor([[5, 9, 7, 30], [8, 6, 11, 40]])
    with torch.no_grad():
        expected = network(ids).logits
        base = network.base_model
        states, logits = task_heads.run_with_task_head(network, base, {"input_ids": ids})
        read = task_heads.logits_of_states(network, base, states.flatten(0, 1))
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(read, expected.flatten(0, 1))


def test_logits_are_never_held_at_once(opened, monkeypatch) -> None:
    sizes = []

    def noting(network: Any, base: Any, states: Tensor) -> Tensor:
        logits = read_states(network, base, states)
        sizes.append(logits.numel())
        return logits

    read_states = task_heads.logits_of_states
    monkeypatch.setattr(task_heads, "logits_of_states", noting)
    monkeypatch.setattr(task_heads, "LOGITS_AT_ONCE", 1000)
    loaded, task = opened("gpt2")
    task.outputs(loaded)
    n_logits = sum(len(row.before_next) for row in task.rows) * len(VOCABULARY)
    assert sum(sizes) == n_logits
    assert max(sizes) <= 1000


def test_pruned_by_next_tokens(folders, text: Path, tmp_path: Path) -> None:
    """With labels and without; the metrics of a point are those of the model that is saved."""
    calibration = tmp_path / "other.txt"
    calibration.write_text("\n".join(f"{line} in a house" for line in LINES * 12))
    result = headscope.prune(
        str(folders["llama"]),
        task="lm",
        data=str(text),
        calibration=str(calibration),
        methods=("importance-example", "fisher"),
        repairs=("none", "scale"),
        fractions=(0.25,),
        save=tmp_path / "cut",
    )
    assert result.metric == "nll"
    assert [curve.name for curve in result.curves][:2] == [
        "importance-example",
        "importance-example + scale",
    ]
    assert "(perplexity" in verdict(result)
    cut = open_for_tasks(str(tmp_path / "cut"))
    assert cut.task_head == "causal"  # a folder that writes, as the whole one does
    task = make_task("lm", read_examples("lm", text), cut)
    kept = result.kept
    assert kept is not None
    saved = [
        curve.points[1].metrics
        for curve in result.curves
        if (curve.method, curve.repair) == (kept.method, kept.repair)
    ]
    assert task.metrics(task.outputs(cut)) == pytest.approx(saved[0], rel=1e-5)


def test_distance_of_a_shorter_model(opened) -> None:
    """What shrink chooses layers by: the divergence of next tokens, against SciPy."""
    loaded, task = opened("gpt2")
    short = remove_layers(loaded, [1])
    rows = task.rows[:3]
    found = Lesson(short, loaded, rows, {}).distance(range(3))
    expected = []
    for row in rows:
        ids = torch.tensor([row.ids])
        with torch.no_grad():
            p = loaded.network(ids).logits[0].double().softmax(-1)
            q = short.network(ids).logits[0].double().softmax(-1)
        expected += [stats.entropy(p[i], q[i]) for i in row.before_next]
    assert found == pytest.approx(np.mean(expected), rel=1e-5)


def test_refused(opened, tmp_path: Path) -> None:
    bert = headscope.load(str(tiny_bert(tmp_path / "bert", task_head="mlm")), task_head="auto")
    _, task = opened("gpt2")
    with pytest.raises(InputError, match="no causal-language-model head"):
        make_task("lm", task.data, bert)
    loaded, _ = opened("gpt2")
    with pytest.raises(CorpusError, match="not enough text for two windows of 64 tokens"):
        make_task("lm", task.data.pick([0, 1]), loaded)


def test_sentences_that_stand_apart(folders, opened, tmp_path: Path) -> None:
    """Each is read alone, and all tokens count alike, whatever the length of its sentence."""
    table = tmp_path / "texts.jsonl"
    table.write_text("\n".join(f'{{"text": "{line}"}}' for line in LINES))
    loaded, _ = opened("llama")
    task = make_task("lm", read_examples("lm", table), loaded)
    tokenizer = framed_tokenizer("[CLS] $A")
    network = AutoModelForCausalLM.from_pretrained(folders["llama"], dtype=torch.float64)
    nll = []
    for line in LINES:
        ids = torch.tensor([tokenizer(line).input_ids])
        with torch.no_grad():
            log_p = network(ids).logits[0].log_softmax(-1)
        nll += [-float(log_p[i, ids[0, i + 1]]) for i in range(ids.shape[1] - 1)]
    assert (task.n_examples, task.skipped) == (len(LINES), 0)
    assert task.value(task.outputs(loaded)) == pytest.approx(np.mean(nll), rel=1e-6)
    widths = {batch.embed(batch.gates()).shape[1] for batch in task.loss_batches(loaded)}
    assert len(widths) == 1  # of all batches alike
    assert make_task("lm", task.data, loaded, limit=2).n_examples == 2
