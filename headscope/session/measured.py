"""What the result of every command that runs a model carries, and how a notebook shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.models.certificate.validation import ValidationSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Shown:
    """How Python and notebooks show a result."""

    provenance: dict[str, Any]

    def __repr__(self) -> str:
        """One line: the class, the model, and what a reader may ask it for."""
        model = self.provenance["model"]["id"]
        return f"<{type(self).__name__} of {model}: .to_frame(), .plot(), and its fields>"

    def _repr_html_(self) -> str:
        """The key sentence and a small picture, as Jupyter shows it."""
        from headscope.show.notebook import html

        return html(self._command, self)

    def plot(self, name: str = "") -> Figure | None:
        """Draw a figure of this result.

        Parameters
        ----------
        name : str, optional
            The name of its file in a result folder, without the ending. Default: the first one.

        Returns
        -------
        matplotlib.figure.Figure or None
            None where the result has no figure.
        """
        from headscope.show.notebook import figure_of

        figure: Figure | None = figure_of(self._command, self, name)
        return figure

    @property
    def _command(self) -> str:
        return type(self).__name__.removesuffix("Result").lower()


@dataclass(frozen=True, repr=False)
class Measured(Shown):
    """Where a result comes from, and whether it is about the model's own attention."""

    #: Version of the JSON's fields, :data:`headscope.core.serialise.SCHEMA` when it was written.
    schema: int
    #: Versions, model, weights' SHA-256, data, what the tokenizer knows of them, warnings, seed,
    #: dtype, device, command.
    provenance: dict[str, Any]
    validation: ValidationSummary  # The certificate of the run
