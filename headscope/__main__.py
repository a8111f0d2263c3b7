"""``python -m headscope``, and what the program ``headscope`` runs."""

from __future__ import annotations

import _thread
import sys
import threading
from typing import Any

#: Seconds until a lost interrupt is sent again: by then the cleaning-up that lost it is over.
_RESEND_AFTER = 0.02


def main() -> None:
    """Run the command line; Ctrl-C while it is still loading ends it as quietly as later."""
    sys.unraisablehook = _resend_interrupt
    try:
        from headscope.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _resend_interrupt(unraisable: Any) -> None:
    """Send Ctrl-C again if it came while a library cleaned up: Python drops what is raised there.

    All other errors of cleaning up are printed as usual.
    """
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(_RESEND_AFTER, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    main()
