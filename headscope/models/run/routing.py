"""Route every attention of a model through headscope's, and show its tensors to observers::

    router = Router(loaded.sites, observers)
    with routed(loaded.model, router):
        states = router.checked(loaded.forward, **inputs)  # or router.run, for observers alone

In the block of :func:`routed` transformers calls :func:`_attention` in place of its own; modules
that never ask transformers for an attention get another forward. Either way q, k and v reach
:meth:`Router.attend`, which finds the *site* (a layer of attention) that is called, runs our
attention there, and shows every chunk of it (some examples, some heads) to the observers as
:class:`~headscope.core.activations.Activations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from headscope.attention import CHUNK_ENTRIES, Mask, stream_attention, with_bias
from headscope.core.activations import Activations
from headscope.core.errors import UnsupportedModelError, ValidationFailedError
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.hooks import grouped, replaced_forwards
from headscope.models.run.implementation import IMPLEMENTATION, use_implementation
from headscope.models.run.products import MOST_PACKED, fast_products

#: Turns (site, q, k, v, mask, scale) into z (batch, n_heads, query_pos, d_head): our attention, or
#: anything that is put in its place.
Mechanism = Callable[[AttentionSite, Tensor, Tensor, Tensor, Mask, float | None], Tensor]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SiteObserver(Protocol):
    """Sees the queries, keys, values, patterns and z of attention sites, a chunk at a time."""

    def observe(self, chunk: Activations) -> None:
        """Measure one chunk of one site; keep no reference to its tensors."""

    def finish(self, stack: str, layer: int) -> None:
        """Note that all chunks of this site have been shown; by default nothing is left to do."""
        return


class LastSiteSeen(BaseException):
    """Raised inside a pass and caught around it, to skip the rest of the pass.

    No Exception, so that no ``except Exception`` of a model's own code catches it.
    """


class Router:
    """Counts and observes the calls that one model makes of our attention.

    Calls are expected at ``sites``, in order of execution. At the ``unmeasured_sites`` of other
    stacks our attention runs too, neither counted nor observed. A ``mechanism`` runs in place of
    our attention; observers, who otherwise see every chunk of every site, see nothing then. At most
    ``chunk_entries`` entries of patterns exist at a time.
    """

    def __init__(
        self,
        sites: Sequence[AttentionSite],
        observers: Sequence[SiteObserver] = (),
        *,
        unmeasured_sites: Sequence[AttentionSite] = (),
        mechanism: Mechanism | None = None,
        chunk_entries: int = CHUNK_ENTRIES,
    ) -> None:
        self.sites = tuple(sites)
        self.unmeasured_sites = tuple(unmeasured_sites)
        self.observers = observers
        self._mechanism = mechanism
        self._chunk_entries = chunk_entries
        # A module may serve several sites, one after the other (ALBERT).
        self._sites_of_module = grouped(sites, lambda site: site.module)
        self._softcaps_elsewhere = {site.module: site.softcap for site in unmeasured_sites}
        # Of the pass that runs, or that ran last:
        self.calls: Counter[tuple[str, int]] = Counter()  # By (stack, layer)
        self.masks_seen = 0  # Calls that came with a mask
        self._calls_of_module: Counter[nn.Module] = Counter()
        # Of the passes to come:
        self._stop_after: int | None = None  # The number of calls after which a pass ends
        self._skipped_sites: Collection[tuple[str, int]] = ()

    # --- one pass -------------------------------------------------------------------------------

    def checked(
        self,
        forward: Callable[Arguments, Result],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Run one whole forward pass, check that it called every site once, return its result."""
        self.begin()
        result = forward(*args, **options)
        self.check_calls()
        return result

    def run(self, forward: Callable[[], object]) -> None:
        """Run one forward pass for its observers alone, and check that it called every site once.

        The pass ends when the last site has been observed: what follows it in the last layer (an
        eighth of all multiplications in a BERT of six layers) cannot change a measurement.
        """
        self.begin()
        self._stop_after = len(self.sites)
        try:
            with suppress(LastSiteSeen):
                forward()
        finally:
            self._stop_after = None
        self.check_calls()

    def begin(self) -> None:
        """Forget the calls of the pass before; every forward pass starts with this."""
        self.calls.clear()
        self._calls_of_module.clear()
        self.masks_seen = 0
        self.skip(self._skipped_sites)

    def skip(self, sites: Collection[tuple[str, int]]) -> None:
        """Count sites, as (stack, layer), as called: their layers are played back, not run."""
        for site in self.sites:
            if (site.stack, site.layer) in sites:
                self.calls[site.stack, site.layer] += 1
                self._calls_of_module[site.module] += 1

    @contextmanager
    def skipping(self, sites: Collection[tuple[str, int]]) -> Iterator[None]:
        """Skip some sites in every pass of the block."""
        self._skipped_sites = sites
        try:
            yield
        finally:
            self._skipped_sites = ()

    def check_calls(self) -> None:
        """Raise unless the pass called our attention exactly once per site."""
        for site in self.sites:
            calls = self.calls[site.stack, site.layer]
            if calls != 1:
                raise ValidationFailedError(
                    f"Our attention ran {calls} times instead of once in {site.stack} layer "
                    f"{site.layer}; the model bypasses it, so nothing can be measured."
                )

    # --- one call -------------------------------------------------------------------------------

    def attend(
        self,
        module: nn.Module,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        scale: float | None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Run one site's attention; returns z (batch, n_heads, query_pos, d_head).

        ``bias`` (1 or batch, n_heads, query_pos, key_pos) is added to the scaled scores. Keys and
        values that several heads share are given to each of them.
        """
        came_with_mask = mask is not None
        mask = with_bias(mask, bias)
        n_heads = q.shape[1]
        n_kv_heads = k.shape[1]
        if 0 < n_kv_heads < n_heads:
            group_size = n_heads // n_kv_heads
            k = k.repeat_interleave(group_size, dim=1)
            v = v.repeat_interleave(group_size, dim=1)
        if module in self._softcaps_elsewhere:
            softcap = self._softcaps_elsewhere[module]
            return stream_attention(q, k, v, mask=mask, scale=scale, softcap=softcap)
        site = self._next_site(module)
        self.calls[site.stack, site.layer] += 1
        if came_with_mask:
            self.masks_seen += 1
        mechanism = self._mechanism or self._observed_attention
        z = mechanism(site, q, k, v, mask, scale)
        if self.calls.total() == self._stop_after:
            raise LastSiteSeen
        return z

    def check_softcap(self, module: nn.Module, softcap: float | None) -> None:
        """Refuse a soft cap of the scores that the module's layout does not tell of."""
        site = next(iter(self._sites_of_module.get(module, ())), None)
        known = self._softcaps_elsewhere.get(module) if site is None else site.softcap
        if softcap is not None and softcap != known:
            raise UnsupportedModelError(
                f"{type(module).__name__} asks for a softcap of {softcap} of its scores, where "
                f"headscope reads {known} from the module."
            )

    def _next_site(self, module: nn.Module) -> AttentionSite:
        """Return the site that this call of a module is, and count the call.

        A module that serves several layers is the first of them in its first call, and so on. A
        call too many counts for its last site, of which :meth:`check_calls` then complains.
        """
        sites = self._sites_of_module.get(module)
        if sites is None:
            raise UnsupportedModelError(
                f"{type(module).__name__} calls a custom attention, but headscope does not know "
                "where it keeps its weights."
            )
        earlier_calls = self._calls_of_module[module]
        self._calls_of_module[module] += 1
        return sites[min(earlier_calls, len(sites) - 1)]

    def _observed_attention(
        self, site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        """Run our attention and show it to the observers, chunk by chunk."""

        def show(examples: slice, heads: slice, pattern: Tensor, z: Tensor) -> None:
            chunk = Activations(
                stack=site.stack,
                layer=site.layer,
                row=site.row,
                examples=examples,
                heads=heads,
                n_heads=q.shape[1],
                q=q[examples, heads],
                k=k[examples, heads],
                v=v[examples, heads],
                pattern=pattern,
                z=z,
            )
            for observer in self.observers:
                observer.observe(chunk)

        z = stream_attention(
            q,
            k,
            v,
            mask=mask,
            scale=scale,
            softcap=site.softcap,
            visit=show if self.observers else None,
            chunk_entries=self._chunk_entries,
        )
        for observer in self.observers:
            observer.finish(site.stack, site.layer)
        return z


# --- what transformers calls ----------------------------------------------------------------------

#: The router of the innermost block of :func:`routed`; every thread has its own.
_active: ContextVar[Router | None] = ContextVar("headscope_router", default=None)
#: Keyword arguments by which some families change their scores, or keys and values, inside
#: attention; a model that passes one of them is refused.
_SCORE_CHANGING = ("s_aux", "sinks", "cache")


def current_router() -> Router:
    """Return the router of the innermost block of :func:`routed` that this thread runs in."""
    router = _active.get()
    if router is None:
        raise UnsupportedModelError(
            "The attention implementation 'headscope' runs only while headscope runs the model."
        )
    return router


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Run our attention for a module that asks transformers for one.

    ``query``, ``key`` and ``value`` are (batch, n_heads, pos, d_head). Returns z as transformers
    has it, (batch, pos, n_heads, d_head), and None in place of the pattern.
    """
    router = current_router()
    unknown = [name for name in _SCORE_CHANGING if kwargs.get(name) is not None]
    if unknown or dropout > 0:
        addition = ", ".join(unknown) or "dropout"
        raise UnsupportedModelError(
            f"{type(module).__name__} adds {addition} to its attention, which headscope does not "
            "cover."
        )
    router.check_softcap(module, kwargs.get("softcap"))
    bias = kwargs.get("position_bias")
    z = router.attend(module, query, key, value, attention_mask, scaling, bias)
    return z.transpose(1, 2).contiguous(), None


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Make transformers write causal masks out: our attention has no is_causal shortcut."""
    kwargs["allow_is_causal_skip"] = False
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    if mask is None:
        return None
    # A padded query may lie beyond the window of every token. Its output is never used, so it may
    # see every key.
    sees_a_key = mask.any(dim=-1, keepdim=True)
    return mask if bool(sees_a_key.all()) else mask | ~sees_a_key


# Without a mask function of the same name, transformers would drop the mask silently.
AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, _mask)


# --- the block in which a model runs through ours -------------------------------------------------


@contextmanager
def routed(
    model: Any, router: Router, *, gradients: bool = False, most_packed: int = MOST_PACKED
) -> Iterator[Router]:
    """Route every attention of ``model`` through ours while the block runs.

    ``most_packed``: how many bytes of weights may be held twice, for speed (:mod:`products`).
    """
    # Modules that never ask transformers for an attention get another forward.
    forwards = {
        site.module: partial(_exchanged_forward, router, site)
        for site in (*router.sites, *router.unmeasured_sites)
        if site.layout.bypasses
    }
    token = _active.set(router)
    try:
        with (
            use_implementation(model, IMPLEMENTATION),
            replaced_forwards(forwards),
            torch.set_grad_enabled(gradients),
            fast_products(model, most_packed=most_packed),
        ):
            yield router
    finally:
        _active.reset(token)


def _exchanged_forward(router: Router, site: AttentionSite, *args: Any, **kwargs: Any) -> Any:
    """Do what the module of a site does, with our attention in it."""
    return site.layout.run(site, partial(router.attend, site.module), args, kwargs)


@contextmanager
def prepared(model: Any) -> Iterator[None]:
    """Prepare a model once for many short blocks of :func:`routed`, which else do so each time."""
    with use_implementation(model, IMPLEMENTATION), fast_products(model):
        yield
