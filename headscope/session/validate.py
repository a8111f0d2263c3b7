"""The certificate before a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context

from headscope.core.errors import ValidationFailedError
from headscope.models.certificate.certificate import training_reason, validate_model
from headscope.models.certificate.validation import ValidationSummary
from headscope.models.run.loaded import LoadedModel


def require_valid(loaded: LoadedModel, check: bool) -> ValidationSummary:
    """Validate before a measurement; again only when the weights have changed since."""
    if (training := training_reason(loaded)) is not None:
        raise ValidationFailedError(f"{loaded.name} cannot be measured: {training}.")
    if not check:
        return ValidationSummary(passed=None)
    result = validate_model(loaded)
    if not result.passed:
        raise ValidationFailedError(
            f"{loaded.name} fails validation, so nothing is reported on it: "
            f"{'; '.join(result.reasons[:3])}. See 'headscope validate {loaded.name}'."
        )
    return ValidationSummary.of(result)


@contextmanager
def validating(loaded: LoadedModel, check: bool) -> Iterator[Future[ValidationSummary]]:
    """Do what :func:`require_valid` does while the block, which leaves the model alone, runs.

    The result or the error is available after the block. On a GPU, whose settings may belong to one
    thread, validation runs before the block instead.
    """
    if loaded.device != "cpu":
        done = Future[ValidationSummary]()
        done.set_result(require_valid(loaded, check))
        yield done
        return
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(copy_context().run, require_valid, loaded, check)
