"""How the certificate looks."""

from headscope.show.validate.tables import validation_csv, validation_report
from headscope.show.view import View

__all__ = ["VIEW"]

VIEW = View(
    human=validation_report,
    csv=validation_csv,
    files=lambda result: {"validate.csv": validation_csv(result).encode()},
)
