"""``headscope prune``: choose heads, remove them, repair and measure what is left, keep a model.

:mod:`.run` is what happens, step by step. It opens two sets of data (:mod:`.sources`), and a
:class:`.measure.Pruner` ranks heads (:mod:`.ranking`, :mod:`.methods`, :mod:`.trained_gates`),
repairs what is left (:mod:`.scaling`) and measures it, along :mod:`.curves`, for a bounded loss
(:mod:`.max_drop`) or one stack at a time (:mod:`.stacks`). The method and repair ``surgeon`` is
:mod:`.surgeon`, by :mod:`.moments` and :mod:`.elimination`. :mod:`.keep` saves a model with its
:mod:`.card`; :mod:`.view` shows the :mod:`.result` by :mod:`.sentences`, :mod:`.tables` and
:mod:`.survivors`.
"""

from headscope.pruning.options import PruneOptions
from headscope.pruning.result import PruneResult
from headscope.session.entry import entry

__all__ = ["PruneResult", "prune"]

prune = entry(PruneOptions, PruneResult, "headscope.pruning.run")
