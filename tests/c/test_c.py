"""The C interface: the header and the flags are all that a program needs, and the programs in tests/c run.

What can be found wrong by compiling is found with every warning as an error. The programs check themselves, and end
the job where something is not as it should be.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gradientflow
from gradientflow._location import build_info
from gradientflow.launch import module_command

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(gradientflow.__file__).resolve().parent
HEADER = ROOT / "kernels" / "c" / "gradientflow.h"
PROGRAMS = Path(__file__).resolve().parent
EXAMPLES = ROOT / "docs" / "examples"
MEET = PROGRAMS / "meet.c"  # which is compiled without MPI

# The environment's own programs first, as after `activate`; libraries are found through what was linked.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
ENVIRONMENT["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])

STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
SANITIZE = [f"-fsanitize={build_info()['sanitize']}"] if build_info().get("sanitize") else []

Run = Callable[..., Any]


def run(*command: object, cwd: Path | None = None, **environment: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env={**ENVIRONMENT, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(words)} failed:\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def tool(name: str) -> str:
    """Find a program on the PATH, or skip the test visibly."""
    found = shutil.which(name, path=ENVIRONMENT["PATH"])
    if found is None:
        pytest.skip(f"needs {name} on the PATH")
    return found


@cache
def flags(*options: str) -> list[str]:
    """Ask ``gradientflow config`` for them."""
    return shlex.split(run(*module_command("gradientflow.cli", ["config", *options])))


def compiled(source: Path, folder: Path, *options: str) -> Path:
    """Compile a program with what ``gradientflow config`` prints and nothing else that it would need."""
    binary = folder / source.stem
    compiler, standard = ("mpicc", "-std=c99") if source.suffix == ".c" else ("mpicxx", "-std=c++17")
    run(tool(compiler), standard, *STRICT, *SANITIZE, *options, source, "-o", binary, *flags("--cflags", "--libs"))
    return binary


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("programs")
    return {
        source.stem: compiled(source, folder, "-g", "-pthread") for source in PROGRAMS.glob("*.c") if source != MEET
    }


# ---- programs --------------------------------------------------------------------------------------------------------

# (ranks, GRADIENTFLOW_NODE_SIZE): the interface converts, and what it calls is tested elsewhere
LAYOUTS = [(2, 0), (3, 2)]
LAYOUTS += [pytest.param(4, node_size, marks=pytest.mark.slow) for node_size in (0, 1)]


@pytest.mark.parametrize(("ranks", "node_size"), LAYOUTS)
@pytest.mark.parametrize("command", ["collectives", "errors", "objects", "objects MPI_Init", "prepared", "threads"])
def test_program(mpirun: Run, programs: dict[str, Path], command: str, ranks: int, node_size: int) -> None:
    name, *arguments = command.split()
    mpirun(ranks, "execute", programs[name], *arguments, env={"GRADIENTFLOW_NODE_SIZE": str(node_size)}, timeout=100)


@pytest.mark.parametrize("program", ["sparse", "top_k", "served"])
@pytest.mark.parametrize(("ranks", "node_size"), [(1, 0), (3, 1)])
def test_sparse_communication_and_optimizers(
    mpirun: Run, programs: dict[str, Path], program: str, ranks: int, node_size: int
) -> None:
    mpirun(ranks, "execute", programs[program], env={"GRADIENTFLOW_NODE_SIZE": str(node_size)}, timeout=100)


@pytest.mark.thorough
@pytest.mark.parametrize("program", ["prepared", "threads", "sparse", "served", "top_k"])
def test_program_over_tcp(mpirun: Run, programs: dict[str, Path], program: str) -> None:
    environment = {"GRADIENTFLOW_NODE_SIZE": "1", "GRADIENTFLOW_TRANSPORT": "tcp"}
    mpirun(3, "execute", programs[program], env=environment, timeout=100)


def test_cuda_devices(mpirun: Run, programs: dict[str, Path], device_env: dict[str, str]) -> None:
    mpirun(3, "execute", programs["device"], env=device_env)


def test_a_rank_that_dies_and_one_that_is_late_have_codes_of_their_own(mpirun: Run, programs: dict[str, Path]) -> None:
    finished = mpirun(3, "execute", programs["faults"], "dies", recover=True, check=False)
    assert sorted(re.findall(r"^rank \d: .*", finished.stdout, re.MULTILINE)) == ["rank 0: PEER", "rank 2: PEER"]
    mpirun(2, "execute", programs["faults"], "late")
    mpirun(2, "execute", programs["faults"], "forks")


@pytest.mark.parametrize("node_size", [0, 1])
def test_a_timeout_tells_of_a_call_that_failed_before(mpirun: Run, programs: dict[str, Path], node_size: int) -> None:
    mpirun(2, "execute", programs["faults"], "forgotten", env={"GRADIENTFLOW_NODE_SIZE": str(node_size)})


@pytest.mark.parametrize(("ranks", "node_size"), [(1, 0), (3, 1)])
def test_waiting_for_several_calls(mpirun: Run, programs: dict[str, Path], ranks: int, node_size: int) -> None:
    mpirun(ranks, "execute", programs["waits"], env={"GRADIENTFLOW_NODE_SIZE": str(node_size)})


def test_a_variable_that_nothing_reads_is_told_once(mpirun: Run, programs: dict[str, Path]) -> None:
    job = mpirun(2, "execute", programs["waits"], env={"GRADIENTFLOW_WINDOWS": "4"})
    told = "gradientflow: the variable GRADIENTFLOW_WINDOWS of the environment is no setting of GradientFlow; perhaps "
    assert job.stderr.count(told + "GRADIENTFLOW_WINDOW was meant\n") == job.stderr.count("GRADIENTFLOW_WINDOWS") == 1


@pytest.fixture(scope="session")
def meeting_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the program that needs no MPI, where the compiler would find none."""
    binary = tmp_path_factory.mktemp("meet") / "meet"
    libraries = f"-Wl,-rpath,{PACKAGE / 'lib'}"
    places = [f"-I{PACKAGE / 'include'}", f"-L{PACKAGE / 'lib'}", "-lgradientflow", libraries]
    run(tool("cc"), "-std=c99", *STRICT, *SANITIZE, "-DGF_WITHOUT_MPI", MEET, "-o", binary, *places)
    return binary


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_ranks_that_meet_without_mpi(meeting_program: Path, ranks: int) -> None:
    command = ["run", "-n", ranks, "--transport", "tcp", "--", meeting_program]
    printed = run(*module_command("gradientflow.cli", [str(word) for word in command]), GRADIENTFLOW_NODE_SIZE="1")
    assert printed == f"{ranks} ranks without MPI"
    assert "libmpi" not in run(tool("ldd"), meeting_program)


def test_ranks_that_meet_in_a_file(meeting_program: Path, tmp_path: Path) -> None:
    place = f"file://{tmp_path / 'meet'}"
    ranks = [
        subprocess.Popen([meeting_program, place, str(rank), "2"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    assert [each.communicate(timeout=60)[0] for each in ranks] == ["2 ranks without MPI\n", ""]
    assert [each.returncode for each in ranks] == [0, 0]


def test_every_function_is_called_by_a_program(programs: dict[str, Path], meeting_program: Path) -> None:
    nm = tool("nm")
    called = set()
    for binary in (*programs.values(), meeting_program):
        called |= set(re.findall(r"\bU (gf_\w+)", run(nm, "-D", binary)))
    header = re.sub(r"//.*", "", HEADER.read_text())
    inside_programs = set(re.findall(r"static inline gf_status (gf_\w+)\(", header))
    declared = set(re.findall(r"\b(gf_\w+)\(", header)) - inside_programs
    exported = set(re.findall(r"\bT (gf_\w+)", run(nm, "-D", PACKAGE / "lib" / "libgradientflow.so")))
    assert declared == exported
    assert declared == called


# ---- the header ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compiler", "language", "standard"),
    [
        *(("mpicc", "c", "c99"), ("mpicxx", "c++", "c++20")),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (("mpicc", "c", "c17"), ("mpicxx", "c++", "c++11"))
        ),
    ],
)
def test_header_stands_alone(tmp_path: Path, compiler: str, language: str, standard: str) -> None:
    source = tmp_path / "program"
    source.write_text("#include <gradientflow.h>\nint main(void) { return gf_version() != GF_VERSION; }\n")
    wanted = [f"-std={standard}", *STRICT, *SANITIZE, "-x", language, source, "-x", "none"]
    run(tool(compiler), *wanted, "-o", tmp_path / "binary", *flags("--cflags", "--libs"))
    run(tmp_path / "binary")


def test_header_has_the_version_of_the_package() -> None:
    numbers = re.findall(r"#define GF_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", HEADER.read_text())
    assert ".".join(numbers) == gradientflow.__version__


def test_documentation_lists_every_status() -> None:
    page = (ROOT / "docs" / "c-api.md").read_text()
    statuses = re.findall(r"\b(GF_SUCCESS|GF_ERROR_\w+) = ", HEADER.read_text())
    assert len(statuses) > 10
    assert set(statuses) == set(re.findall(r"`(GF_SUCCESS|GF_ERROR_\w+)`", page))


# ---- examples --------------------------------------------------------------------------------------------------------


def with_config(source: Path, folder: Path) -> Path:
    return compiled(source, folder)


def with_pkg_config(source: Path, folder: Path) -> Path:
    printed = run(
        *(tool("pkg-config"), "--cflags", "--libs", "gradientflow"), PKG_CONFIG_PATH=str(PACKAGE / "lib" / "pkgconfig")
    )
    compiler, standard = ("mpicc", "-std=c99") if source.suffix == ".c" else ("mpicxx", "-std=c++17")
    run(tool(compiler), standard, *STRICT, *SANITIZE, source, "-o", folder / "program", *shlex.split(printed))
    return folder / "program"


def with_cmake(source: Path, folder: Path) -> Path:
    """Build it in a project that knows only this one language."""
    language = "C" if source.suffix == ".c" else "CXX"
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        f"project(program LANGUAGES {language})\n"
        f"find_package(gradientflow {gradientflow.__version__} CONFIG REQUIRED)\n"
        f"add_executable(program {source})\n"
        "target_link_libraries(program PRIVATE gradientflow::gradientflow)\n"
    )
    where = run(*module_command("gradientflow.cli", ["config", "--cmakedir"]))
    options = f"-DCMAKE_{language}_FLAGS={shlex.join([*STRICT, *SANITIZE])}"
    cmake = tool("cmake")
    run(cmake, "-S", folder, "-B", folder / "build", options, f"-Dgradientflow_DIR={where}")
    run(cmake, "--build", folder / "build")
    return folder / "build" / "program"


PRINTED = {
    "allreduce.c": "4 ranks: mean 1.5, sum 6.0\n",
    "pool.cpp": "4 ranks: gradient 3.5\n",
    "pool.c": "4 ranks: bias 1.50\n",
    "sparse.c": "4 ranks: weights 1.50 and 1.50\n",
}
BUILDS = [
    *((with_config, name) for name in PRINTED),
    *((build, name) for build in (with_pkg_config, with_cmake) for name in ("allreduce.c", "pool.cpp")),
]


@pytest.mark.parametrize(
    ("build", "example"), [*BUILDS[:3], *(pytest.param(*each, marks=pytest.mark.thorough) for each in BUILDS[3:])]
)
def test_example(mpirun: Run, tmp_path: Path, build: Callable[[Path, Path], Path], example: str) -> None:
    binary = build(EXAMPLES / example, tmp_path)
    # What the linker wrote into the program is enough to find the libraries.
    environment = {"GRADIENTFLOW_NODE_SIZE": "2", "LD_LIBRARY_PATH": ""}
    assert mpirun(4, "execute", binary, env=environment).stdout == PRINTED[example]


@pytest.mark.thorough
def test_cmake_project_of_c_and_cxx(tmp_path: Path) -> None:
    (tmp_path / "part.c").write_text("#include <gradientflow.h>\nint version(void) { return gf_version(); }\n")
    (tmp_path / "main.cpp").write_text(
        "#include <gradientflow.h>\n#include <gradientflow/base/config.hpp>\n#include <span>\n"
        'extern "C" int version(void);\n'
        'int main() { return gradientflow::parse_bytes("1K") == 1024 && version() == gf_version() ? 0 : 1; }\n'
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(program LANGUAGES C CXX)\n"
        f"find_package(gradientflow CONFIG REQUIRED PATHS {PACKAGE / 'lib' / 'cmake' / 'gradientflow'})\n"
        "add_executable(program main.cpp part.c)\n"
        "target_link_libraries(program PRIVATE gradientflow::gradientflow)\n"
        "set_target_properties(program PROPERTIES C_STANDARD 99)\n"
    )
    cmake = tool("cmake")
    options = [f"-DCMAKE_{language}_FLAGS={shlex.join([*STRICT, *SANITIZE])}" for language in ("C", "CXX")]
    run(cmake, "-S", tmp_path, "-B", tmp_path / "build", *options)
    run(cmake, "--build", tmp_path / "build")
    run(tmp_path / "build" / "program")
