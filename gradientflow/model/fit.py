"""Costs of a link, fitted to calls of several sizes on the live ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradientflow.communicator import Communicator
from gradientflow.machine_load import LoadMeter, interrupt_seconds, this_machine
from gradientflow.pools.gradient import GradientPool
from gradientflow.pools.sparse import SparseGradientPool

from .cluster import Cluster
from .costs import Call, Costs, Link
from .pooled import CHUNK_PASSES
from .timing import average_pool, median_seconds_of

SIZES = (256, 2048, 8192, 32_768, 131_072, 524_288, 2_097_152)  # elements of float32
_BURSTS = (0, *(1 << power for power in range(14, 23)))  # bytes
_CLEARLY = 0.8  # a burst with an error below this share of another's is clearly better
_REST = 5e-3  # seconds before each call, in which token buckets of the network fill up
_BUDGET, _QUICK_BUDGET = 2.0, 0.05  # seconds of all calls
_PASSED = 1 << 24  # elements over which a rank passes: more than caches can hold
_PASSED_ON, _PASSES_ON = 1 << 20, 5  # elements on a device, and number of passes over them
_BUSY_CALLS = 8  # calls of the largest size, during which processor time is measured

Floats = npt.NDArray[np.float64]


class Point(NamedTuple):
    """A measured call.

    Attributes
    ----------
    call : Call
        The call.
    seconds : float
        Median seconds of the call on the slowest rank.
    """

    call: Call
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """Measurements on the ranks of a job.

    Attributes
    ----------
    cluster : Cluster
        Cluster of the ranks.
    points : tuple of Point
        Calls of all ranks.
    inside : tuple of Point
        Calls of the ranks of one node alone; empty if each node has one rank.
    per_byte_of_pass : float
        Seconds for a byte of memory that a rank passes over.
    processor_per_byte, cores : float
        Same as in `Link`.
    remark : str
        A note if other programs kept the processors busy meanwhile; otherwise empty.
    """

    cluster: Cluster
    points: tuple[Point, ...]
    inside: tuple[Point, ...] = ()
    per_byte_of_pass: float = 0.0
    processor_per_byte: float = 0.0
    cores: float = 0.0
    remark: str = ""


@dataclass(frozen=True)
class Fit:
    """A link, and the measurement to which it was fitted.

    Attributes
    ----------
    link : Link
        The costs.
    measurement : Measurement
        The measurement.
    """

    link: Link
    measurement: Measurement

    @property
    def residuals(self) -> tuple[float, ...]:
        """The relative error of each point: the link's time over the measured time, less 1."""
        costs = Costs(self.measurement.cluster, self.link)
        return tuple(costs.seconds(point.call) / point.seconds - 1 for point in self.measurement.points)


def measure_link(
    comm: Communicator, sizes: Sequence[int] = SIZES, device: str | int = "cpu", *, quick: bool = False
) -> Fit:
    """Measure allreduces of gradient pools of several sizes, and fit a link to them. Collective.

    Parameters
    ----------
    comm : Communicator
        Communicator of the ranks that take part.
    sizes : sequence of int
        Sizes in elements of float32.
    device : str or int
        Device of the memory, as in `gradientflow.GradientPool`.
    quick : bool
        True to measure only calls in close succession, without the burst of an idle link, passes over memory, and
        processor time. Takes a tenth of a second if links are fast.
    """
    found = measure(comm, sizes, device, quick=quick)
    return Fit(fit_link([found]), found)


def measure(
    comm: Communicator, sizes: Sequence[int] = SIZES, device: str | int = "cpu", *, quick: bool = False
) -> Measurement:
    """Take the measurements that `fit_link` needs. Collective. Parameters as in `measure_link`."""
    meter = LoadMeter(comm)
    cluster = Cluster.of(comm)
    calls = [Call("allreduce", count) for count in sizes]
    cores = _shared_cores(comm) if len(cluster.nodes) > 1 and not quick else 0
    crowd = max(1.0, cluster.ranks / cores) if cores else 1.0
    per_pass = 0.0 if quick else (_measure_pass(comm) if device == "cpu" else _measure_pass_on(comm, device)) / crowd
    inside: list[float] = []
    if cluster.largest_node > 1 and len(cluster.nodes) > 1:
        part = comm.split(comm.node)
        assert part is not None
        with part:
            inside, _ = _measure_pools(part, sizes, device, quick)
        slowest = np.array(inside)
        comm.allreduce(slowest, "max")
        inside = [float(each) for each in slowest]
    seconds, busy = _measure_pools(comm, sizes, device, quick) if cluster.ranks > 1 else ([], 0.0)
    per_byte = 0.0
    if cores:
        per_byte = busy / max(1.0, float(Costs(cluster, Link()).schedule(calls[-1]).leaving.sum()))
    return Measurement(
        cluster,
        tuple(map(Point, calls, seconds)),
        tuple(map(Point, calls, inside)),
        per_pass,
        per_byte,
        float(cores),
        meter.remark(),
    )


def fit_link(measurements: Sequence[Measurement]) -> Link:
    """Return the link that fits calls on one or more clusters whose nodes and links are equal."""
    link = Link(
        latency=0.0,
        per_byte_of_pass=float(np.median([each.per_byte_of_pass for each in measurements])),
        processor_per_byte=float(np.median([each.processor_per_byte for each in measurements])),
        cores=max(each.cores for each in measurements),
    )
    inside = [(_node_of(each.cluster), point) for each in measurements for point in each.inside]
    alone = [each for each in measurements if len(each.cluster.nodes) == 1]
    inside += [(each.cluster, point) for each in alone for point in each.points]
    if inside:
        link = _fit_inside(link, inside)
    between = [(each.cluster, point) for each in measurements if each not in alone for point in each.points]
    return _fit_between(link, between) if between else link


def _node_of(cluster: Cluster) -> Cluster:
    """Return a cluster of the largest node alone."""
    return replace(cluster, nodes=(cluster.largest_node,))


def _fit_inside(link: Link, found: Sequence[tuple[Cluster, Point]]) -> Link:
    rows = [[1.0, float(Costs(cluster, link).schedule(point.call).inside)] for cluster, point in found]
    call, per_byte = fit_nonnegative(np.array(rows), np.array([point.seconds for _, point in found]))
    return replace(link, call_inside=float(call), per_byte_inside=float(per_byte))


def _fit_between(link: Link, found: Sequence[tuple[Cluster, Point]]) -> Link:
    """Fit the costs between nodes, once the costs inside nodes are known.

    The rate follows from the two largest sizes; then the remaining costs are fitted to all sizes. If all costs were
    fitted at once, errors in the cost of small calls would make the rate wrong.
    """
    rows, rest = [], []
    for cluster, (call, seconds) in found:
        schedule = Costs(cluster, link).schedule(call)
        rows.append([1.0, float(schedule.rounds), float(schedule.leaving.max())])
        inside = link.call_inside * (cluster.largest_node > 1) + schedule.inside * link.per_byte_inside
        rest.append(max(seconds - inside, 0.1 * seconds))
    table, seconds_left = np.array(rows), np.array(rest)
    slopes = []
    for cluster in dict.fromkeys(cluster for cluster, _ in found):
        own = [index for index, (other, _) in enumerate(found) if other == cluster]
        second, first = sorted(own, key=lambda index: float(table[index, 2]))[-2:]
        more = table[first, 2] - table[second, 2]
        slopes.append(max(0.0, (seconds_left[first] - seconds_left[second]) / more) if more else 0.0)
    per_byte = float(np.median(slopes))
    best: tuple[float, Floats, int] | None = None
    for burst in _BURSTS:
        bytes_seconds = np.maximum(table[:, 2] - burst, 0) * per_byte
        factors = fit_nonnegative(table[:, :2], seconds_left, 1 - bytes_seconds / seconds_left)
        error = float(np.sum(((table[:, :2] @ factors + bytes_seconds) / seconds_left - 1) ** 2))
        if best is None or error < _CLEARLY * best[0]:
            best = error, factors, burst
    assert best is not None
    call_seconds, latency = map(float, best[1])
    return replace(link, call=call_seconds, latency=latency, per_byte=per_byte, burst=float(best[2]))


def fit_nonnegative(rows: Floats, seconds: Floats, wanted: Floats | float = 1.0) -> Floats:
    """Return the factors of the columns, each 0 or more, with the least squares of relative errors.

    Parameters
    ----------
    rows : numpy.ndarray
        A matrix of the columns.
    seconds : numpy.ndarray
        Measured seconds, by row.
    wanted : numpy.ndarray or float
        The share of the seconds that the weighted columns add up to.
    """
    weighted = rows / seconds[:, None]
    wanted = np.ones(len(seconds)) * wanted
    columns = rows.shape[1]
    best, least = np.zeros(columns), np.inf
    for number in range(1, columns + 1):
        for chosen in combinations(range(columns), number):
            factors, *_ = np.linalg.lstsq(weighted[:, chosen], wanted, rcond=None)
            error = float(np.sum((weighted[:, chosen] @ factors - wanted) ** 2))
            if (factors >= 0).all() and error < least - 1e-12:
                least, best = error, np.zeros(columns)
                best[list(chosen)] = factors
    return best


def _measure_pools(
    comm: Communicator, sizes: Sequence[int], device: str | int, quick: bool
) -> tuple[list[float], float]:
    """Return the seconds of pools of these sizes, and processor seconds of one call of the largest. Collective."""
    pools = [GradientPool(comm, [count], fusion_threshold="inf", device=device) for count in sizes]
    try:
        calls = [partial(average_pool, pool) for pool in pools]
        if quick:
            return median_seconds_of(comm, calls, budget=_QUICK_BUDGET), 0.0
        seconds = median_seconds_of(comm, calls, rest=_REST, budget=_BUDGET)
        comm.barrier()
        interrupts, own = interrupt_seconds(), time.process_time()
        for _ in range(_BUSY_CALLS):
            average_pool(pools[-1])
        spent = np.array([interrupt_seconds() - interrupts, time.process_time() - own])
        all_spent = np.stack(comm.allgather(spent))
        busy = float(all_spent[0, 0] + all_spent[:, 1].sum()) / _BUSY_CALLS
    finally:
        for pool in pools:
            pool.close()
    return seconds, busy


def _measure_pass(comm: Communicator) -> float:
    """Return the seconds per byte that a rank reads or writes when it passes over more memory than its caches hold."""
    values, other = np.ones((2, _PASSED), np.float32)
    seconds = median_seconds_of(comm, [lambda: np.add(values, other, out=values)])[0]
    return seconds / (3 * values.nbytes)


def _measure_pass_on(comm: Communicator, device: str | int) -> float:
    """Return the seconds per byte for memory of a device, from kernels of a sparse pool that pass over it."""
    times = np.zeros(_PASSES_ON + 2)
    with SparseGradientPool(comm, [_PASSED_ON], device=device) as pool:
        for turn in range(len(times)):
            pool.ready()
            pool.wait()
            times[turn] = pool.bookkeeping_seconds
    comm.allreduce(times, "max")
    return float(np.median(times[2:])) / (CHUNK_PASSES * _PASSED_ON)


def _shared_cores(comm: Communicator) -> int:
    """Return the number of processors that all nodes share if they are emulated on one machine, else 0."""
    mine = np.frombuffer(this_machine().encode().ljust(64)[:64], np.uint8)
    if len({row.tobytes() for row in comm.allgather(mine)}) > 1:
        return 0
    allowed = np.zeros(os.sysconf("SC_NPROCESSORS_CONF"), np.uint8)
    allowed[list(os.sched_getaffinity(0))] = 1
    comm.allreduce(allowed, "max")
    return int(allowed.sum())


__all__ = ["SIZES", "Fit", "Measurement", "Point", "fit_link", "fit_nonnegative", "measure", "measure_link"]
