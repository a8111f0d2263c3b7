"""How several models' reports look side by side."""

from headscope.show.compare.gather import gather

__all__ = ["gather"]
