"""``python -m headscope``, and what the program ``headscope`` runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still loading ends it as quietly as later."""
    try:
        from headscope.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
