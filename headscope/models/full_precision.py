"""Matrix products that are as exact as their type says, whatever was set for speed.

torch may multiply float32 in fewer bits: in TF32 (10 bits of 23) on NVIDIA's GPUs, in bfloat16 (7
bits) on CPUs that have such units, and by default in cuDNN's convolutions. And it may add the
partial sums of half-precision products in half precision. A certificate made so would be of another
model than the one whose type it states.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["full_precision"]

#: Owner, attribute, value that it must have.
_Setting = tuple[Any, str, Any]


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 in float32 and add half precision up in float32, while the block runs.

    Also a decorator. What the caller had set is set again afterwards, exceptions or not.
    """
    changed: list[_Setting] = []
    try:
        for owner, name, value in _needed():
            changed.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, before in reversed(changed):
            setattr(owner, name, before)


def _needed() -> Iterator[_Setting]:
    """Yield what has to be set, each when all before it has been."""
    backends = torch.backends
    # The old way first: torch refuses to read it once the new one has said something else.
    if _read(_Whole, "precision") not in (None, "highest"):
        yield _Whole, "precision", "highest"
    if _read(backends.cudnn, "allow_tf32"):
        yield backends.cudnn, "allow_tf32", False
    mkldnn = backends.mkldnn
    conv, own, own_conv = (
        getattr(owner, name, None)
        for owner, name in ((backends.cudnn, "conv"), (mkldnn, "matmul"), (mkldnn, "conv"))
    )
    for owner in (backends.cuda.matmul, conv, own, own_conv):
        if _read(owner, "fp32_precision") not in (None, "ieee", "none"):
            yield owner, "fp32_precision", "ieee"
    for kind in ("fp16", "bf16"):
        name = f"allow_{kind}_reduced_precision_reduction"
        if _read(backends.cuda.matmul, name):
            yield backends.cuda.matmul, name, False


def _read(owner: Any, name: str) -> Any:
    """Return a setting; None where this torch has none, or where the other way was used."""
    try:
        return getattr(owner, name, None)
    except (RuntimeError, AssertionError):
        return None


class _WholeSetting(type):
    """torch's one setting for all backends, as an attribute."""

    @property
    def precision(cls) -> str:
        return torch.get_float32_matmul_precision()

    @precision.setter
    def precision(cls, value: str) -> None:
        torch.set_float32_matmul_precision(value)


class _Whole(metaclass=_WholeSetting):
    pass
