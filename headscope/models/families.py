"""Families of models that cannot be covered, and why."""

from __future__ import annotations

from headscope.errors import UnsupportedModelError

_NO_ATTENTION = "it mixes tokens without attention, so it has no heads"
_SPARSE = "its attention is sparse and never forms a softmax over all pairs of tokens"
_APPROXIMATE = "its attention is an approximation that never forms a softmax over pairs of tokens"
_POOLED = "its layers shorten the sequence, so that a pattern is no longer one of tokens"
_STREAMS = "its attention has a second stream of queries, which a pattern per head cannot show"
_OTHER_INPUT = (
    "it reads more than text (entities, layout, tables or images), which headscope cannot feed"
)
_QUANTISED = "its attention computes with simulated integers, which no exact re-run can equal"

#: By ``model_type`` of transformers.
REFUSED = {
    "fnet": _NO_ATTENTION,
    "longformer": _SPARSE,
    "led": _SPARSE,
    "big_bird": _SPARSE,
    "bigbird_pegasus": _SPARSE,
    "longt5": _SPARSE,
    "pegasus_x": _SPARSE,
    "reformer": _SPARSE,
    "nystromformer": _APPROXIMATE,
    "yoso": _APPROXIMATE,
    "mra": _APPROXIMATE,
    "funnel": _POOLED,
    "canine": _POOLED,
    "xlnet": _STREAMS,
    "prophetnet": _STREAMS,
    "luke": _OTHER_INPUT,
    "lilt": _OTHER_INPUT,
    "tapas": _OTHER_INPUT,
    "bros": _OTHER_INPUT,
    "layoutlmv2": _OTHER_INPUT,
    "layoutlmv3": _OTHER_INPUT,
    "lxmert": _OTHER_INPUT,
    "ibert": _QUANTISED,
}


def refuse(family: str, name: str) -> None:
    """Refuse a model of a family that cannot be covered.

    Parameters
    ----------
    family : str
        Its ``model_type``.
    name : str
        What the user calls the model.

    Raises
    ------
    UnsupportedModelError
        With the reason.
    """
    if family in REFUSED:
        raise UnsupportedModelError(
            f"{name} is a {family} model, which headscope does not cover: {REFUSED[family]}."
        )
