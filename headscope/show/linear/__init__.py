"""How ``linear`` looks."""

from headscope.show.linear.view import VIEW

__all__ = ["VIEW"]
