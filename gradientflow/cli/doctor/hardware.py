"""Checks of the machine: processor, cores, memory and vector units."""

from __future__ import annotations

from pathlib import Path

from gradientflow.launch import cores
from gradientflow.machine import cpu_model, memory_limit

from .check import Check

_SIMD_FLAGS = ("avx2", "avx512f", "avx512_fp16", "avx512_bf16", "sve", "asimd")


def machine() -> list[Check]:
    """Report the hardware that speed depends on: processor, cores, memory and vector units."""
    count, gibibytes = cores(), memory_limit() / 2**30
    advice = "" if count > 1 else "a job's ranks will share one core: right, but no measure of speed"
    return [
        Check("processor", "ok", cpu_model()),
        Check("cores", "ok" if count > 1 else "warn", str(count), advice),
        Check("memory", "ok", f"{gibibytes:.1f} GiB"),
        Check("vector units", "ok", ", ".join(_simd_flags()) or "none known"),
    ]


def _simd_flags() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    present = set(text.split())
    return [flag for flag in _SIMD_FLAGS if flag in present]
