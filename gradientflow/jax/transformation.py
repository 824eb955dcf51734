"""Averaging of gradients as an Optax transformation: a JAX primitive without an effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple, NoReturn
from weakref import WeakValueDictionary

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gradientflow.annotations import TensorLike
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.strategies import Layout, Strategy, as_strategy, default_strategy

from .communicators import close_after_programs, communicator_of
from .exchange import check_strategy
from .exchanges import LayoutExchanges
from .private import lower_each_call
from .programs import Calls, by_itself, check_program, register
from .states import TOKEN, StateFormat

_DTYPES = ("float16", "bfloat16", "float32", "float64")

try:
    from optax import GradientTransformation
except ImportError:

    class GradientTransformation(NamedTuple):  # type: ignore[no-redef]
        """A transformation of gradients, as in Optax: a pair of functions."""

        init: Callable[[Any], object]
        update: Callable[..., tuple[Any, Any]]


class AverageState(NamedTuple):
    """The state of `average`: arrays of fixed shapes, so that every checkpoint of optimizer states includes it.

    Attributes
    ----------
    token : array
        Token from each call to the next: it counts the calls, and has the number of the state, which later states keep.
    arrays : tuple of arrays
        This rank's part of the strategy's state for each tensor, such as residuals.
    rest : array
        The rest of the strategy's state, as text.
    """

    token: TensorLike
    arrays: tuple[TensorLike, ...] = ()
    rest: TensorLike = ()


def average(strategy: Strategy | str | None = None, *, comm: Communicator | None = None) -> GradientTransformation:
    """Return a transformation that averages gradients over the ranks, also inside `jax.jit`. Collective.

    It comes first in `optax.chain`; the next transformations get the same gradients on all ranks. The strategy's state
    between steps, such as residuals, is in the state of the transformation, and so in every checkpoint of it. It
    differs between ranks: each rank saves and restores its own.

    States keep calls in order: each call needs the state that the previous call has returned. So a program has one such
    transformation, and passes its state on. The transformation may have several states, made by ``init`` in the same
    order on all ranks.

    Parameters
    ----------
    strategy : Strategy or str, optional
        A strategy that averages gradients in every step, or its text, such as ``"csc(density=0.1)"``; by default the
        strategy of the settings file, or dense communication. Residuals of csc do not decay unless csc is given a
        momentum.
    comm : Communicator, optional
        The ranks that take part; by default all of the job.

    Returns
    -------
    optax.GradientTransformation
        A named tuple of ``init`` and ``update``; Optax itself need not be installed. ``init`` gets arrays of the shapes
        and dtypes that gradients have. ``update`` fails when compiled or run with gradients of other shapes or dtypes.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the strategy writes weights; see docs/jax.md for an alternative.
    jax.errors.JaxRuntimeError
        If a call fails while the program runs; the message begins with the name of the exception in
        `gradientflow.errors`. With strategies that keep residuals, gradients that are not finite are a
        ``NonFiniteError`` on all ranks. With dense the means are then not finite on any rank, and
        `optax.apply_if_finite` around the next transformations skips the step.

    Notes
    -----
    The convention of gradient transformations: https://optax.readthedocs.io/en/latest/api/combining_optimizers.html.
    Strategies and their sources: docs/strategies.md. `optax.MultiSteps` works: it averages in each of its steps.

    Examples
    --------
    >>> optimizer = optax.chain(gradientflow.jax.average("csc(density=0.1)"), optax.sgd(0.1))
    >>> state = optimizer.init(weights)
    >>> @jax.jit
    ... def step(weights, state, batch):
    ...     gradients = jax.grad(loss)(weights, batch)
    ...     updates, state = optimizer.update(gradients, state, weights)
    ...     return optax.apply_updates(weights, updates), state
    """
    found = default_strategy() if strategy is None else as_strategy(strategy)
    check_strategy(found)
    if comm is not None:
        close_after_programs(comm)
    made: dict[Layout, LayoutExchanges] = {}
    place = next(_places)

    def exchanges_for(layout: Layout) -> LayoutExchanges:
        if layout not in made:
            made[layout] = LayoutExchanges(found, layout, lambda: communicator_of(comm), place)
        return made[layout]

    def init(params: object) -> AverageState:
        states = exchanges_for(_layout_of(params)).states
        arrays, rest = states.first
        as_jax = jax.numpy.array  # copies, which can be donated
        token = as_jax(states.next_token)
        # While init is traced there is no state yet: perhaps only one rank asks for the shapes.
        states.made += not isinstance(token, jax.core.Tracer)
        return AverageState(token, tuple(map(as_jax, arrays)), as_jax(rest) if len(rest) else ())

    def update(updates: object, state: AverageState, params: object = None) -> tuple[TensorLike, AverageState]:
        del params
        if not isinstance(state, AverageState):
            message = f"update of average gets the state of its init() or of its last update, not {state!r:.60}"
            raise ArgumentTypeError(message)
        if found.is_identity_on_one_rank and communicator_of(comm).size == 1:
            return updates, state
        exchanges = exchanges_for(_layout_of(updates))
        if not len(exchanges.layout):
            return updates, state
        leaves, tree = jax.tree.flatten(jax.tree.map(_as_array, updates))
        sent = [index for index, leaf in enumerate(leaves) if leaf.size]
        kept, kept_tree = jax.tree.flatten((state.arrays, state.rest))
        _check_state(exchanges.states, state.token, kept)
        register()
        _exchanges[exchanges.number] = exchanges
        token, *results = _primitive.bind(
            state.token,
            *(jax.numpy.asarray(leaves[index]) for index in sent),
            *kept,
            exchanges=exchanges.number,
            layout=exchanges.states.hash,
        )
        for index, mean in zip(sent, results, strict=False):
            leaves[index] = mean
        arrays, rest = jax.tree.unflatten(kept_tree, results[len(sent) :])
        return jax.tree.unflatten(tree, leaves), AverageState(token, arrays, rest)

    return GradientTransformation(init, update)


def _layout_of(tree: object) -> Layout:
    """Return the layout of the leaves that have elements."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    # Flax passes its variables to init, and their values to update.
    found = [(jax.tree_util.keystr(path).removesuffix(".value"), _as_array(leaf)) for path, leaf in leaves]
    there = [(name, leaf) for name, leaf in found if leaf.size]
    for name, leaf in there:
        if leaf.dtype.name not in _DTYPES:
            message = f"gradient {name} is {leaf.dtype.name}: what is averaged is one of {', '.join(_DTYPES)}"
            raise ArgumentTypeError(message)
    return Layout(
        tuple(name for name, _ in there),
        tuple(tuple(leaf.shape) for _, leaf in there),
        tuple(leaf.dtype.name for _, leaf in there),
    )


def _as_array(leaf: object) -> TensorLike:
    return leaf if hasattr(leaf, "size") else jax.numpy.asarray(leaf)  # weights may be Python numbers


def _check_state(states: StateFormat, token: object, kept: Sequence[object]) -> None:
    arrays, rest = states.first
    needed = [*arrays, rest] if len(rest) else arrays
    given = [_as_array(each) for each in (token, *kept)]
    if [(each.shape, each.dtype.name) for each in given] != [
        ((TOKEN,), "uint32"),
        *((each.shape, each.dtype.name) for each in needed),
    ]:
        raise ArgumentError(
            "the state of average is that of other gradients, or of another strategy: make a new one by init() with a "
            "tree of arrays like the gradients"
        )


# ---- the primitive ---------------------------------------------------------------------------------------------------

_places = count(1)
_exchanges: WeakValueDictionary[int, LayoutExchanges] = WeakValueDictionary()

_primitive = Primitive("gradientflow_average")
_primitive.multiple_results = True
_primitive.def_impl(by_itself(_primitive, "exchanges", "layout"))
_primitive.def_abstract_eval(lambda *operands, **_: operands)


def _lower(context: mlir.LoweringRuleContext, *operands: object, exchanges: int, layout: int) -> Sequence[TensorLike]:
    check_program(context, Calls("average", _exchanges[exchanges]))
    aliases = {index: index for index in range(len(operands))}
    rule = jax.ffi.ffi_lowering("gradientflow_average", operand_output_aliases=aliases)
    return rule(context, *operands, exchanges=np.int64(exchanges), layout=np.int64(layout))


def _refuse_vmap(arguments: object, dimensions: object, **parameters: object) -> NoReturn:
    message = "gradientflow.jax.average is not for jax.vmap: average outside of it gradients with one axis more"
    raise ArgumentError(message)


def _refuse_derivative(primals: object, tangents: object, **parameters: object) -> NoReturn:
    raise ArgumentError("gradientflow.jax.average has no derivative: differentiate through gradientflow.jax.allreduce")


lower_each_call(_primitive, _lower)
batching.primitive_batchers[_primitive] = _refuse_vmap
ad.primitive_jvps[_primitive] = _refuse_derivative


__all__ = ["AverageState", "average"]
