"""How near a pruned model's guesses stay on text without labels, beside one sentence at a time."""

import random

import pytest
import torch
from tiny_models import tiny_bert

import headscope
from headscope.data.examples import Examples
from headscope.models.surgery.copies import remove_heads
from headscope.tasks.encoder_tasks import Fidelity

WORDS = ["the", "cat", "dog", "mat", "house", "sat", "ran", "saw", "big", "red", "he", "she", "it"]


@pytest.mark.parametrize("head", ["classification", "mlm", None])
def test_agreement_is_counted_guess_by_guess(head, tmp_path):
    draw = random.Random(4)
    texts = tuple({" ".join(draw.choices(WORDS, k=draw.randint(4, 20))): 0 for _ in range(40)})
    more = {"num_labels": 3} if head == "classification" else {}
    folder = tiny_bert(tmp_path, heads=4, task_head=head, seed=2, **more)
    full = headscope.load(str(folder), task_head=head)
    task = Fidelity(Examples(name="text", sha256="", first=texts), full, seed=1)
    if head == "classification":  # a random head would give every text the same class
        with torch.no_grad():
            rows = [torch.tensor([row.ids]) for row in task.rows]
            logits = torch.cat([full.network(ids, torch.ones_like(ids)).logits for ids in rows])
            full.network.classifier.bias -= logits.mean(dim=0)
    pruned = remove_heads(full, [("encoder", 0, 0), ("encoder", 0, 2), ("encoder", 1, 1)])
    found = task.nearness(task.outputs(pruned))
    assert task.nearness(task.outputs(full)).value == pytest.approx(1.0)
    same = []
    for row in task.rows:
        ids = torch.tensor([row.ids])
        with torch.no_grad():
            one, two = (m.network(ids, torch.ones_like(ids)) for m in (full, pruned))
        if head is None:
            a, b = (x.last_hidden_state[0].mean(dim=0) for x in (one, two))
            same.append(torch.cosine_similarity(a, b, dim=0).item())
        elif head == "mlm":
            a, b = (x.logits[0, list(row.masked)].argmax(-1) for x in (one, two))
            same += (a == b).tolist()
        else:
            same.append(bool(one.logits.argmax() == two.logits.argmax()))
    assert task.nearness_of == ("cosine" if head is None else "agreement")
    assert found.value == pytest.approx(sum(same) / len(same), abs=1e-5)
    assert 0.0 < found.value < 1.0
    assert found.low < found.value < found.high
