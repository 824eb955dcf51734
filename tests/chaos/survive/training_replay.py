"""A training with one step of all ranks after another, in straight-line NumPy: from who took part in which step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .task import FLOATS, SHAPES, SIZES, Vector
from .top_chunks_reference import StraightLine
from .topk_reference import Reference

Contributions = Callable[[int, Sequence[Any]], Vector]  # what each of those contributes to a step: a row


def replay(
    sent: str,
    options: Mapping[str, Any],
    steps: Sequence[Sequence[Any]],
    rates: Sequence[float],
    contributions: Contributions,
    momentum: float = 1.0,
    dtypes: Sequence[str] = FLOATS,
    changes: Collection[int] = (),
) -> tuple[Vector, dict[Any, Vector]]:
    """Return the weights in the end, and the residuals of those who took part in the last step.

    Parameters
    ----------
    sent : {"everything", "chunks", "entries", "products"}
        Or the largest chunks of a pool, or entries of each tensor, or products of thin matrices. Once ranks change, all
        chunks are sent again.
    options : mapping
        ``density`` and ``chunk_size``, or the ``ratio``, or the ``rank`` of products and their ``warmup``.
    steps : sequence
        Who took part in each step, by names. Those that stay keep their order.
    rates : sequence of float
        The learning rate of each step.
    contributions : callable
        Takes a step and who takes part in it.
    momentum : float
        Of the steps.
    dtypes : sequence of str
        Of the tensors: chunks are cut and chosen for each by itself.
    changes : collection of int
        The steps before which ranks have changed, though they may be the same as before.
    """
    members = list(steps[0])
    weights, velocity = np.zeros(sum(SIZES), np.float32), np.zeros(sum(SIZES), np.float32)
    chunks = [
        (places, StraightLine(len(places), options.get("chunk_size", len(places)), 1.0, len(members)))
        for places in places_of(dtypes)
    ]
    entries = Reference(len(members), SIZES, [options.get("ratio", 1.0)] * len(SIZES))
    products = Products(len(members), options.get("rank", 1), options.get("warmup", 0))
    for step, those in enumerate(steps):
        if list(those) != members or step in changes:
            kept = [members.index(each) for each in those if each in members]
            new = range(len(those) - len(kept))  # behind those that stay, with residuals of zero
            for _, those_of_dtype in chunks:
                before = those_of_dtype.residuals
                those_of_dtype.residuals = np.concatenate([before[kept], *(np.zeros_like(before[:1]) for _ in new)])
                those_of_dtype.important = [True] * len(those_of_dtype.important)
            zeros = Reference(1, SIZES, [1.0] * len(SIZES)).residuals[0]
            entries.residuals = [entries.residuals[number] for number in kept] + [copy.deepcopy(zeros) for _ in new]
            entries.ranks, members = len(those), list(those)
            products.residuals = [products.residuals[number] for number in kept] + [np.zeros(SHAPES[0]) for _ in new]
        gradients = contributions(step, members)
        changed = np.ones(sum(SIZES), bool)
        if sent == "chunks":
            means = np.zeros(sum(SIZES), np.float32)
            changed[:] = False
            for places, those_of_dtype in chunks:
                means[places] = those_of_dtype.iterate(gradients[:, places], options["density"])
                for chunk in those_of_dtype.sent:
                    changed[places[those_of_dtype.edges[chunk] : those_of_dtype.edges[chunk + 1]]] = True
        elif sent == "entries":
            layers = [np.split(own, np.cumsum(SIZES)[:-1]) for own in gradients]
            means = np.concatenate(entries.step(layers)).astype(np.float32)
        elif sent == "products":
            means = products.step(gradients)
        else:
            means = gradients.sum(axis=0) / np.float32(len(members))
        rate = np.float32(rates[step])
        is_inside = sent == "chunks"  # of the momentum
        velocity[changed] = np.float32(momentum) * velocity[changed] + means[changed] * (rate if is_inside else 1)
        weights[changed] -= velocity[changed] * (1 if is_inside else rate)
    of_chunks = np.zeros((len(members), sum(SIZES)), np.float32)
    for places, those_of_dtype in chunks:
        of_chunks[:, places] = those_of_dtype.residuals
    own = {
        "chunks": list(of_chunks),
        "entries": [np.concatenate(each) for each in entries.residuals],
        "products": [each.ravel() for each in products.residuals],
    }
    return weights, dict(zip(members, own.get(sent, [np.zeros(0)] * len(members)), strict=True))


def places_of(dtypes: Sequence[str]) -> list[Any]:
    """Return which entries of all tensors are of each dtype."""
    of_each = np.repeat(dtypes, SIZES)
    return [np.flatnonzero(of_each == dtype) for dtype in dict.fromkeys(dtypes)]


class Products:
    """PowerSGD in a straight line: the first tensor is a matrix, the others travel as they are.

    Attributes
    ----------
    residuals : list of arrays
        Of each rank.
    """

    def __init__(self, ranks: int, rank: int, warmup: int) -> None:
        random = np.random.default_rng([0, *b"0"])
        self.residuals: list[Any] = [np.zeros(SHAPES[0]) for _ in range(ranks)]
        self._basis: Any = random.standard_normal((SHAPES[0][1], rank)).astype(np.float32)
        self._left_out = warmup

    def step(self, gradients: Vector) -> Vector:
        """Return the means for the gradients of all ranks."""
        means = gradients.sum(axis=0, dtype=np.float32) / np.float32(len(gradients))
        self._left_out -= 1
        if self._left_out < 0:
            whole = [
                residual + own[: SIZES[0]].reshape(SHAPES[0])
                for residual, own in zip(self.residuals, gradients, strict=True)
            ]
            left = np.linalg.qr(np.mean([each @ self._basis for each in whole], axis=0))[0]
            self._basis = np.mean([each.T @ left for each in whole], axis=0)
            product = left @ self._basis.T
            self.residuals = [each - product for each in whole]
            means[: SIZES[0]] = product.ravel()
        found: Vector = means
        return found


__all__ = ["places_of", "replay"]
