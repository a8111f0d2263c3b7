"""What a model is measured by: four tasks behind one interface.

``fidelity`` needs nothing but text; ``mlm`` and ``classification`` need a model with that head;
``similarity`` needs pairs with a gold score.
"""

from headscope.pipeline.tasks.base import Task
from headscope.pipeline.tasks.losses import LossBatch
from headscope.pipeline.tasks.making import TASKS, make_task, read_examples, select

__all__ = ["TASKS", "LossBatch", "Task", "make_task", "read_examples", "select"]
