"""Calls in compiled programs: registered with XLA, and refused where they cannot work."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import cache

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from gradientflow._location import core
from gradientflow.errors import ArgumentError

from .communicators import wait_for_programs
from .private import devices_of, forget_failed_calls, things_of_program


def by_itself(primitive: Primitive, *parameters: str) -> Callable[..., object]:
    """Return a function that calls a primitive outside `jax.jit`: a program of one call, even in `jax.disable_jit`."""
    program = jax.jit(primitive.bind, static_argnames=parameters)

    def call(*operands: object, **values: object) -> object:
        with jax.disable_jit(False):
            return program(*operands, **values)

    return call


@cache
def register() -> None:
    """Register the handlers of the core with XLA."""
    for name, handler in core.jax.handlers().items():
        jax.ffi.register_ffi_target(name, handler, platform="cpu")
    atexit.register(_end)


def _end() -> None:
    """End calls before Python ends, and before communicators are closed at exit: XLA's threads need both."""
    wait_for_programs()  # other ranks may wait for their calls
    core.jax.end_calls()
    forget_failed_calls()


class Calls:
    """Calls of one kind in a program, which keeps this object.

    Parameters
    ----------
    kind : str
        The function that makes the calls.
    needs : object, optional
        Object that the calls need as long as the program lives.
    """

    def __init__(self, kind: str, needs: object = None) -> None:
        self.kind = kind
        self.needs = needs


def check_program(context: mlir.LoweringRuleContext, calls: Calls) -> None:
    """Add calls to a program that is being lowered.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the calls cannot work there.
    """
    devices, own = devices_of(context)
    if own > 1:
        raise ArgumentError(
            f"gradientflow.jax.{calls.kind} in a program for {devices} devices: each process makes a call once, and "
            "arrays that are sharded over devices would be summed wrongly; call it with arrays of one device, or in "
            "jax.shard_map over all axes of a mesh that has one device of each process"
        )
    others = [each for each in things_of_program(context) if isinstance(each, Calls)]
    if any(each.kind != calls.kind for each in others):
        raise ArgumentError(
            "gradientflow.jax.allreduce and average in one program: XLA may start a call of one while a call of the "
            "other waits, in another order on each rank; make two programs of it, or average only"
        )
    if any(each.needs is not calls.needs for each in others):
        raise ArgumentError(
            "two transformations of gradientflow.jax.average in one program, or one for gradients of different shapes: "
            "nothing orders their calls, and XLA may start them in another order on each rank; average all gradients "
            "by one call, before they are taken apart"
        )
    things_of_program(context).append(calls)


__all__ = ["Calls", "by_itself", "check_program", "register"]
