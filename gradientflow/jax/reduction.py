"""Allreduce as a primitive of JAX, with an ordered effect: calls keep the order of the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gradientflow.annotations import TensorLike
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.wires import check_wire

from .communicators import communicator_of, number_of
from .private import abstract_token, forget_failed_calls, ordered_effect
from .programs import Calls, by_itself, check_program, register

OPS = ("sum", "mean", "max", "min", "prod")
_LINEAR = ("sum", "mean")  # linear over the ranks
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_DTYPES = (*_FLOATS, "int8", "uint8", "int32", "int64", "bool")
_HERE = os.path.dirname(os.path.abspath(__file__))


def allreduce(
    x: TensorLike,
    op: str = "sum",
    *,
    wire: str | None = None,
    comm: Communicator | None = None,
    label: str | None = None,
) -> TensorLike:
    """Reduce arrays over the ranks, also inside `jax.jit`; every rank gets the result. Collective.

    An ordered effect keeps the order of the calls in a program, and in programs that one thread starts in succession.
    It works under `jax.grad`, `jax.jvp`, `jax.vmap`, `jax.checkpoint`, `jax.lax.scan`, ``while_loop`` and ``cond``
    (with a condition that is equal on all ranks), and inside `jax.shard_map`. XLA's buffer is reduced in place, unless
    it is needed afterwards.

    Parameters
    ----------
    x : array or tree of arrays
        Arrays of the same shapes and dtypes on all ranks, on one device of the CPU backend.
    op : {"sum", "mean", "max", "min", "prod"}
        "mean" needs a floating dtype; for bool there are "max" and "min". "sum" and "mean" can be differentiated. The
        gradient is that of the sum of all ranks' losses, so cotangents are reduced like the values.
    wire : str, optional
        As in `gradientflow.Communicator.allreduce`, for cotangents too.
    comm : Communicator, optional
        The ranks that take part; by default all of the job. It must be open whenever the program runs.
    label : str, optional
        A name for `x`, which the ranks compare: by default the file and line of the call.

    Returns
    -------
    array or tree of arrays
        The results, in the form of `x`.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If an argument is out of range; or, when a program is compiled, if the call cannot work in it: for several
        devices of a process, for arrays sharded outside `jax.shard_map`, or together with `average`.
    gradientflow.errors.ArgumentTypeError
        If the reduction does not support the dtype.
    jax.errors.JaxRuntimeError
        If a call fails while the program runs; the message begins with the name of the exception in
        `gradientflow.errors`. See `forget_failed_calls`.

    Notes
    -----
    For the interface between JAX and compiled code, see https://docs.jax.dev/en/latest/ffi.html.

    Examples
    --------
    >>> @jax.jit
    ... def step(weights, batch):
    ...     gradients = jax.grad(loss)(weights, batch)
    ...     return weights - 0.1 * gradientflow.jax.allreduce(gradients, "mean")
    """
    if op not in OPS:
        raise ArgumentError(f"op is one of {', '.join(OPS)}, not {op!r}")
    check_wire(wire)
    found = communicator_of(comm)
    if found.closed:
        raise ArgumentError("the communicator is closed")
    name = label if label is not None else _place_of_call()
    leaves, tree = jax.tree_util.tree_flatten_with_path(x)
    names = [name] if len(leaves) == 1 else [name + jax.tree_util.keystr(path) for path, _ in leaves]
    return jax.tree.unflatten(
        tree, [_reduce(leaf, op, wire, found, each) for (_, leaf), each in zip(leaves, names, strict=True)]
    )


def _reduce(x: TensorLike, op: str, wire: str | None, comm: Communicator, label: str) -> TensorLike:
    x = jax.numpy.asarray(x)
    dtype = x.dtype.name
    known = _FLOATS if op == "mean" else _DTYPES
    if dtype not in known or (dtype == "bool" and op not in ("max", "min")):
        message = f"{op} of {dtype} is not served: the dtypes are {', '.join(known)}, and bool has max and min"
        raise ArgumentTypeError(message)
    if wire is not None and dtype != "float32":
        raise ArgumentTypeError(f"wire {wire!r} goes with float32, not with {dtype}")
    if x.size == 0 or (comm.size == 1 and op in _LINEAR):
        return x
    register()
    return _primitive.bind(x, op=op, wire=wire or "", comm=number_of(comm), label=label)


def _place_of_call() -> str:
    """Return the file and line of a call from outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


# ---- the primitive ---------------------------------------------------------------------------------------------------

_effect = ordered_effect("GradientFlowOrder")
_primitive = Primitive("gradientflow_allreduce")
_primitive.def_impl(by_itself(_primitive, "op", "wire", "comm", "label"))
_primitive.def_effectful_abstract_eval(lambda x, **_: (x, {_effect}))


def _lower(
    context: mlir.LoweringRuleContext, x: TensorLike, *, op: str, wire: str, comm: int, label: str
) -> list[TensorLike]:
    check_program(context, Calls("allreduce"))
    shapes = [abstract_token, context.avals_in[0]]
    rule = jax.ffi.ffi_lowering("gradientflow_allreduce", has_side_effect=True, operand_output_aliases={1: 1})
    token, reduced = rule(
        context.replace(avals_in=shapes, avals_out=shapes),
        context.tokens_in.get(_effect),
        x,
        op=op,
        wire=wire,
        comm=np.int64(comm),
        label=label,
    )
    context.set_tokens_out(mlir.TokenSet({_effect: token}))
    return [reduced]


def _differentiate(
    primals: Sequence[TensorLike], tangents: Sequence[TensorLike], **parameters: object
) -> tuple[TensorLike, TensorLike]:
    (x,), (tangent,) = primals, tangents
    result = _primitive.bind(x, **parameters)
    if isinstance(tangent, ad.Zero):
        return result, tangent
    if parameters["op"] not in _LINEAR:
        raise ArgumentError(f"gradientflow.jax.allreduce has derivatives for sum and mean, not for {parameters['op']}")
    return result, _primitive.bind(tangent, **_relabeled(parameters, "tangent"))


def _transpose(cotangent: object, x: TensorLike, **parameters: object) -> list[object]:
    if isinstance(cotangent, ad.Zero):
        return [cotangent]
    return [_primitive.bind(cotangent, **_relabeled(parameters, "transposed"))]


def _relabeled(parameters: dict[str, object], how: str) -> dict[str, object]:
    return {**parameters, "label": f"{parameters['label']} {how}"}


def _batch(
    arguments: Sequence[TensorLike], dimensions: Sequence[int | None], **parameters: object
) -> tuple[TensorLike, int | None]:
    return _primitive.bind(arguments[0], **parameters), dimensions[0]


mlir.register_lowering(_primitive, _lower, platform="cpu")
ad.primitive_jvps[_primitive] = _differentiate
ad.primitive_transposes[_primitive] = _transpose
batching.primitive_batchers[_primitive] = _batch


__all__ = ["allreduce", "forget_failed_calls"]
