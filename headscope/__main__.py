"""``python -m headscope``."""

from headscope.cli.app import main

main()
