"""Private parts of JAX that GradientFlow needs, used only here and tried with every version in `versions`."""

from __future__ import annotations

import sys
from contextlib import suppress
from inspect import signature
from threading import get_ident
from typing import Any

from gradientflow.recorder.entries import note_start

from .versions import installed_version, untried

try:
    from jax._src import core, dispatch, distributed, effects
    from jax.interpreters import mlir

    abstract_token: object = core.abstract_token
except (ImportError, AttributeError) as error:
    raise ImportError(untried(installed_version() or "") or "gradientflow.jax needs JAX: pip install jax") from error

_START: object = getattr(getattr(dispatch.runtime_tokens, "get_token_input", None), "__code__", None)
_starters: set[int] = set()  # threads that have started programs


def ordered_effect(name: str) -> effects.Effect:
    """Return a new effect: calls that have it are kept, and run in the order of the program.

    The order also holds from one program to the next, under JAX's control flow and transformations, and in
    `jax.shard_map`.
    """
    kind = type(name, (effects.Effect,), {"__str__": lambda self: name, "__hash__": _hash_at_start})
    for allowed in (
        effects.ordered_effects,
        effects.shardable_ordered_effects,
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    ):
        allowed.add_type(kind)
    effect: effects.Effect = kind()
    return effect


def _hash_at_start(effect: effects.Effect) -> int:
    """Return the hash of an effect, by which JAX looks for its token: a program starts then, at a line to be noted."""
    if sys._getframe(1).f_code is _START:
        with suppress(Exception):  # an unknown line is no reason for a program to fail
            _starters.add(get_ident())
            buffers: list[Any] = [token._buf for token in dispatch.runtime_tokens.current_tokens.values()]
            note_start(overlaps=len(_starters) > 1 or not all(each.is_ready() for each in buffers))
    return id(effect)


def place_of_process() -> tuple[int, int]:
    """Return this process's number and the number of processes. JAX's public functions would start its backends."""
    state = distributed.global_state
    return state.process_id, state.num_processes


def forget_failed_calls() -> None:
    """Let programs with ordered effects start again in this thread: a failed program leaves no token for the next."""
    dispatch.runtime_tokens.clear()


def devices_of(context: mlir.LoweringRuleContext) -> tuple[int, int]:
    """Return the number of devices of a lowered program, and the number of devices on which a call runs.

    The numbers differ inside `jax.shard_map` with a mesh over several processes: there each process makes the call for
    its own device.
    """
    axes: Any = context.module_context.axis_context
    if hasattr(axes, "num_devices"):  # jit
        return axes.num_devices, axes.num_devices
    if hasattr(axes, "manual_axes"):  # shard_map
        mesh = axes.mesh
        own = len(mesh.local_devices) if set(axes.manual_axes) == set(mesh.axis_names) else mesh.size
        return mesh.size, own
    replicas = axes.axis_env.nreps  # pmap
    return replicas, replicas


def lower_each_call(primitive: core.Primitive, rule: mlir.LoweringRule) -> None:
    """Register a primitive's lowering on CPUs, which is done for each call: by default JAX merges equal calls."""
    has_choice = "cacheable" in signature(mlir.register_lowering).parameters
    mlir.register_lowering(primitive, rule, platform="cpu", **({"cacheable": False} if has_choice else {}))


def things_of_program(context: mlir.LoweringRuleContext) -> list[object]:
    """Return the list of objects that live as long as the program being lowered, to append to."""
    return context.module_context.keepalives
