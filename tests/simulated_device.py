"""A second device that needs no hardware: tensors that say ``cuda`` and lie in ordinary memory.

Whatever a real device refuses, it refuses too: tensors of two devices in one operation (apart from
single numbers, and from indices in the process's memory), generators of the other device, NumPy
views, and float64 where it is told to have none. It says nothing of speed, of kernels that a device
lacks, nor of how a device rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "cuda"
_DEVICE = torch.device(NAME, 0)
_CPU = torch.device("cpu")
_parse_to = torch._C._nn._parse_to
_aten = torch.ops.aten
#: Operations that take tensors of two devices.
_MIXED = {_aten.copy_.default, _aten._to_copy.default}
#: Operations whose indices may lie in the process's memory.
_INDEXED = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default}
#: What torch's own code makes beside a tensor, where it believes the tensor to be: see OnDevice.
_BESIDE = {
    getattr(_aten, name).default
    for name in ("new_zeros", "new_empty", "new_full", "new_ones", "zeros_like", "empty_like")
} | {_aten.new_empty_strided.default}


class OnDevice(Tensor):
    """A tensor on the simulated device; ``held`` has its numbers.

    To torch's own code it is one in ordinary memory whose operations Python runs; only who asks in
    Python for its device gets the other answer.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        wrapper: Any = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=_CPU,
        )
        wrapper.held = held
        return wrapper

    @property
    def device(self) -> torch.device:
        return _DEVICE

    @property
    def is_cuda(self) -> bool:
        return True

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.held!r})"

    def __deepcopy__(self, memo: Any) -> Tensor:
        copied: Any = OnDevice(self.held.clone())
        copied._is_param = getattr(self, "_is_param", False)
        return copied.requires_grad_(self.requires_grad)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy")
        if func is Tensor.tolist:
            return args[0].held.tolist()
        if func is Tensor.cpu:
            return _moved(args[0], "cpu")
        if func is Tensor.to:
            return _moved(*args, **kwargs)
        if func is torch.linalg.matrix_rank:  # makes a tolerance beside the matrices
            return _wrapped(func(args[0].held, *args[1:], **kwargs))
        if func is Tensor.new_tensor:
            of_type = kwargs.get("dtype") or args[0].dtype
            return torch.tensor(args[1], dtype=of_type).to(kwargs.get("device") or _DEVICE)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class Simulated(TorchDispatchMode):
    """Makes tensors of the simulated device while it is entered.

    Parameters
    ----------
    float64 : bool
        Whether it has such numbers; Apple's GPUs have not.
    """

    current: Simulated | None = None

    def __init__(self, *, float64: bool) -> None:
        super().__init__()
        self.float64 = float64
        self.operations = 0

    def __enter__(self) -> Any:
        Simulated.current = self
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        Simulated.current = None
        super().__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Moves(TorchFunctionMode):
    """Moves tensors, also those made of lists, without asking for the device's own driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        target = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and target is not None:
            rest = {name: value for name, value in kwargs.items() if name != "device"}
            return _moved(func(*args, **rest), torch.device(target))
        return _moved(*args, **kwargs) if func is Tensor.to else func(*args, **kwargs)


def _moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Do what ``Tensor.to`` does."""
    copy = kwargs.pop("copy", False)
    other = args[0] if args else kwargs.get("other")
    if isinstance(other, Tensor):
        device = other.device
        dtype = other.dtype
    else:
        device, dtype, _, _ = _parse_to(*args, **kwargs)
    device = device or tensor.device
    dtype = dtype or tensor.dtype
    if device.type == tensor.device.type and dtype == tensor.dtype and not copy:
        return tensor
    moved: Tensor = _aten._to_copy.default(tensor, dtype=dtype, device=device)
    return moved


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation where it belongs, or refuse it."""
    arguments = tree_leaves((args, kwargs))
    there = any(isinstance(item, OnDevice) for item in arguments)
    target = None if there and func in _BESIDE else kwargs.get("device")
    if func is _aten.copy_.default:
        target = args[0].device
    on_device = there if target is None else torch.device(target).type == NAME
    if not (there or on_device):
        return func(*args, **kwargs)
    _check(func, args, kwargs, there, on_device)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": _CPU}
    out = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if Simulated.current is not None:
        Simulated.current.operations += 1
    if not on_device:
        return args[0] if func is _aten.copy_.default else out
    wrapped = tree_map(_wrapped, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if there else wrapped


def _check(func: Any, args: Any, kwargs: dict[str, Any], there: bool, on_device: bool) -> None:
    generator = kwargs.get("generator")
    if on_device and generator is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")
    if func in _MIXED or not there:
        return
    checked = (args[0], *args[2:]) if func in _INDEXED else (args, kwargs)
    tensors = [item for item in tree_leaves(checked) if isinstance(item, Tensor)]
    if any(not isinstance(item, OnDevice) and item.dim() for item in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found cpu and {NAME}:0 in {func}"
        )


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


def _wrapped(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    mode = Simulated.current
    if value.dtype == torch.float64 and mode is not None and not mode.float64:
        raise TypeError("Cannot convert a tensor to float64: this device has none")
    return OnDevice(value)


def _parsed(*args: Any, **kwargs: Any) -> Any:
    """Read the arguments of ``Module.to``: a tensor stands for where Python believes it to be."""
    if args and isinstance(args[0], OnDevice):
        return _DEVICE, args[0].dtype, False, None
    return _parse_to(*args, **kwargs)


@contextmanager
def simulated_device(patch: pytest.MonkeyPatch, *, float64: bool = True) -> Iterator[Simulated]:
    """Let ``device="cuda"`` mean the simulated device while the block runs."""
    patch.setattr(torch.cuda, "_lazy_init", lambda: None)
    patch.setattr(torch._C._nn, "_parse_to", _parsed)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patch.setattr(torch.cuda, "synchronize", lambda *_: None)
    # Else a module that moves would keep its old tensors and exchange their memory.
    patch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    with _Moves(), Simulated(float64=float64) as mode:
        yield mode
