"""How Python shows a result: ``repr`` in a line, ``print`` its answer, Jupyter its picture.

Every class of results is a subclass of :class:`Shown`; those of commands with heads have ``heads``,
those with a table ``to_frame``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Shown:
    """What every result of a command can do, as the base class of all."""

    provenance: dict[str, Any]
    command_name: ClassVar[str]  # ``classify``, for the class ``ClassifyResult``
    #: A result is no sequence. Without this, ``for x in result`` would call result[0], result[1]...
    __iter__: ClassVar[None] = None

    def __init_subclass__(cls) -> None:
        """Take the command's name from the class, unless it has another one."""
        if "command_name" not in vars(cls):
            cls.command_name = cls.__name__.removesuffix("Result").lower()

    def __repr__(self) -> str:
        """One line: the class, the model, and what a reader may ask it for."""
        model = self.provenance.get("model", {}).get("id", "a model")
        heads = getattr(self, "heads", ())
        first_head = f'["{heads[0].name}"], ' if heads else ""
        table = ".to_frame(), .plot(), " if hasattr(self, "to_frame") else ""
        return f"<{type(self).__name__} of {model}: print(), {first_head}{table}and its fields>"

    def __str__(self) -> str:
        """Return the answer in a sentence, as terminal and page begin."""
        from headscope.show.notebook import headline

        return headline(self)

    def __getitem__(self, name: Any) -> Any:
        """Return what was measured of one head: ``L2H8``, or ``cross:L0H3``; else KeyError."""
        rows = {head.name: head for head in getattr(self, "heads", ())}
        if name not in rows:
            known = f"its heads are {', '.join([*rows][:3])} ..." if rows else "it is of no heads"
            raise KeyError(f"this {type(self).__name__} has no {name!r}: {known}")
        return rows[name]

    def _repr_html_(self) -> str:
        """The key sentence and a small picture, as Jupyter shows it."""
        from headscope.show.notebook import html

        return html(self)

    def plot(self, name: str = "", ax: Axes | None = None) -> Figure | None:
        """Draw a figure of this result.

        Parameters
        ----------
        name : str, optional
            The name of its file in a result folder, without the ending. Default: the first one.
        ax : matplotlib Axes, optional
            Where to draw; figures of several panels take none.

        Returns
        -------
        matplotlib.figure.Figure or None
            The whole figure; None where the result has none.

        Raises
        ------
        InputError
            If there is no such figure, or it takes no ``ax``.
        """
        from headscope.show.notebook import figure_of

        figure: Figure | None = figure_of(self, name, ax)
        return figure
