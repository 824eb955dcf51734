"""The checks of ``gradientflow doctor``: each looks at one thing, and returns a failure instead of raising it."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradientflow._location import load_core
from gradientflow.cli.job import TIMED_OUT, Job, run_job
from gradientflow.cli.library import PACKAGE, build_info, built_with, keep_mpi_unstarted
from gradientflow.cli.probe import MARK
from gradientflow.config import Config, fields, unknown_variables
from gradientflow.errors import GradientFlowError
from gradientflow.jax.mpi_names import jaxlib_library, missing_names
from gradientflow.jax.versions import NEWEST, OLDEST, installed_version, untried
from gradientflow.job import asked_transport
from gradientflow.launch import (
    OPEN_MPI,
    LaunchError,
    asked_binding,
    cores,
    find_launcher,
    job_here,
    launch_environment,
    module_command,
    mpirun_command,
    rank_of_this_process,
    rank_program,
    tcp_command,
)
from gradientflow.machine import cpu_model, format_size, memory_limit, mpi_library, package_version
from gradientflow.meeting import consider_ways, find_way
from gradientflow.meeting.endpoints import near
from gradientflow.meeting.way import ALONE
from gradientflow.mpi_library import MPILibrary, explain_mpi4py, missing_mpi
from gradientflow.mpi_start import TRANSPORTS, start_variables
from gradientflow.settings_file import NAME, settings_file
from gradientflow.strategies import words_of_default_strategy

_START = "start"
_PROBE = module_command("gradientflow.cli.probe", [])
_PROBE_SECONDS = 60.0
_FACTS = (
    ("nodes_remark", "layout"),
    ("simd", "kernels for"),
    ("staging_bytes_per_rank", "staging bytes per rank"),
)
_UNITLESS = ("", "choice", "count")
_SIMD_FLAGS = ("avx2", "avx512f", "avx512_fp16", "avx512_bf16", "sve", "asimd")


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes
    ----------
    name : str
        What was looked at.
    status : str
        "ok", "warn" or "fail".
    value : str
        What was found.
    advice : str
        What to do about it; empty where there is nothing to do.
    """

    name: str
    status: str
    value: str
    advice: str = ""


def versions() -> list[Check]:
    """Give the versions of Python, of the packages and of the build."""
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


def machine() -> list[Check]:
    """Describe what speed depends on: processor, cores, memory and vector units."""
    count, gibibytes = cores(), memory_limit() / 2**30
    advice = "" if count > 1 else "a job's ranks will share one core: right, but no measure of speed"
    return [
        Check("processor", "ok", cpu_model()),
        Check("cores", "ok" if count > 1 else "warn", str(count), advice),
        Check("memory", "ok", f"{gibibytes:.1f} GiB"),
        Check("vector units", "ok", ", ".join(_simd_flags()) or "none known"),
    ]


def mpi() -> list[Check]:
    """Look for the MPI library, its launcher, and whether mpi4py and the core use the same one."""
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
        ctypes.CDLL(str(PACKAGE / "lib" / "libgradientflow_mpi.so"))  # as a job of MPI does
        loaded = loaded_mpi_libraries(Path("/proc/self/maps").read_text(encoding="utf-8"))
        one, value = len(loaded) == 1, " and ".join(loaded) or "none loaded"
    except OSError as error:
        one, value = False, str(error)
    found.append(Check("shared with mpi4py", "ok" if one else "fail", value, "" if one else advice))
    if MPI.get_vendor()[0] == OPEN_MPI:
        found.append(_start_of_open_mpi())
    return [*found, mpi_between_hosts()]


def _start_of_open_mpi() -> Check:
    """Say whether Open MPI looks for RDMA devices as it starts, which takes a second where there are none."""
    chosen = os.environ.get(TRANSPORTS) or start_variables().get(TRANSPORTS)
    default = "with btl/ofi: there is an RDMA device, or a file of Open MPI's parameters says so"
    return Check("start of MPI", "ok", f"{TRANSPORTS}={chosen}" if chosen else default)


def mpi_between_hosts() -> Check:
    """Say what would move the messages of a job of MPI on several hosts like this one."""
    name = "MPI between hosts"
    try:
        transport, why, _ = load_core().choice_between_hosts(dict(Config(transport=asked_transport())))
    except (GradientFlowError, ValueError) as error:
        return Check(name, "warn", "not known", str(error))
    return Check(name, "ok", f"messages over {transport.upper()}: {why}")


def meeting() -> list[Check]:
    """Say how ranks that are started as this process was would meet, and why not in the ways before."""
    *before, last = consider_ways(os.environ, transport=asked_transport())
    found = [Check(each.name, "ok", f"no: {each.why}") for each in before]
    if not last.applies:
        return [*found, Check(last.name, "fail", "not possible", last.why)]
    way = find_way(os.environ, transport=asked_transport())
    transport = "tcp" if way.name == ALONE and missing_mpi() else way.transport
    over = "the faster of MPI and TCP" if transport == "auto" else transport.upper()
    found.append(Check(last.name, "ok", f"yes: {last.why}; messages over {over}"))
    return found if transport == "mpi" else [*found, address_towards(near(way), by_mpi=way.by_mpi)]


def address_towards(place: str, *, by_mpi: bool = False) -> Check:
    """Say at which address the other ranks would reach this host; it leads to where they meet, unless `by_mpi`."""
    try:
        interface = load_core().choice_between_hosts(dict(Config()))[2] if by_mpi else Config()["interface"]
        address = load_core().own_address(place, {**Config(), "interface": interface})
    except (GradientFlowError, ValueError) as error:
        return Check("address of this host", "warn", "not known", str(error))
    why = f"it leads to {place}" if place else "the default route's"
    if interface != "auto":
        why = "by GRADIENTFLOW_INTERFACE" if Config()["interface"] != "auto" else f"by variables of MPI: {interface}"
    return Check("address of this host", "ok", f"{address} ({why})")


def this_job() -> list[Check]:
    """Have the job that this process is a rank of do the same as the jobs below; all of its ranks have to come here."""
    return _try(_PROBE, {})


def live_job() -> list[Check]:
    """Start an MPI job of two ranks, have it sum random integers, and look at what it reports."""
    if obstacle := _obstacle():
        return [obstacle]
    if missing_mpi():
        return [Check(_START, "ok", "not tried: there is no MPI")]
    try:
        launcher = find_launcher(built_with())
    except LaunchError:
        return [Check(_START, "fail", "not tried", "without an mpirun nothing can be started")]
    command = rank_program(_PROBE, bind=asked_binding())
    return _try(mpirun_command(launcher, 2, command), launch_environment(launcher), by_mpi=True)


def live_job_without_mpi() -> list[Check]:
    """Do the same over TCP."""
    obstacle = _obstacle()
    return [obstacle] if obstacle else _try(tcp_command(job_here(2, _PROBE, bind=asked_binding())), {})


def _obstacle() -> Check | None:
    """Say why no job can be tried; None if one can."""
    try:
        asked_binding()
    except LaunchError as error:
        return Check(_START, "fail", "not tried", str(error))
    return None


def _try(command: Sequence[str], environment: Mapping[str, str], *, by_mpi: bool = False) -> list[Check]:
    with tempfile.TemporaryFile() as output:
        status = run_job(Job(command, environment, output, _PROBE_SECONDS, by_mpi))
        output.seek(0)
        text = output.read().decode(errors="replace")
    report = next((line[len(MARK) :] for line in text.splitlines() if line.startswith(MARK)), None)
    if status == 0 and report is None and rank_of_this_process():
        return [Check(_START, "ok", "rank 0 says what its job found")]
    if status != 0 or report is None:
        what = f"no end within {_PROBE_SECONDS:g} s" if status == TIMED_OUT else f"exit status {status}"
        return [Check(_START, "fail", what, _last_lines(text))]
    return judge(json.loads(report))


def other_packages() -> list[Check]:
    """Say which optional packages are installed."""
    found = [_optional("torch", "torch"), _jax(), _optional("matplotlib", "plot"), _cuda()]
    cuda = next((name for name in ("cupy", "cupy-cuda13x", "cupy-cuda12x") if package_version(name)), None)
    found.append(Check("cupy", "ok", f"{cuda} {package_version(cuda)}" if cuda else "absent"))
    nccl = next((name for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12") if package_version(name)), None)
    found.append(Check("nccl", "ok", f"{nccl} {package_version(nccl)}" if nccl else "absent"))
    gloo = "with torch" if importlib.util.find_spec("torch") else "absent"
    return [*found, Check("gloo", "ok", gloo)]


def settings() -> list[Check]:
    """Give every setting's value and where it comes from."""
    try:
        config, strategy, file = Config(), words_of_default_strategy(), settings_file()
    except (ValueError, TypeError) as error:
        return [Check("configuration", "fail", "cannot be read", str(error))]
    there = f"none: no {NAME} in this folder" if file.path is None else str(file.path)
    sources = dict.fromkeys(file.settings, f"from {NAME}")
    sources |= {name: f"from {variable}" for name, variable, *_ in fields() if os.environ.get(variable)}
    return [
        Check("settings file", "ok", there),
        Check("strategy", "ok", f"{strategy} ({f'from {NAME}' if file.strategy else 'default'})"),
        *(
            Check(
                name,
                "ok",
                f"{config[name]}{f' {unit}' if unit not in _UNITLESS else ''} ({sources.get(name, 'default')})",
            )
            for name, _, unit, _, _ in fields()
        ),
    ] + [Check("configuration", "warn", "a variable that nothing reads", each) for each in unknown_variables()]


def loaded_mpi_libraries(maps: str) -> list[str]:
    """Find the MPI libraries in a list of mapped files (the text of ``/proc/PID/maps``)."""
    paths = re.findall(r"(/\S.*/libmpi(?:ch)?\.so[.\d]*)$", maps, re.MULTILINE)
    return sorted({os.path.realpath(path) for path in paths})


def judge(report: dict[str, Any]) -> list[Check]:
    """Turn the report of ``gradientflow.cli.probe`` into checks."""
    found = [Check("start", "ok", f"{report['ranks']} ranks")]
    for memory, words in (("pool", "node memory"), ("array", "ordinary arrays")):
        wrong = report["wrong"][memory]
        value = "allreduce exact" if wrong == 0 else f"{wrong} wrong elements"
        advice = "" if wrong == 0 else "do not train with this installation; please report it with the output of --json"
        found.append(Check(words, "fail" if wrong else "ok", value, advice))
    names = [f"rank {rank}: {name}" for rank, name in enumerate(report["cores"])]
    found.append(Check("cores of ranks", "ok", "; ".join(names)))
    facts = report["describe"]
    if remark := facts.get("cores_remark"):
        found.append(Check("cores are short", "warn", remark, "right, but slow: waiting ranks take each other's time"))
    direct = facts["direct_read"]
    advice = "" if direct == "available" else "ordinary arrays go through staging, which is slower for large ones"
    found.append(Check("direct reads", "warn" if advice else "ok", direct, advice))
    remark = facts.get("transport_remark")
    found.append(Check("messages", "ok", f"over {facts['transport'].upper()}{remark and f': {remark}'}"))
    found += [Check(words, "ok", str(facts[key])) for key, words in _FACTS if facts.get(key)]
    found.append(Check("allreduce of arrays", "ok", _ways(facts["allreduce_of_arrays"])))
    found.append(Check("allreduce of node memory", "ok", _ways(facts["allreduce_of_node_memory"])))
    return found


def between_hosts() -> list[Check]:
    """Say which path an allreduce would take between hosts, and why."""
    ways = load_core().ways
    layouts = (("2 hosts", [1, 1]), ("4 hosts", [1] * 4), ("2 hosts of 2 ranks", [2, 2]), ("4 hosts of 8", [8] * 4))
    try:
        return [Check(name, "ok", _ways(ways(node_sizes))) for name, node_sizes in layouts]
    except ValueError as error:
        return [Check("choice", "warn", "not known", str(error))]


def _ways(ways: Sequence[tuple[int, str, str]]) -> str:
    return "; ".join(f"{f'from {format_size(start)} on ' if start else ''}{path} ({why})" for start, path, why in ways)


def _package(name: str) -> Check:
    version = package_version(name)
    return Check(name, "ok", version) if version else Check(name, "fail", "not installed", f"pip install {name}")


def _optional(name: str, extra: str) -> Check:
    version = package_version(name)
    return Check(name, "ok", version if version else f"absent (pip install 'gradientflow[{extra}]' brings it)")


def _jax() -> Check:
    """Say whether programs of JAX can be served: nothing is loaded for it."""
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
        devices = load_core().device
        built = devices.built()
    except (ImportError, GradientFlowError) as error:  # no core, or an invalid setting
        return Check(name, "warn", "not known", str(error))
    if not built:
        return Check(name, "ok", "not built (GRADIENTFLOW_CUDA=on when installing says why)")
    version = f"built with CUDA {build_info().get('cuda', '?')}"
    if reason := devices.unavailable_reason():
        return Check(name, "ok", f"{version}; {reason}")
    names = [devices.name(device) for device in range(devices.count())]
    return Check(name, "ok", f"{version}; {len(names)} device{'' if len(names) == 1 else 's'}: {', '.join(names)}")


def _simd_flags() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return []
    present = set(text.split())
    return [flag for flag in _SIMD_FLAGS if flag in present]


def _last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip(" -")]
    return " | ".join(lines[-6:]) or "it printed nothing"
