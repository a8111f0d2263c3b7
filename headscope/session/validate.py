"""The certificate before a measurement: no numbers of a model that our attention does not equal."""

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
    """Return the certificate of a model; raise ValidationFailedError where it fails.

    The certificate proves that our attention equals the model's. It is computed again only if the
    weights have changed since the last time. Without ``check`` it is skipped; a model in training
    mode is refused all the same.
    """
    training = training_reason(loaded)
    if training is not None:
        raise ValidationFailedError(f"{loaded.name} cannot be measured: {training}.")
    if not check:
        return ValidationSummary(passed=None)
    result = validate_model(loaded)
    if not result.passed:
        raise ValidationFailedError(
            f"{loaded.name} fails validation, so nothing is reported on it: "
            f"{result.refusal}. See 'headscope validate {loaded.name}'."
        )
    return ValidationSummary.of(result)


@contextmanager
def validating(loaded: LoadedModel, check: bool) -> Iterator[Future[ValidationSummary]]:
    """Run :func:`require_valid` in a thread while the block runs, which must not touch the model.

    The certificate, or the error, is in the future that is yielded. Where the block itself fails,
    the certificate's error comes first: it says why a model that is read wrongly could not be read.
    On a GPU, some of whose settings belong to one thread, it is computed before the block instead.
    """
    if loaded.device != "cpu":
        certificate = Future[ValidationSummary]()
        certificate.set_result(require_valid(loaded, check))
        yield certificate
        return
    with ThreadPoolExecutor(1) as thread:
        certificate = thread.submit(copy_context().run, require_valid, loaded, check)
        try:
            yield certificate
        except Exception:
            certificate.result()
            raise


@contextmanager
def certificate_first(loaded: LoadedModel, check: bool) -> Iterator[None]:
    """Run a block that reads the model before it is proven; where it fails, the certificate speaks.

    A model that is read wrongly may break in many places; why it is, only the certificate knows.
    """
    try:
        yield
    except Exception:
        require_valid(loaded, check)
        raise
