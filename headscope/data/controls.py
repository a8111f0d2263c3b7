"""Controls: a text is also scored against the labels of another one of its size.

What a head scores there it would score without reading its own text.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class EarlierTexts(Generic[Item]):
    """The items of a corpus that came already; the control of the next one is among them.

    Of items A, B, C of one size, of which A and B are the same text: the controls are None, None
    and B.
    """

    def __init__(self) -> None:
        #: By size: the latest item, and the latest before it with another text, each behind its
        #: text: ``[(text, item), (other text, other item)]``
        self._latest: dict[Hashable, list[tuple[Hashable, Item]]] = {}

    def control_of(self, item: Item, size: Hashable, text: Hashable) -> Item | None:
        """Return the last item of this size that has another text, and remember this one.

        None where no such item came before.
        """
        latest = self._latest.get(size, [])
        with_other_text = [
            (other_text, other) for other_text, other in latest if other_text != text
        ]
        self._latest[size] = [(text, item), *with_other_text[:1]]
        if not with_other_text:
            return None
        _, control = with_other_text[0]
        return control
