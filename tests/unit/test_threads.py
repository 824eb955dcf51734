"""Threads that other ranks wait for take short turns, where the system has them."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

import numpy as np
import pytest

import gradientflow as gf

_GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine())  # the number of the system call
_HAS_SHORT_TURNS = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 12)


@pytest.mark.skipif(not _HAS_SHORT_TURNS or _GETATTR is None, reason="needs Linux 6.12 on x86_64 or aarch64")
def test_the_progress_thread_takes_short_turns() -> None:
    def turns() -> list[int]:
        return [turn_of(int(thread)) for thread in os.listdir("/proc/self/task")]

    def turn_of(thread: int) -> int:
        attributes = ctypes.create_string_buffer(48)
        assert ctypes.CDLL(None).syscall(_GETATTR, thread, attributes, 48, 0) == 0
        return int(struct.unpack("IIQiIQQQ", attributes)[5])  # nanoseconds

    before = turns()
    with gf.init(transport="tcp") as comm:
        comm.allreduce_async(np.ones(4)).wait()
        assert turns().count(100_000) > before.count(100_000)
