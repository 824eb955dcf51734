"""A training on whole numbers, and its straight-line replay in NumPy from who took part in which step."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from top_chunks_reference import StraightLine
from topk_reference import Reference

Vector = np.ndarray[Any, np.dtype[np.float32]]

SHAPES = [(32, 20), (112,), (16,)]
SIZES = [math.prod(shape) for shape in SHAPES]
STEPS = 30
UNIT = 12  # a multiple of all numbers of ranks, so that means are whole numbers
RATE = 0.5  # of a step; the momentum is 1


def gradient(step: int, rank: int, size: int) -> Vector:
    """Return what a rank contributes to a step: all of its gradients, one after the other."""
    numbers = np.random.default_rng([step, rank, size]).integers(-3, 4, sum(SIZES))
    return (UNIT * numbers).astype(np.float32)


def replay(
    sent: str, options: Mapping[str, Any], steps: Sequence[Sequence[Any]], rates: Sequence[float] = (RATE,) * STEPS
) -> tuple[Vector, dict[Any, Vector]]:
    """Return the weights in the end, and the residuals of those who took part in the last step.

    Parameters
    ----------
    sent : {"everything", "chunks", "entries"}
        Or the largest chunks of a pool, or entries of each tensor. Once ranks change, all chunks are sent again.
    options : mapping
        ``density`` and ``chunk_size``, or the ``ratio``.
    steps : sequence
        Who took part in each step, by their first ranks, or other names. Those that stay keep their order.
    rates : sequence of float
        The learning rate of each step.
    """
    members = list(steps[0])
    weights, velocity = np.zeros(sum(SIZES), np.float32), np.zeros(sum(SIZES), np.float32)
    chunks = StraightLine(sum(SIZES), options.get("chunk_size", sum(SIZES)), 1.0, len(members))
    entries = Reference(len(members), SIZES, [options.get("ratio", 1.0)] * len(SIZES))
    for step, those in enumerate(steps):
        if list(those) != members:
            kept = [members.index(each) for each in those if each in members]
            new = range(len(those) - len(kept))  # behind those that stay, with residuals of zero
            chunks.residuals = np.concatenate(
                [chunks.residuals[kept], *(np.zeros_like(chunks.residuals[:1]) for _ in new)]
            )
            chunks.important = [True] * len(chunks.important)
            zeros = Reference(1, SIZES, [1.0] * len(SIZES)).residuals[0]
            entries.residuals = [entries.residuals[number] for number in kept] + [copy.deepcopy(zeros) for _ in new]
            entries.ranks, members = len(those), list(those)
        gradients = np.array([gradient(step, rank, len(members)) for rank in range(len(members))])
        changed = np.ones(sum(SIZES), bool)
        if sent == "chunks":
            means = chunks.iterate(gradients, options["density"])
            changed[:] = False
            for chunk in chunks.sent:
                changed[chunks.edges[chunk] : chunks.edges[chunk + 1]] = True
        elif sent == "entries":
            layers = [np.split(own, np.cumsum(SIZES)[:-1]) for own in gradients]
            means = np.concatenate(entries.step(layers)).astype(np.float32)
        else:
            means = gradients.sum(axis=0) / np.float32(len(members))
        velocity[changed] += means[changed]
        weights[changed] -= np.float32(rates[step]) * velocity[changed]
    own = {"chunks": list(chunks.residuals), "entries": [np.concatenate(each) for each in entries.residuals]}
    return weights, dict(zip(members, own.get(sent, [np.zeros(0)] * len(members)), strict=True))


__all__ = ["RATE", "SHAPES", "SIZES", "STEPS", "gradient", "replay"]
