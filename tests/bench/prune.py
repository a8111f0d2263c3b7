"""What choosing heads costs, as a multiple of one forward and one backward pass.

Run: ``python tests/bench/prune.py [SENTENCES]``. The yardstick is a user's loop of forward and
backward over the same padded batches, with eager attention, timed in turn with each method.
"""

import dataclasses
import sys
from functools import partial

import torch
from timing import medians

import headscope
from headscope.data.examples import read_texts
from headscope.models.run.implementation import use_implementation
from headscope.pruning.methods import rank
from headscope.pruning.ranking import Context
from headscope.tasks.calibration import pick
from headscope.tasks.making import make_task

METHODS = ("importance-token", "importance-example", "fisher", "surgeon")


def main(sentences):
    loaded = headscope.load("demo")
    rounds = 5
    task = make_task("fidelity", pick(read_texts(None), sentences, "fidelity", 0), loaded)
    context = Context.of_task(loaded, task, roles={}, largest=54, seed=0)
    methods = {name: partial(choose, name, context) for name in METHODS}
    times = medians({"forward + backward": partial(user_loop, context), **methods}, rounds)
    print(f"{task.n_examples} sentences, {torch.get_num_threads()} threads, {rounds} rounds")
    for name, seconds in times.items():
        print(f"{name:20s} {seconds:7.2f} s  {seconds / times['forward + backward']:5.2f} x")


def user_loop(context):
    """Differentiate the pooled states once by the input embeddings' output, as any script would."""
    loaded = context.calibration.loaded
    task = context.calibration.task
    with use_implementation(loaded.network, "eager"):
        for batch in task.batches(loaded):
            x = loaded.model.get_input_embeddings()(batch.input_ids).detach().requires_grad_(True)
            hidden = loaded.model(inputs_embeds=x, attention_mask=batch.attention_mask)[0]
            torch.autograd.grad(hidden.mean(dim=1).pow(2).sum(), x)


class Labelled:
    """The same calibration data, whose distance to a shifted target stands in for a label."""

    def __init__(self, inner):
        self.inner = inner
        self.has_labels = True

    def batches(self, *, labels):
        """Yield the label-free batches: their loss costs what a labelled one does."""
        return self.inner.batches(labels=False)


def choose(name, context):
    """Run one method without what it remembers."""
    calibration = Labelled(context.calibration) if "importance" in name else context.calibration
    rank(name, dataclasses.replace(context, memo={}, calibration=calibration)).remove(54)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
