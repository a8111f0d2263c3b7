"""``headscope shrink``: a smaller, faster model by the plainest means that reach the target.

To read in this order: :mod:`~headscope.shrinking.run` reads what a run needs (``text``) and climbs
the :mod:`~headscope.shrinking.ladder`: the whole model in every form (``whole_model``,
``serving``), then a smaller one of the right size (``sizes``), made by ``making`` (``layers``,
``neurons``, ``distil``). :mod:`~headscope.shrinking.bench` measures all of them (``elsewhere``).
``saving`` and ``card`` write the folder, ``view`` shows the result.
"""

from headscope.session.entry import entry
from headscope.shrinking.options import ShrinkOptions
from headscope.shrinking.result import ShrinkResult

__all__ = ["ShrinkResult", "shrink"]

shrink = entry(ShrinkOptions, ShrinkResult, "headscope.shrinking.run")
