"""Check of auto's choice among strategies without loss: the first steps of auto beside steps of its candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console

from gradientflow.annotations import JsonObject
from gradientflow.communicator import Communicator
from gradientflow.model import Computation
from gradientflow.paced import times_of_steps
from gradientflow.strategies import Auto, Strategy
from gradientflow.tables import print_table
from gradientflow.training import ArrayLoop

from ..core.table import empty_table
from .hosts import Case, run_on_hosts

_STEPS = 60  # steps of auto, from its very first
_OTHERS = 6  # steps of each candidate in a turn
_TURNS = 2
_CASES = (Case(4, "200mbit"), Case(4), Case(4, "10gbit"))


def race(comm: Communicator, computation: Computation) -> JsonObject:
    """Measure `auto` from its first step on, between turns of each candidate. Collective."""
    random = np.random.default_rng(comm.rank)
    fresh = [random.standard_normal(shape, np.float32) for shape in computation.shapes]

    def times(strategy: Strategy, steps: int, before: int) -> tuple[list[float], Any]:
        weights = [np.zeros(shape, np.float32) for shape in computation.shapes]
        training = ArrayLoop(comm, weights, strategy)
        times_of_steps(comm, training, fresh, computation, before)
        found = times_of_steps(comm, training, fresh, computation, steps)
        synchronizer = training.synchronizer
        training.close()
        return found, synchronizer

    others: dict[str, list[float]] = {repr(each): [] for each in Auto().candidates(comm.nodes)}
    first: list[float] = []
    why = choice = ""
    for turn in range(_TURNS):
        for each in Auto().candidates(comm.nodes):
            others[repr(each)] += times(each, _OTHERS, 2)[0]
        if turn == _TURNS // 2 - 1:
            first, synchronizer = times(Auto(), _STEPS, 0)
            choice, why = repr(synchronizer.choice), synchronizer.why
    return {"auto": first, "others": others, "choice": choice, "why": why, "chosen_after": Auto().steps_to_choice}


def compare_lossless(models: Mapping[str, float], transport: str, console: Console) -> None:
    """Race in each case, and print by how much `auto` is slower than the best.

    Parameters
    ----------
    models : mapping of str to float
        Seconds of a step, by model.
    transport : str
        Transport of messages.
    console : Console
        Console to print on.
    """
    figures = ("dense ms", "best", "auto, once chosen", "over best", f"auto, {_STEPS} steps", "over best", "choosing")
    table = empty_table(("hosts", "model", "best", "auto's"), figures)
    reasons = []
    for case in _CASES:
        for model, seconds in models.items():
            found = run_on_hosts(case, transport, {"measure": "auto", "model": model, "step": seconds}, console)
            others = {name: float(np.median(times)) for name, times in found["others"].items()}
            best = min(others, key=others.__getitem__)
            times = np.array(found["auto"])
            later, mean = float(np.median(times[found["chosen_after"] :])), float(times.mean())
            longest = times[: found["chosen_after"]].max() - np.median(times)  # includes the measurement of the link
            over = [f"{each / others[best] - 1:+.1%}" for each in (later, mean)]
            table.add_row(
                *(str(case), model, _threshold(best), _threshold(found["choice"])),
                *(f"{each * 1e3:,.1f}" for each in (others["dense"], others[best], later)),
                *(over[0], f"{mean * 1e3:,.1f}", over[1], f"{longest * 1e3:,.0f}"),
            )
            medians = ", ".join(f"{_threshold(name)} {each * 1e3:,.1f}" for name, each in others.items())
            reasons.append(f"{case}, {model}: {found['why']}. Medians: {medians}")
    print_table(table, console)
    for reason in reasons:
        console.print(reason, soft_wrap=True)


def _threshold(dense: str) -> str:
    """Return the part of a candidate's text that distinguishes it."""
    return dense.removeprefix("dense(fusion_threshold=").strip("')")


__all__ = ["compare_lossless", "race"]
