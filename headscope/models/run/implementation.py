"""Which attention transformers runs in a model: its own ``eager`` or ``sdpa``, or ``headscope``.

:mod:`headscope.models.run.routing` registers the last of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

IMPLEMENTATION = "headscope"  # The name of ours among the attention implementations


def own_implementation(model: Any) -> str:
    """Name the implementation that transformers runs by default: ``sdpa`` for most families."""
    return "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"


@contextmanager
def use_implementation(model: Any, name: str) -> Iterator[None]:
    """Run ``model`` with another attention implementation, then put the old one back."""
    before = model.config._attn_implementation
    if before == name == IMPLEMENTATION:  # already routed; setting it again is slow
        yield
        return
    _set(model, name)
    try:
        yield
    finally:
        _set(model, before)


def _set(model: Any, name: str) -> None:
    """Set the attention implementation, also where transformers only warns that it cannot."""
    with quiet_transformers():
        model.set_attn_implementation(name)
    if model._supports_sdpa and model.config._attn_implementation != name:
        model.config._attn_implementation = name  # Falcon's own forward reads it there


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' own log lines and progress bars off the user's terminal."""
    verbosity = transformers_logging.get_verbosity()
    if verbosity == transformers_logging.CRITICAL:  # setting it again would go through every logger
        yield
        return
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bar:
            transformers_logging.enable_progress_bar()
