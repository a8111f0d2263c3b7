"""Copies of a loaded model: in another floating-point type, and with weights drawn at random."""

from __future__ import annotations

import copy
import dataclasses

import torch

from headscope.core.memory import give_back
from headscope.core.once import once
from headscope.models.run.devices import DTYPES
from headscope.models.run.loaded import FileWeights, LoadedModel, fingerprint, wrap
from headscope.models.run.routing import quiet_transformers
from headscope.models.surgery.compact import cut_like
from headscope.models.surgery.layers import restore, settings_before


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


def random_twin(loaded: LoadedModel, seed: int, *, instead: bool = False) -> LoadedModel:
    """Initialise the architecture of ``loaded`` afresh, as a control.

    What ``loaded`` has lost, the twin lacks too. The global random state is left as it was. A run
    that keeps its model keeps the first twin that was asked for too. With ``instead`` the weights
    of ``loaded`` are let go first, so that only one model is in memory.
    """
    whole = loaded.whole or loaded
    if instead:
        twin = _random_twin(whole, seed, instead=True)
    else:
        first, twin = once(loaded.network, "twin", lambda: (seed, _random_twin(whole, seed)))
        twin = twin if first == seed else _random_twin(whole, seed)
    twin = dataclasses.replace(twin, pooling=loaded.pooling)
    return twin if loaded.whole is None else twin.only(loaded.stacks[0])


def _random_twin(loaded: LoadedModel, seed: int, *, instead: bool = False) -> LoadedModel:
    parameter = next(loaded.model.parameters())
    device, dtype = parameter.device, parameter.dtype
    if instead:
        loaded.network.to("meta")
        give_back()
    # On the CPU, so that the twin is the same whatever device the model is on.
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.default_generator.manual_seed(seed)
        # The class itself, not what the configuration stands for: it may be a T5's encoder alone.
        config = copy.deepcopy(loaded.model.config)
        restore(config, settings_before(loaded.model))
        network = type(loaded.model)(config).float()
    network = network.to(device=device, dtype=dtype)
    cut_like(network, loaded)  # where parts have been removed
    twin = wrap(network, loaded.tokenizer, name=f"{loaded.name} with random weights")
    return dataclasses.replace(twin, revision=loaded.revision)
