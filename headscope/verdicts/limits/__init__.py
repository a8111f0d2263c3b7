"""What a report must show for its run to pass."""

from headscope.verdicts.limits.limits import (
    LIMIT_NAMES,
    Limits,
    check_baseline,
    described,
    limit_failures,
    require_limits,
)

__all__ = [
    "LIMIT_NAMES",
    "Limits",
    "check_baseline",
    "described",
    "limit_failures",
    "require_limits",
]
