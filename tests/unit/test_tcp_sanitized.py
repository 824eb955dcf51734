"""TCP under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer: random traffic, talk, and recoveries."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
# {program: its arguments, one line a run}
PROGRAMS = {
    "tcp_traffic": ("2 1 10 2", "3 3 10 3", "5 1 10 5"),
    "tcp_recovery": ("2 10 2", "3 20 3", "6 20 6"),
}
SOURCES = [
    *sorted((KERNELS / "transport/tcp").glob("*.cpp")),
    *sorted((KERNELS / "transport/recovery").glob("*.cpp")),
    *(KERNELS / "transport/meeting" / name for name in ("exchange.cpp", "random.cpp", "store.cpp")),
    *(
        KERNELS / "transport" / name
        for name in (
            "address.cpp",
            "descriptor.cpp",
            "endpoint.cpp",
            "gathering.cpp",
            "patience.cpp",
            "process.cpp",
            "signature.cpp",
        )
    ),
    *(KERNELS / "base" / name for name in ("dtype.cpp", "error.cpp", "forks.cpp", "text.cpp", "waits.cpp")),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_found(tmp_path: Path, name: str, sanitizer: str) -> None:
    (tmp_path / "gradientflow").symlink_to(KERNELS)
    flags = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", f"-I{tmp_path}"]
    program = tmp_path / name
    sources = [ROOT / f"tests/native/{name}.cpp", *SOURCES]
    compiler = os.environ.get("CXX", "c++")
    made = subprocess.run(
        [compiler, *flags, "-pthread", *map(str, sources), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "cannot find" in made.stderr and "san" in made.stderr:
        pytest.skip(f"{compiler} has no library for -fsanitize={sanitizer}")
    assert made.returncode == 0, made.stderr
    # The library of older compilers does not bear random addresses.
    prefix = ["setarch", "-R"] if sanitizer == "thread" and shutil.which("setarch") else []
    settings = {"TSAN_OPTIONS": "exitcode=66", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
    for arguments in PROGRAMS[name]:
        command = [*prefix, str(program), *arguments.split()]
        ended = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
