"""Ranks that have started MPI with different thread levels keep it, and can split."""

from __future__ import annotations

import os

import mpi4py

import gradientflow as gf

if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    mpi4py.rc.thread_level = "single"
with gf.init() as comm:
    remark = comm.describe()["transport_remark"]
    assert remark == "rank 1 has started MPI without MPI_THREAD_MULTIPLE", remark
    part = comm.split(0)
    assert part is not None
    assert part.mpi.size == part.size == comm.size
    part.close()
