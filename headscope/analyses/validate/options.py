"""What ``headscope validate`` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headscope.session.options import ModelOptions


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(ModelOptions):
    """Prove that our attention equals the model's: layer by layer, padded and not.

    Compared with the model's own eager and SDPA runs, and with float32 from recorded queries and
    keys. Exits with 3 when anything is off.

    Examples
    --------
    >>> import headscope
    >>> headscope.validate("demo").passed
    True
    """

    examples: ClassVar[tuple[str, ...]] = ("headscope validate demo",)
