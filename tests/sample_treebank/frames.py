"""Types of the scenes of the sample grammar, and how they are written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """Verbs that go with a group of objects, and the modifiers which suit these objects."""

    verbs: tuple[str, ...]
    objects: tuple[str, ...]
    adjectives: tuple[str, ...]
    compounds: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    portable: bool = False


@dataclass(frozen=True)
class Scene:
    """A setting with its people, frames and places; a place is ``preposition noun``."""

    people: tuple[str, ...]
    places: tuple[str, ...]
    frames: tuple[Frame, ...]


def frame(
    verbs: str,
    objects: str,
    adjectives: str,
    compounds: str = "",
    tools: str = "",
    portable: bool = False,
) -> Frame:
    """Build a frame from words separated by blanks."""
    return Frame(
        tuple(verbs.split()),
        tuple(objects.split()),
        tuple(adjectives.split()),
        tuple(compounds.split()),
        tuple(tools.split()),
        portable,
    )


def scene(people: str, places: str, *frames: Frame) -> Scene:
    """Build a scene; places are separated by commas."""
    return Scene(tuple(people.split()), tuple(p.strip() for p in places.split(",")), frames)
