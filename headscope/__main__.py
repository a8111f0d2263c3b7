"""``python -m headscope``, and what the program ``headscope`` runs."""

from __future__ import annotations

import _thread
import sys
import threading
from typing import Any

_AGAIN = 0.02  # Seconds until a lost interrupt is sent again: what lost it has returned by then.


def main() -> None:
    """Run the command line; Ctrl-C while it is still loading ends it as quietly as later."""
    sys.unraisablehook = _not_lost
    try:
        from headscope.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _not_lost(unraisable: Any) -> None:
    """Send an interrupt again that came while a library cleaned up, where Python drops it."""
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(_AGAIN, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    main()
