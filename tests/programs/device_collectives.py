"""Every collective, dtype, op and algorithm on tensors of CUDA devices: the grid of collectives.py elsewhere."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
from collectives import (
    BY_MESSAGES,
    GUARD,
    GUARD_BYTES,
    NODE_SIZES,
    SMALL_ELEMENTS,
    Case,
    Data,
    Grid,
    both,
    check,
    draw,
    kinds_dtypes_and_ops,
    sizes_for,
)
from support import RANK, SIZE, STORAGE, Array, run, say

import gradientflow as gf
from gradientflow import _core
from gradientflow.device import DeviceArray, empty

DEVICE = RANK % max(_core.device.count(), 1)

# What takes tensors through the host inside a node: nobody maps the others' memory, and there is no NCCL.
SMALL_PIECES: dict[str, Any] = {"host_piece_bytes": 4096, "device_slot_bytes": 4096}

# Which communicators, and which algorithms on them.
MODES: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "peers": [({}, ["auto", "shared"]), (SMALL_PIECES, ["auto", "shared"])],
    "host": [({"node_size": size, **SMALL_PIECES}, BY_MESSAGES) for size in NODE_SIZES],
    "nccl": [({}, ["nccl"]), ({"peer_bytes": 0}, ["auto", "nccl"]), ({"node_size": 2}, ["auto", "nccl"])],
}


class DeviceRoom:
    """Memory of the device for the tensors of one role, with guards around each."""

    def __init__(self, comm: gf.Communicator, bytes_: int) -> None:
        whole = bytes_ + 4 * GUARD_BYTES
        self._stretches = {
            "own": empty(whole, "uint8", DEVICE),
            "shared": comm.empty(whole, "uint8", device=DEVICE),
        }

    def put(self, place: str, values: Array, dtype: str) -> tuple[DeviceArray, DeviceArray]:
        """Return a tensor with these values, and the bytes it lies in."""
        stretch = self._stretches["shared" if place.startswith(("pool", "mixed")) else "own"]
        offset = GUARD_BYTES + (STORAGE[dtype].itemsize * (1 + RANK) if place.endswith("odd") else 0)
        around = DeviceArray(stretch._owner, 0, (offset + values.nbytes + GUARD_BYTES,), "uint8", DEVICE)
        image = np.full(around.nbytes, GUARD, np.uint8)
        image[offset : offset + values.nbytes] = values.view(np.uint8)
        around.set(image)
        return DeviceArray(stretch._owner, offset, values.shape, dtype, DEVICE), around


def take(tensor: DeviceArray, around: DeviceArray | None = None) -> Array:
    """Return what is stored in a tensor, after a look at its guards."""
    if around is not None:
        image = around.get()
        begin = tensor._address - around._address
        assert (image[:begin] == GUARD).all(), "the memory before a tensor of the device was changed"
        assert (image[begin + tensor.nbytes :] == GUARD).all(), "the memory after a tensor of the device was changed"
    raw = np.empty(tensor.nbytes, np.uint8)
    _core.device.read(DEVICE, tensor._address, raw, tensor.nbytes, 1)
    return raw.view(STORAGE[tensor.dtype]).reshape(tensor.shape)


class DeviceGrid(Grid):
    """The same cases: tensors are copied to the device before the call, and back after it."""

    def __init__(self, comm: gf.Communicator, data: dict[bool, Data], elements: int) -> None:
        super().__init__(comm, data, elements)
        self.device_input = DeviceRoom(comm, elements * 8)
        self.device_output = DeviceRoom(comm, elements * 8 * SIZE)

    def call(self, case: Case, x: Array, out: Array | None) -> Any:
        tensor, tensor_around = self.device_input.put(case.place, x, case.dtype)
        target = target_around = None
        if out is not None:
            target, target_around = self.device_output.put(case.out_place or "", out, case.dtype)
        result = self.call_on_device(case, tensor, target)
        if out is not None and target is not None:
            out[:] = take(target, target_around)
        x[:] = take(tensor, tensor_around)
        if result is None or result is tensor or result is target:
            return x if result is tensor else None if result is None else out
        assert isinstance(result, DeviceArray)
        assert result.device == DEVICE
        return take(result)

    def call_on_device(self, case: Case, tensor: DeviceArray, target: DeviceArray | None) -> Any:
        """Call as Grid does: what it makes of bfloat16, a device's array is already."""
        comm, root = self.comm, case.root
        calls = {
            "broadcast": lambda: comm.broadcast(tensor, root, case.algorithm),
            "reduce": lambda: comm.reduce(tensor, root, case.op, case.algorithm, target),
            "allgather": lambda: comm.allgather(tensor, case.algorithm, target),
            "allgatherv": lambda: comm.allgatherv(tensor, self.counts(case), case.algorithm, target),
            "alltoall": lambda: comm.alltoall(tensor, case.algorithm, target),
            "gather": lambda: comm.gather(tensor, root, case.algorithm, target),
            "scatter": lambda: comm.scatter(tensor if case.is_root else None, root, case.algorithm, target),
            "reduce_scatter": lambda: comm.reduce_scatter(tensor, case.op, case.algorithm, target),
            "allreduce": lambda: self.allreduce(case, tensor, target),
        }
        return calls[case.kind]()

    @staticmethod
    def counts(case: Case) -> list[int]:
        return [case.count * ((rank + case.shift) % 3) // 2 for rank in range(SIZE)]

    def allreduce(self, case: Case, tensor: Any, target: Any) -> Any:
        if case.wire is None:
            return self.comm.allreduce(tensor, case.op, case.algorithm, target)
        handle = self.comm.allreduce_async(tensor, case.op, case.algorithm, target, case.wire)
        result = handle.wait()
        assert handle.path is not None
        if SIZE == 1 and handle.path == "alone":
            expected = {None}
        elif handle.path.startswith("nccl"):
            expected = {0}
        else:
            rounds = self.comm.nodes > 1 or case.algorithm in ("ring", "recursive_doubling")
            expected = {0} if rounds else {None}
        assert handle.nonfinite in expected, (handle.path, handle.nonfinite)
        return result

    def is_rounded_on_the_way(self, case: Case) -> bool:
        return super().is_rounded_on_the_way(case) or (
            case.op == "mean" and case.dtype in ("float16", "bfloat16") and SIZE & (SIZE - 1) != 0 and MODE == "nccl"
        )


MODE = sys.argv[1] if len(sys.argv) > 1 else "peers"
EVERY = int(sys.argv[2]) if len(sys.argv) > 2 else 1  # of so many cases one is run


def main() -> None:
    choices = random.Random(5)
    data = both(SMALL_ELEMENTS, 3)
    checked, paths = 0, set()
    for settings, algorithms in MODES[MODE]:
        with gf.init(config=gf.Config(**settings)) as comm:
            grid = DeviceGrid(comm, data, SMALL_ELEMENTS)
            for kind, dtype, op in kinds_dtypes_and_ops():
                # Large enough for several pieces, slots and messages.
                for count in [*choices.sample(sizes_for({}, dtype), 3), choices.randrange(SMALL_ELEMENTS)]:
                    case = draw(choices, kind, dtype, op, count, algorithms)
                    if choices.randrange(EVERY) == 0:
                        check(grid, case, settings)
                        checked += 1
            handle = comm.allreduce_async(empty(1000, "float32", DEVICE), "sum", algorithms[-1])
            handle.wait()
            paths.add(handle.path)
    if RANK == 0:
        say("cases", checked)
        say("paths", *sorted(paths))


if __name__ == "__main__":
    run(main)
