"""``gradientflow doctor``: a module for each kind of check, and the command that prints the results."""

from .command import doctor

__all__ = ["doctor"]
