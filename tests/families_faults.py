"""Readings of a model that are wrong by one percent in one layer; the model stays as it is."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from headscope.attention import default_scale
from headscope.models.layouts.layout import AttentionSite, Layout
from headscope.models.layouts.maps import Heads

ONE_PERCENT = 1.01


def wrong_scale(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    right = AttentionSite.scale.fget  # type: ignore[attr-defined]

    def scale(site: AttentionSite) -> float | None:
        value = right(site)
        if site.layer != layer:
            return value
        return ONE_PERCENT * (default_scale(site.d_head) if value is None else value)

    monkeypatch.setattr(AttentionSite, "scale", property(scale))


def wrong_rotation(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    right = AttentionSite.as_scored

    def as_scored(site: AttentionSite, heads: Heads, inputs: Any) -> Heads:
        angles = inputs.arguments.get("position_embeddings")
        if site.layer == layer and angles is not None:
            cos, sin = angles
            angle = ONE_PERCENT * torch.atan2(sin, cos)
            wrong = (angle.cos(), angle.sin())
            inputs = replace(inputs, arguments={**inputs.arguments, "position_embeddings": wrong})
        return right(site, heads, inputs)

    monkeypatch.setattr(AttentionSite, "as_scored", as_scored)


def wrong_norm(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    """Let queries be one percent too long, as a wrong norm or gain makes them."""
    right = AttentionSite.as_scored

    def as_scored(site: AttentionSite, heads: Heads, inputs: Any) -> Heads:
        q, k, v = right(site, heads, inputs)
        return Heads(ONE_PERCENT * q if site.layer == layer else q, k, v)

    monkeypatch.setattr(AttentionSite, "as_scored", as_scored)


def wrong_window(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    """Let the keys beyond 30 positions be out of sight, in all layers."""
    monkeypatch.setattr(Layout, "window", lambda layout, module: 30)


READINGS = {
    "scale": wrong_scale,
    "rotation": wrong_rotation,
    "norm": wrong_norm,
    "window": wrong_window,
}
