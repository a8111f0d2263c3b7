"""The same weights in another floating-point type, without reading the checkpoint again."""

from __future__ import annotations

import copy
import dataclasses

from headscope.models.fingerprint import FileWeights, fingerprint
from headscope.models.loaded import LoadedModel
from headscope.models.loading import DTYPES, wrap


def cast(loaded: LoadedModel, dtype: str) -> LoadedModel:
    """Return a copy that computes in ``dtype``; the model itself where it does so already.

    It has to be validated anew: the certificate is of one type.
    """
    if loaded.dtype == dtype:
        return loaded
    sha256 = loaded.weights_sha256
    network = copy.deepcopy(loaded.network).to(DTYPES[dtype])
    copied = dataclasses.replace(
        wrap(network, loaded.tokenizer, name=loaded.name),
        revision=loaded.revision,
        file=None if sha256 is None else FileWeights(sha256, fingerprint(network)),
        origin=loaded.origin,
        stored_dtype=loaded.stored_dtype,
        pooling=loaded.pooling,
    )
    return copied if loaded.whole is None else copied.only(loaded.stacks[0])
