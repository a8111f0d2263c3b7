"""Whether a run fits into the memory that is free: said once the model is there, before it begins.

What a run holds beside its model was measured for every command (docs/scale.md) and is nearly a
multiple of the model's weights and a number of bytes; a second model, with random weights, is as
large as the first. Bytes of texts and of results are next to nothing beside these.
"""

from __future__ import annotations

from collections.abc import Callable

from headscope.core.errors import InputError
from headscope.core.memory import free_memory
from headscope.models.loaded import LoadedModel

#: Returns the bytes that a run holds beside its model, whose weights take so many, and what it
#: holds without a part that can be left out, by what the part is called.
Needs = Callable[[int], tuple[float, dict[str, float]]]
_GIB = 1 << 30


def check_memory(loaded: LoadedModel, needs: Needs) -> None:
    """Refuse a run that does not fit into the memory that is free, and say what would."""
    free = free_memory()
    needed, without = needs(sum(weight.nbytes for weight in loaded.network.parameters()))
    if loaded.device != "cpu" or free is None or needed <= free:
        return
    fitting = [f"it fits without {part}" for part, less in without.items() if less <= free]
    advice = fitting[0] if fitting else "free some, or take a larger machine"
    raise InputError(
        f"This run needs about {needed / _GIB:.1f} GiB of memory beside {loaded.name} itself, and "
        f"{free / _GIB:.1f} GiB are free; {advice}."
    )
