"""``gradientflow doctor``: a module for each kind of check, and the command that prints them."""

from .command import doctor

__all__ = ["doctor"]
