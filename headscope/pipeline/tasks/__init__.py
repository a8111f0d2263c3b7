"""What a model is measured by: five tasks behind one interface.

``fidelity`` needs nothing but text; ``mlm`` and ``classification`` need a model with that head;
``similarity`` needs pairs with a gold score, ``seq2seq`` an encoder-decoder model and pairs of
source and target.
"""

from headscope.pipeline.tasks.base import Task
from headscope.pipeline.tasks.losses import LossBatch
from headscope.pipeline.tasks.making import TASKS, check_task, make_task, read_examples, select

__all__ = ["TASKS", "LossBatch", "Task", "check_task", "make_task", "read_examples", "select"]
