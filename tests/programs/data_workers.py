"""Processes that ranks start, by each start method, beside a process group and a communicator that are in use."""

from __future__ import annotations

import multiprocessing

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import gradientflow as gf


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return index**2


def square(number: int) -> int:
    return number**2


def main() -> None:
    dist.init_process_group("gradientflow")
    comm = gf.init()
    x = torch.full((100_000,), 1.0)
    for method in ("fork", "spawn", "forkserver"):
        before = dist.all_reduce(x.clone(), async_op=True)
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=method)
        for batch in loader:
            total = batch.clone()
            dist.all_reduce(total)
            assert total.tolist() == (batch * comm.size).tolist(), method
            comm.allreduce(x.numpy(), "mean")
        before.wait()
        with multiprocessing.get_context(method).Pool(2) as pool:
            squares = pool.map_async(square, range(20))
            comm.allreduce(x.numpy(), "mean")
            assert squares.get() == [number**2 for number in range(20)], method
        assert bool((x == 1).all()), method
    comm.close()
    dist.destroy_process_group()
    print("worked")


if __name__ == "__main__":
    main()
