"""The device and the floating-point type in which a model is computed."""

from __future__ import annotations

import torch

from headscope.core.errors import InputError
from headscope.core.widest import widest_type

#: The types in which a model can be computed, the widest first.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")
}


def pick_device(device: str) -> torch.device:
    """Turn ``auto`` into the best device available, or check that the named one is there.

    ``auto`` is a CUDA device or the CPU: an Apple GPU has no float64, so it has to be asked for.
    """
    available = ["cpu"]
    if torch.cuda.is_available():
        available.append("cuda")
    if torch.backends.mps.is_available():
        available.append("mps")
    if device == "auto":
        return torch.device("cuda" if "cuda" in available else "cpu")
    name, colon, number = device.partition(":")  # such as cuda:1
    count = torch.cuda.device_count() if name == "cuda" and name in available else 1
    numbers = [str(i) for i in range(count)]
    if name not in available or (colon and number not in numbers):
        raise InputError(
            f"device {device} is not available: this torch sees {' and '.join(available)} here."
        )
    return torch.device(device)


def widest_dtype(device: str = "auto") -> str:
    """Return the widest type that ``device``, as :func:`load` takes it, can compute in."""
    return str(widest_type(pick_device(device))).removeprefix("torch.")


def dtype_on(dtype: str, device: torch.device) -> torch.dtype:
    """Look up a type by name, and check that the device can compute in it."""
    names = list(DTYPES)
    if widest_dtype(str(device)) != "float64":
        names.remove("float64")
    if dtype not in names:
        raise InputError(
            f"dtype {dtype} is not available on {device.type}; give {', '.join(names[:-1])} or "
            f"{names[-1]}."
        )
    return DTYPES[dtype]
