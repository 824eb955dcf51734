"""Checks of the installed software: Python, packages, the build, and the MPI library."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
from pathlib import Path

from gradientflow._location import core
from gradientflow.cli.library import PACKAGE, build_info, built_with, keep_mpi_unstarted
from gradientflow.errors import GradientFlowError
from gradientflow.jax.mpi_names import jaxlib_library, missing_names
from gradientflow.jax.versions import NEWEST, OLDEST, installed_version, untried
from gradientflow.launch import OPEN_MPI, LaunchError, find_launcher
from gradientflow.machine import mpi_library, package_version
from gradientflow.mpi_library import MPILibrary, explain_mpi4py, missing_mpi
from gradientflow.mpi_start import TRANSPORTS, start_variables

from .check import Check
from .network import mpi_between_hosts


def versions() -> list[Check]:
    """Report the versions of Python, of the packages and of the build."""
    info = build_info()
    found = [Check("Python", "ok", f"{platform.python_version()} ({platform.python_implementation()})")]
    found += [_package(name) for name in ("gradientflow", "numpy")]
    if info:
        mpi = info.get("mpi")
        library = f"{mpi['name']} {mpi['version']}" if mpi else "without MPI"
        parts = (info.get("compiler", "?"), library, info.get("build_type", ""))
        found.append(Check("built with", "ok", ", ".join(filter(None, parts))))
    else:
        found.append(Check("built with", "warn", "not recorded", "this looks like a source folder: pip install ."))
    return found


def mpi() -> list[Check]:
    """Check the MPI library and its launcher, and that mpi4py and the core use the same library."""
    if why := missing_mpi():
        return [Check("MPI library", "ok", f"none: {why}; jobs exchange messages over TCP")]
    found = []
    try:
        launcher = find_launcher(built_with())
        found.append(Check("mpirun", "ok", f"{launcher.path} ({launcher.library} {launcher.version})"))
    except LaunchError as error:
        found.append(Check("mpirun", "fail", "not usable", str(error)))
    try:
        keep_mpi_unstarted()
        from mpi4py import MPI

        found.append(Check("MPI library", "ok", mpi_library(MPI.Get_library_version())))
    except (ImportError, RuntimeError) as error:
        problem, advice = explain_mpi4py(error, MPILibrary(**build_info()["mpi"]))
        return [*found, Check("MPI library", "fail", problem, advice)]
    advice = "reinstall mpi4py and gradientflow in one environment with one MPI library"
    try:
        ctypes.CDLL(str(PACKAGE / "lib" / "libgradientflow_mpi.so"))  # MPI jobs load it
        loaded = loaded_mpi_libraries(Path("/proc/self/maps").read_text(encoding="utf-8"))
        one, value = len(loaded) == 1, " and ".join(loaded) or "none loaded"
    except OSError as error:
        one, value = False, str(error)
    found.append(Check("shared with mpi4py", "ok" if one else "fail", value, "" if one else advice))
    if MPI.get_vendor()[0] == OPEN_MPI:
        found.append(_start_of_open_mpi())
    return [*found, mpi_between_hosts()]


def _start_of_open_mpi() -> Check:
    """Report if Open MPI looks for RDMA devices at its start, which takes a second if there are no such devices."""
    chosen = os.environ.get(TRANSPORTS) or start_variables().get(TRANSPORTS)
    default = "with btl/ofi: there is an RDMA device, or a file of Open MPI's parameters says so"
    return Check("start of MPI", "ok", f"{TRANSPORTS}={chosen}" if chosen else default)


def loaded_mpi_libraries(maps: str) -> list[str]:
    """Return the MPI libraries in a list of mapped files (the text of ``/proc/PID/maps``)."""
    paths = re.findall(r"(/\S.*/libmpi(?:ch)?\.so[.\d]*)$", maps, re.MULTILINE)
    return sorted({os.path.realpath(path) for path in paths})


def other_packages() -> list[Check]:
    """Report the optional packages that are installed."""
    found = [_optional("torch", "torch"), _jax(), _optional("matplotlib", "plot"), _cuda()]
    cuda = next((name for name in ("cupy", "cupy-cuda13x", "cupy-cuda12x") if package_version(name)), None)
    found.append(Check("cupy", "ok", f"{cuda} {package_version(cuda)}" if cuda else "absent"))
    nccl = next((name for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12") if package_version(name)), None)
    found.append(Check("nccl", "ok", f"{nccl} {package_version(nccl)}" if nccl else "absent"))
    gloo = "with torch" if importlib.util.find_spec("torch") else "absent"
    return [*found, Check("gloo", "ok", gloo)]


def _package(name: str) -> Check:
    version = package_version(name)
    return Check(name, "ok", version) if version else Check(name, "fail", "not installed", f"pip install {name}")


def _optional(name: str, extra: str) -> Check:
    version = package_version(name)
    return Check(name, "ok", version if version else f"absent (pip install 'gradientflow[{extra}]' brings it)")


def _jax() -> Check:
    """Check that JAX programs can be served. Loads nothing."""
    version, jaxlib = installed_version(), jaxlib_library()
    if version is None or jaxlib is None:
        return _optional("jax", "jax")
    if missing := missing_names(jaxlib):
        advice = f"its jaxlib looks for {', '.join(missing[:3])}, which GradientFlow does not have: "
        return Check("jax", "warn", version, f"{advice}`gradientflow run --jax` needs JAX {OLDEST} to {NEWEST}")
    sentence = untried(version)
    return Check("jax", "warn" if sentence else "ok", f"{version}, whose collectives can be served", sentence)


def _cuda() -> Check:
    name = "CUDA kernels"
    try:
        devices = core.device
        built = devices.built()
    except (ImportError, GradientFlowError) as error:  # no core, or an invalid setting
        return Check(name, "warn", "not known", str(error))
    if not built:
        return Check(name, "ok", "not built (GRADIENTFLOW_CUDA=on when installing says why)")
    version = f"built with CUDA {build_info().get('cuda') or '?'}"
    if reason := devices.unavailable_reason():
        return Check(name, "ok", f"{version}; {reason}")
    names = [devices.name(device) for device in range(devices.count())]
    return Check(name, "ok", f"{version}; {len(names)} device{'' if len(names) == 1 else 's'}: {', '.join(names)}")
