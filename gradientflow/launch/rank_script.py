"""Script that MPI's launcher runs on every rank in place of the program, and that becomes the program.

    python -I -S rank_script.py PAUSE BINDING NAME=VALUE... -- PROGRAM...

sleeps for PAUSE seconds, sets the given variables and the variables of PyTorch's launcher, and binds the process to the
cores of its rank. It asks the kernel to kill it if MPI's launcher ends first: after a SIGTERM, Open MPI 5's launcher
may leave behind ranks that handle the signal. To start at once, this file is run by its path, and imports two files of
the package by their paths. It is no shell script, as a shell drops variables whose names it cannot use.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

_NOT_STARTED = 127  # a shell's exit status for a missing program
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Prepare this process and become the program; return an exit status if it cannot be started."""
    pause, binding, *rest = sys.argv[1:]
    end = rest.index("--")
    variables, program = rest[:end], rest[end + 1 :]
    launcher = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != launcher:
        return _NOT_STARTED
    time.sleep(float(pause))
    for variable in variables:
        name, _, value = variable.partition("=")
        os.environ[name] = value
    here = os.path.dirname(__file__)
    sys.path += [here, os.path.dirname(here)]
    place = _set_place()
    _use_own_pipe(place["RANK"])
    ranks_here = place["LOCAL_WORLD_SIZE"]
    if binding not in ("none", "auto") or (binding == "auto" and ranks_here > 1):
        import machine  # type: ignore[import-not-found]

        machine.bind(machine.share(binding, place["LOCAL_RANK"], ranks_here))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the program would, too
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # MPI's launcher is started with a terminal's signals blocked
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"gradientflow: {program[0]} cannot be started: {error.strerror}", file=sys.stderr)
    return _NOT_STARTED


def _use_own_pipe(rank: int) -> None:
    """Write standard error to this rank's pipe, if `gradientflow run` has made one: MPI's launcher mixes lines."""
    import launcher_variables  # type: ignore[import-not-found]

    if pipes := os.environ.pop(launcher_variables.PIPES, ""):
        with contextlib.suppress(OSError):  # the command has ended
            pipe = os.open(f"{pipes}{rank}", os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(pipe, True)
            os.dup2(pipe, 2)
            os.close(pipe)


def _set_place() -> dict[str, int]:
    """Set the variables of PyTorch's launcher from MPI's variables; return the values for this rank."""
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_")]:  # left by an outer job
        del os.environ[name]
    import launcher_variables as launchers

    names = launchers.OPEN_MPI if os.environ.get(launchers.OPEN_MPI["WORLD_SIZE"]) else launchers.MPICH
    place = {name: int(os.environ[source]) for name, source in names.items()}
    place["WORLD_SIZE"] -= int(os.environ.get("GRADIENTFLOW_SERVERS") or 0)
    os.environ.update({name: str(value) for name, value in place.items()})
    ranks_here = place["LOCAL_WORLD_SIZE"]
    if ranks_here > 1 and not os.environ.get("OMP_NUM_THREADS"):  # otherwise each rank starts a thread per core
        os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks_here))
    return place


if __name__ == "__main__":
    sys.exit(main())
