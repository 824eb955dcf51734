"""Data flow one way: which layer may include or import which, in C++ and in Python, and no cycles anywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent

import pytest

from gradientflow.strategies.parsing import BY_NAME

ROOT = Path(__file__).resolve().parents[2]

Graph = Mapping[str, set[str]]  # file or module -> what it includes or imports

# ---- C++ -------------------------------------------------------------------------------------------------------------

# {layer: what it may include}, itself aside.
CPP_LAYERS: dict[str, set[str]] = {"base": set(), "compute": {"base"}, "compute/steps": {"base", "compute"}}
CPP_LAYERS["compute/cpu"] = CPP_LAYERS["compute/cuda"] = {"base", "compute", "compute/steps"}
CPP_LAYERS["transport"] = {"base", "compute", "compute/cuda"}
CPP_LAYERS["transport/mpi"] = CPP_LAYERS["transport/tcp"] = CPP_LAYERS["transport"] | {"transport"}
CPP_LAYERS["transport/meeting"] = CPP_LAYERS["transport/tcp"] | {"transport/tcp"}
CPP_LAYERS["transport/recovery"] = CPP_LAYERS["transport/meeting"] | {"transport/meeting"}
CPP_LAYERS["transport/node"] = CPP_LAYERS["transport/nccl"] = CPP_LAYERS["transport/mpi"]
CPP_LAYERS["transport/messages"] = CPP_LAYERS["transport/node"] | {"transport/node"}
CPP_LAYERS["collective/call"] = CPP_LAYERS["transport/messages"] | {"transport/messages", "transport/nccl"}
CPP_LAYERS["collective/in_node"] = CPP_LAYERS["collective/call"] | {"collective/call"}
CPP_LAYERS["collective/between"] = CPP_LAYERS["collective/in_node"]
# The part for MPI, a library of its own: nothing includes it.
CPP_LAYERS["collective/mpi"] = CPP_LAYERS["collective/between"] | {"collective/between", "transport/mpi"}
CPP_LAYERS["collective/select"] = CPP_LAYERS["collective/between"] | {"collective/between"}
CPP_LAYERS["collective"] = CPP_LAYERS["collective/select"] | {"collective/select", "collective/in_node"}
CPP_LAYERS["collective/on_device"] = CPP_LAYERS["collective"] | {"collective"}
CPP_LAYERS["engine/calls"] = CPP_LAYERS["collective/on_device"] | {"collective/on_device", "transport/recovery"}
CPP_LAYERS["engine/memory"] = CPP_LAYERS["engine/calls"] | {"engine/calls"}
CPP_LAYERS["engine/update"] = CPP_LAYERS["engine/memory"] | {"engine/memory", "compute/steps"}
CPP_LAYERS["engine/exchange"] = CPP_LAYERS["engine/update"] | {"engine/update"}
CPP_LAYERS["policy"] = {"base"}
CPP_LAYERS["engine/server"] = CPP_LAYERS["engine/exchange"] | {"engine/exchange", "policy"}
CPP_LAYERS["c"] = CPP_LAYERS["bindings"] = CPP_LAYERS["engine/server"] | {"engine/server", "transport/meeting"}
# What stands in for MPI inside jaxlib, a library of its own: nothing includes it.
CPP_LAYERS["jax/mpiabi"] = CPP_LAYERS["engine/calls"] | {"engine/calls", "third_party/mpitrampoline"}

# What runs inside of programs that jaxlib compiles; third_party has what is not ours.
CPP_LAYERS["third_party/xla"] = set()
CPP_LAYERS["jax/ffi"] = CPP_LAYERS["engine/exchange"] | {"engine/exchange", "third_party/xla"}
CPP_LAYERS["bindings"] = CPP_LAYERS["bindings"] | {"jax/ffi"}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>", re.MULTILINE)

# Headers of outside libraries, and the only layers that may know them.
OUTSIDE: dict[str, set[str]] = {
    "pybind11/": {"bindings", "jax"},
    "Python.h": {"bindings"},
    "xla/": {"jax"},
    "cuda": {"compute"},
    "nccl": set(),  # loaded at run time, by declarations of our own
}


def cpp_files(root: Path) -> list[Path]:
    suffixes = {".cpp", ".hpp", ".h", ".cu", ".cuh"}
    folders = (root / "kernels", root / "bindings")
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes)


def cpp_layer(root: Path, path: Path) -> str:
    return path.parent.relative_to(root).as_posix().removeprefix("kernels/")


def include_graph(root: Path) -> dict[str, set[str]]:
    """Return {file: files it includes}, as paths from the root; quoted includes must exist."""
    graph: dict[str, set[str]] = {}
    for path in cpp_files(root):
        included = set()
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            target = (path.parent / name).resolve()
            assert target.is_file(), f"{path} includes {name}, which does not exist"
            included.add(target.relative_to(root.resolve()).as_posix())
        graph[path.relative_to(root).as_posix()] = included
    return graph


# What may know <mpi.h>, itself or through what it includes.
KNOW_MPI = ("kernels/transport/mpi/", "kernels/collective/mpi/")
C_HEADER = "kernels/c/gradientflow.h"  # includes it for programs, where there is one; the core is built without


def wrong_knowledge_of_mpi(root: Path) -> list[str]:
    """Name the files that reach <mpi.h> and should not."""
    graph = include_graph(root)
    texts = {file: (root / file).read_text(encoding="utf-8") for file in graph if file != C_HEADER}
    reaching = {file for file, text in texts.items() if "mpi.h" in SYSTEM_INCLUDE.findall(text)}
    reached: set[str] = set()
    while reaching != reached:
        reached = set(reaching)
        reaching |= {file for file, included in graph.items() if included & reached}
    return sorted(file for file in reaching if not file.startswith(KNOW_MPI))


def wrong_includes(root: Path) -> list[str]:
    """Name every include that goes up, or to a layer that the table does not have."""
    wrong = []
    for file, included in include_graph(root).items():
        layer = cpp_layer(root, root / file)
        allowed = CPP_LAYERS.get(layer)
        if allowed is None:
            wrong.append(f"{file} is in no layer")
            continue
        for target in sorted(included):
            other = cpp_layer(root, root / target)
            if other != layer and other not in allowed:
                wrong.append(f"{file} includes {target}")
        for name in SYSTEM_INCLUDE.findall((root / file).read_text(encoding="utf-8")):
            for header, layers in OUTSIDE.items():
                if name.startswith(header) and layer.split("/")[0] not in layers:
                    wrong.append(f"{file} includes <{name}>")
    return wrong


# ---- Python ----------------------------------------------------------------------------------------------------------

# {layer: what it may import}, itself aside. A module's layer is the longest name here that is the module or a package
# around it.
PYTHON_LAYERS: dict[str, set[str]] = {
    "gradientflow.errors": set(),
    "gradientflow.addresses": set(),
    "gradientflow.annotations": set(),
    "gradientflow.arguments": {"gradientflow.errors"},
    "gradientflow.description": {"gradientflow.errors"},
    "gradientflow.former_names": set(),
    "gradientflow.launcher_variables": set(),
    "gradientflow.mpi_start": {"gradientflow.launcher_variables"},
    "gradientflow._location": {"gradientflow.errors"},
    "gradientflow.mpi_library": {"gradientflow.errors", "gradientflow._location", "gradientflow.mpi_start"},
    "gradientflow._fast_paths": set(),
    "gradientflow.waits": set(),
    "gradientflow.process_stat": set(),
    "gradientflow.blocked_signals": set(),
    "gradientflow.whole_file": set(),
    "gradientflow.trust": {"gradientflow._location"},
    "gradientflow.settings_file": {
        "gradientflow.errors",
        "gradientflow._location",
        "gradientflow.trust",
        "gradientflow.whole_file",
    },
    "gradientflow.recorder": {
        "gradientflow.process_stat",
        "gradientflow.blocked_signals",
        "gradientflow._location",
        "gradientflow.annotations",
        "gradientflow.errors",
        "gradientflow.launcher_variables",
    },
    "gradientflow.config": {"gradientflow.errors", "gradientflow._location", "gradientflow.settings_file"},
    "gradientflow.handle": {"gradientflow.errors", "gradientflow._location", "gradientflow.annotations"},
    "gradientflow.request": {
        "gradientflow.errors",
        "gradientflow._location",
        "gradientflow._fast_paths",
        "gradientflow.annotations",
    },
    "gradientflow.memory": {"gradientflow.errors", "gradientflow._location"},
    "gradientflow.metrics.names": set(),  # with the registry, below what registers its metrics
    "gradientflow.metrics.registry": set(),
    "gradientflow.watch": {
        "gradientflow.process_stat",
        "gradientflow.blocked_signals",
        "gradientflow.errors",
        "gradientflow._location",
        "gradientflow.annotations",
        "gradientflow.metrics.registry",
        "gradientflow.recorder",
    },
    "gradientflow.wires": {"gradientflow.errors", "gradientflow._location"},
    "gradientflow.plain": {"gradientflow.errors", "gradientflow.memory"},
    "gradientflow.meeting": {"gradientflow.errors", "gradientflow._location", "gradientflow.launcher_variables"},
    "gradientflow.launch": {
        "gradientflow.errors",
        "gradientflow._location",
        "gradientflow.annotations",
        "gradientflow.arguments",
        "gradientflow.launcher_variables",
        "gradientflow.meeting",
        "gradientflow.mpi_start",
        "gradientflow.waits",
    },
    "gradientflow.device": {"gradientflow.errors", "gradientflow._location", "gradientflow.memory"},
}
PYTHON_LAYERS["gradientflow.arrays"] = PYTHON_LAYERS["gradientflow.device"] | {
    "gradientflow.device",
    "gradientflow.annotations",
}
PYTHON_LAYERS["gradientflow.communicator"] = set(PYTHON_LAYERS) - {
    "gradientflow.launch",
    "gradientflow.meeting",
    "gradientflow.plain",
}
PYTHON_LAYERS["gradientflow.agreement"] = {"gradientflow.errors", "gradientflow.communicator"}
METRICS = {"gradientflow.metrics.names", "gradientflow.metrics.registry"}
PYTHON_LAYERS["gradientflow.metrics"] = (
    PYTHON_LAYERS["gradientflow.agreement"] | {"gradientflow.agreement", "gradientflow.blocked_signals"} | METRICS
)
PYTHON_LAYERS["gradientflow.policies"] = {
    "gradientflow.errors",
    "gradientflow._location",
    "gradientflow.arguments",
    "gradientflow.description",
    "gradientflow.former_names",
}
PYTHON_LAYERS["gradientflow.mailbox"] = {"gradientflow._location", "gradientflow.communicator"}
PYTHON_LAYERS["gradientflow.machine"] = {"gradientflow._location"}
PYTHON_LAYERS["gradientflow.machine_load"] = {"gradientflow.communicator"}
PYTHON_LAYERS["gradientflow.pools"] = PYTHON_LAYERS["gradientflow.communicator"] | {"gradientflow.communicator"}
PYTHON_LAYERS["gradientflow.server"] = PYTHON_LAYERS["gradientflow.pools"] | {
    "gradientflow.agreement",
    "gradientflow.mailbox",
    "gradientflow.metrics",
    "gradientflow.plain",
    "gradientflow.policies",
    "gradientflow.pools",
    "gradientflow.whole_file",
}
PYTHON_LAYERS["gradientflow.admission"] = {
    "gradientflow._location",
    "gradientflow.agreement",
    "gradientflow.communicator",
    "gradientflow.errors",
    "gradientflow.meeting",
    "gradientflow.waits",
}
PYTHON_LAYERS["gradientflow.job"] = {
    "gradientflow._location",
    "gradientflow.communicator",
    "gradientflow.config",
    "gradientflow.admission",
    "gradientflow.errors",
    "gradientflow.meeting",
    "gradientflow.mpi_library",
    "gradientflow.server",
    "gradientflow.settings_file",
    "gradientflow.watch",
}
PYTHON_LAYERS["gradientflow.joining"] = {
    "gradientflow.communicator",
    "gradientflow.config",
    "gradientflow.admission",
    "gradientflow.errors",
    "gradientflow.job",
    "gradientflow.meeting",
}
# What steps would take on a cluster that need not be there: knows pools, and no strategy.
PYTHON_LAYERS["gradientflow.model"] = PYTHON_LAYERS["gradientflow.pools"] | {
    "gradientflow.machine_load",
    "gradientflow.policies",
    "gradientflow.pools",
}
# The rooms of the strategies, from below.
STRATEGIES = "gradientflow.strategies"
PYTHON_LAYERS[f"{STRATEGIES}.update"] = {"gradientflow.errors", "gradientflow.annotations"}
PYTHON_LAYERS[f"{STRATEGIES}.layout"] = {"gradientflow.errors", "gradientflow.annotations"}
PYTHON_LAYERS[f"{STRATEGIES}.node_weights"] = PYTHON_LAYERS["gradientflow.pools"] | {f"{STRATEGIES}.layout"}
PYTHON_LAYERS[f"{STRATEGIES}.checkpoints"] = {"gradientflow.annotations"}
PYTHON_LAYERS[f"{STRATEGIES}.gradient_memory"] = PYTHON_LAYERS[f"{STRATEGIES}.node_weights"]
PYTHON_LAYERS[f"{STRATEGIES}.options"] = PYTHON_LAYERS["gradientflow.pools"] | {"gradientflow.pools"}
PYTHON_LAYERS[f"{STRATEGIES}.predict"] = PYTHON_LAYERS["gradientflow.pools"] | {
    "gradientflow.model",
    "gradientflow.pools",
    f"{STRATEGIES}.layout",
    f"{STRATEGIES}.update",
}
PYTHON_LAYERS[f"{STRATEGIES}.predict.step_table"] = PYTHON_LAYERS[f"{STRATEGIES}.predict"] | {
    "gradientflow.tables",
    f"{STRATEGIES}.predict",
}
PYTHON_LAYERS[f"{STRATEGIES}.contract"] = PYTHON_LAYERS[f"{STRATEGIES}.predict"] | {
    f"{STRATEGIES}.checkpoints",
    f"{STRATEGIES}.gradient_memory",
    f"{STRATEGIES}.node_weights",
    f"{STRATEGIES}.options",
    f"{STRATEGIES}.predict",
}
PYTHON_LAYERS[f"{STRATEGIES}.exchange"] = PYTHON_LAYERS[f"{STRATEGIES}.contract"] | PYTHON_LAYERS["gradientflow.server"]
PYTHON_LAYERS[f"{STRATEGIES}.exchange"] |= {"gradientflow.server", f"{STRATEGIES}.contract"}
PYTHON_LAYERS[f"{STRATEGIES}.methods"] = PYTHON_LAYERS[f"{STRATEGIES}.exchange"] | {f"{STRATEGIES}.exchange"}
PYTHON_LAYERS[f"{STRATEGIES}.parsing"] = {
    "gradientflow.description",
    "gradientflow.errors",
    "gradientflow.settings_file",
    f"{STRATEGIES}.contract",
    f"{STRATEGIES}.methods",
}
PYTHON_LAYERS[f"{STRATEGIES}.comparison"] = PYTHON_LAYERS[f"{STRATEGIES}.methods"] | {
    "gradientflow.tables",
    f"{STRATEGIES}.methods",
    f"{STRATEGIES}.parsing",
    f"{STRATEGIES}.predict.step_table",
}
PYTHON_LAYERS[STRATEGIES] = PYTHON_LAYERS[f"{STRATEGIES}.methods"] | {
    f"{STRATEGIES}.comparison",
    f"{STRATEGIES}.methods",
    f"{STRATEGIES}.parsing",
}
PYTHON_LAYERS["gradientflow.training"] = PYTHON_LAYERS[STRATEGIES] | {STRATEGIES, "gradientflow.meeting"}
PYTHON_LAYERS["gradientflow.optimizers"] = PYTHON_LAYERS["gradientflow.training"] | {"gradientflow.training"}
PYTHON_LAYERS["gradientflow.paced"] = PYTHON_LAYERS["gradientflow.optimizers"] | {"gradientflow.optimizers"}
# The process group knows of no training: only of communicators.
PROCESS_GROUP = "gradientflow.torch.process_group"
PYTHON_LAYERS["gradientflow.torch.names"] = set()
PYTHON_LAYERS["gradientflow.torch.devices"] = {
    "gradientflow.annotations",
    "gradientflow.errors",
    "gradientflow._location",
}
PYTHON_LAYERS[PROCESS_GROUP] = {
    "gradientflow._fast_paths",
    "gradientflow._location",
    "gradientflow.addresses",
    "gradientflow.arguments",
    "gradientflow.communicator",
    "gradientflow.config",
    "gradientflow.errors",
    "gradientflow.job",
    "gradientflow.mailbox",
    "gradientflow.meeting",
    "gradientflow.metrics",
    "gradientflow.metrics.registry",
    "gradientflow.mpi_library",
    "gradientflow.torch.devices",
    "gradientflow.torch.names",
    "gradientflow.waits",
}
PYTHON_LAYERS["gradientflow.torch"] = PYTHON_LAYERS["gradientflow.optimizers"] | {
    "gradientflow.job",
    "gradientflow.optimizers",
    "gradientflow.torch.devices",
    "gradientflow.torch.names",
    PROCESS_GROUP,
}
PYTHON_LAYERS["gradientflow.jax.versions"] = set()
PYTHON_LAYERS["gradientflow.jax"] = PYTHON_LAYERS["gradientflow.training"] | {
    "gradientflow.training",
    "gradientflow.job",
    "gradientflow.meeting",
    "gradientflow.jax.versions",
}
PYTHON_LAYERS["gradientflow"] = PYTHON_LAYERS["gradientflow.torch"] | {"gradientflow.joining", "gradientflow.launch"}
PYTHON_LAYERS["gradientflow.json_option"] = {"gradientflow.errors"}
for module in ("spread", "tables", "terminal"):
    PYTHON_LAYERS[f"gradientflow.{module}"] = set()
PYTHON_LAYERS["gradientflow.netlab"] = {"gradientflow.errors", "gradientflow.launch", "gradientflow.mpi_start"}
PYTHON_LAYERS["gradientflow.bench"] = set(PYTHON_LAYERS)
# A bench is a folder of its own, and knows what all have in common; sparse exchanges are measured beside dense ones.
BENCH_CORE = {"gradientflow.bench.core"}
PYTHON_LAYERS["gradientflow.bench.core"] = PYTHON_LAYERS["gradientflow.bench"]
for room in ("collective", "fusion", "jax", "kernels", "model", "ps", "torch", "train", "zipline"):
    PYTHON_LAYERS[f"gradientflow.bench.{room}"] = PYTHON_LAYERS["gradientflow.bench"] | BENCH_CORE
PYTHON_LAYERS["gradientflow.bench.sparse"] = PYTHON_LAYERS["gradientflow.bench.fusion"] | {
    "gradientflow.bench.fusion",
    "gradientflow.bench.kernels",
}
PYTHON_LAYERS["gradientflow.bench.first"] = PYTHON_LAYERS["gradientflow.bench.train"] | {"gradientflow.bench.train"}
PYTHON_LAYERS["gradientflow.cli"] = {each for each in PYTHON_LAYERS if not each.startswith("gradientflow.bench")}
PYTHON_LAYERS["gradientflow.cli.bench"] = {*PYTHON_LAYERS}  # the one door to the benchmarks
PYTHON_LAYERS["gradientflow.__main__"] = {"gradientflow.cli"}

CORE = "gradientflow._core"  # the compiled module: anybody may load it
FRAMEWORKS = {"torch", "jax", "cupy"}
# The store of torchrun and the files of TensorBoard are PyTorch's; in the last six are peers of the benchmarks.
MAY_IMPORT_FRAMEWORKS = (
    "gradientflow.torch",
    "gradientflow.jax",
    "gradientflow.meeting.torch_store",
    "gradientflow.metrics.tensorboard",
    "gradientflow.bench.core.gloo",
    "gradientflow.bench.jax",
    "gradientflow.bench.kernels.selection",
    "gradientflow.bench.ps.rpc",
    "gradientflow.bench.torch",
    "gradientflow.bench.train",
)


# What reads values by running code: only of processes of one user, through files and sockets of that user.
RUN_CODE = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
MAY_RUN_CODE = (
    *("gradientflow.launch.spawned", "gradientflow.launch.fork_server"),
    "gradientflow.recorder.flight",  # writes for PyTorch's reader, and reads nothing
)


def python_modules(root: Path) -> dict[str, Path]:
    """Return {module name: file}; the folder bench is installed as gradientflow.bench."""
    modules = {}
    for folder, package in ((root / "gradientflow", "gradientflow"), (root / "bench", "gradientflow.bench")):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([package, *parts])
            modules[name.removesuffix(".__init__")] = path
    return modules


def python_layer(module: str) -> str:
    return max((layer for layer in PYTHON_LAYERS if module == layer or module.startswith(f"{layer}.")), key=len)


def imported_names(module: str, path: Path, known: set[str]) -> Iterator[str]:
    """Give the full names of what a module imports; ``from x import y`` is x.y where that is a module, else x."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            outer = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*outer, base] if base else outer)
        for alias in node.names:
            name = f"{base}.{alias.name}"
            yield name if name in known else base


def import_graph(root: Path) -> dict[str, set[str]]:
    modules = python_modules(root)
    known = {*modules, CORE}
    return {name: set(imported_names(name, path, known)) for name, path in modules.items()}


def wrong_imports(root: Path) -> list[str]:
    """Name every import that goes up, and every framework imported outside its place."""
    wrong = []
    for module, imported in import_graph(root).items():
        layer = python_layer(module)
        for name in sorted(imported):
            top = name.split(".")[0]
            if top in RUN_CODE and module not in MAY_RUN_CODE:
                wrong.append(f"{module} imports {name}")
            if top in FRAMEWORKS and not any(
                module == place or module.startswith(f"{place}.") for place in MAY_IMPORT_FRAMEWORKS
            ):
                wrong.append(f"{module} imports {name}")
            if top != "gradientflow" or name == CORE:
                continue
            other = python_layer(name)
            if other != layer and other not in PYTHON_LAYERS[layer]:
                wrong.append(f"{module} imports {name}")
    return wrong


def inner_imports(root: Path) -> dict[str, set[str]]:
    """Return the imports among our own modules."""
    graph = import_graph(root)
    return {module: {name for name in imported if name in graph} for module, imported in graph.items()}


# ---- both ------------------------------------------------------------------------------------------------------------


def find_cycle(graph: Graph) -> list[str]:
    """Return the files or modules of one cycle, or nothing."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = [(start, iter(sorted(graph[start])))]
        path.append(start)
        while stack:
            node, rest = stack[-1]
            target = next((name for name in rest if name not in done and name in graph), None)
            if target is None:
                done.add(node)
                stack.pop()
                path.pop()
            elif target in path:
                return [*path[path.index(target) :], target]
            else:
                path.append(target)
                stack.append((target, iter(sorted(graph[target]))))
    return []


# ---- the repository --------------------------------------------------------------------------------------------------


def test_includes_go_down_only() -> None:
    assert wrong_includes(ROOT) == []


def test_few_files_know_the_header_of_mpi() -> None:
    assert wrong_knowledge_of_mpi(ROOT) == []


def test_there_is_no_include_cycle() -> None:
    graph = include_graph(ROOT)
    assert len(graph) > 30
    assert find_cycle(graph) == []


def test_every_layer_is_there() -> None:
    layers = {cpp_layer(ROOT, path) for path in cpp_files(ROOT)}
    assert layers == set(CPP_LAYERS)


def test_imports_go_down_only() -> None:
    assert wrong_imports(ROOT) == []


def test_there_is_no_import_cycle() -> None:
    graph = inner_imports(ROOT)
    assert {"gradientflow", "gradientflow.communicator", "gradientflow.bench"} <= set(graph)
    assert find_cycle(graph) == []


def test_only_the_command_line_imports_the_benchmarks() -> None:
    for module, imported in import_graph(ROOT).items():
        if not python_layer(module).startswith(("gradientflow.bench", "gradientflow.cli")):
            assert not any(name.startswith("gradientflow.bench") for name in imported), module


def test_nothing_that_runs_code_is_read_by_other_means() -> None:
    for module, path in python_modules(ROOT).items():
        text = path.read_text(encoding="utf-8")
        assert "weights_only=False" not in text, module
        assert "allow_pickle=True" not in text, module


# Which strategy it is, or of which kind, is asked where strategies are written, and nowhere else.
KINDS_OF_STRATEGY = {"CSC", "ChunkSynchronizer", "Dense", "PoolStrategy", "PoolSynchronizer"} | {
    "SparseGradientPool",
    "TopKGradientPool",
}

NAMES_OF_STRATEGIES = set(BY_NAME) - {"auto"}  # which is the default of many other settings


def names_in(tree: ast.AST) -> set[str]:
    """Return the names, the last parts of dotted names, and the texts of an expression."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def questions_of_kind(root: Path) -> list[str]:
    """Name every place outside of the strategies where code asks which one it has."""
    found = []
    for module, path in python_modules(root).items():
        if python_layer(module).startswith((STRATEGIES, "gradientflow.pools")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            asks = False
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                asks = bool(names_in(node.args[1]) & KINDS_OF_STRATEGY)
            elif isinstance(node, ast.Compare):
                asks = any(ast.unparse(each).endswith("strategy.name") for each in (node.left, *node.comparators))
                is_identity = any(isinstance(each, ast.Is | ast.IsNot) for each in node.ops)  # as of types
                asks |= bool(names_in(node) & (NAMES_OF_STRATEGIES | (KINDS_OF_STRATEGY if is_identity else set())))
            elif isinstance(node, ast.match_case):
                asks = bool(names_in(node.pattern) & (NAMES_OF_STRATEGIES | KINDS_OF_STRATEGY))
            elif isinstance(node, ast.Attribute):
                asks = node.attr == "is_sparse" and ast.unparse(node.value).endswith("strategy")
            if asks:
                found.append(f"{module}: {ast.unparse(node)}")
    return found


def test_nobody_asks_which_strategy_it_is() -> None:
    assert questions_of_kind(ROOT) == []


# ---- the checker can fail --------------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


GOOD_CPP = {
    "kernels/base/a.hpp": "#pragma once\n#include <string>\n",
    "kernels/engine/calls/b.cpp": '#include "../../base/a.hpp"\n  #  include "b.hpp"\n',
    "kernels/engine/calls/b.hpp": "",
    "bindings/c.cpp": '#include <pybind11/pybind11.h>\n#include "../kernels/engine/calls/b.hpp"\n',
}


def test_the_checker_accepts_a_good_tree(tmp_path: Path) -> None:
    write(tmp_path, GOOD_CPP)
    assert wrong_includes(tmp_path) == []
    assert find_cycle(include_graph(tmp_path)) == []


@pytest.mark.parametrize(
    ("files", "finding"),
    [
        ({"kernels/base/x.cpp": '#include "../engine/calls/b.hpp"'},
         "kernels/base/x.cpp includes kernels/engine/calls/b.hpp"),
        ({"kernels/compute/x.cu": '#include "../collective/x.hpp"', "kernels/collective/x.hpp": ""},
         "kernels/compute/x.cu includes kernels/collective/x.hpp"),
        ({"kernels/engine/calls/x.cpp": "#include <pybind11/numpy.h>"},
         "kernels/engine/calls/x.cpp includes <pybind11/numpy.h>"),
        ({"kernels/engine/calls/x.cpp": "#include <cuda_runtime.h>"},
         "kernels/engine/calls/x.cpp includes <cuda_runtime.h>"),
        ({"kernels/transport/x.cpp": "#include <nccl.h>"}, "kernels/transport/x.cpp includes <nccl.h>"),
        ({"kernels/engine/calls/x.cpp": '#include "../../../bindings/x.hpp"', "bindings/x.hpp": ""},
         "kernels/engine/calls/x.cpp includes bindings/x.hpp"),
        ({"kernels/transport/node/x.cpp": '#include "../messages/x.hpp"', "kernels/transport/messages/x.hpp": ""},
         "kernels/transport/node/x.cpp includes kernels/transport/messages/x.hpp"),
        ({"kernels/extra/x.hpp": ""}, "kernels/extra/x.hpp is in no layer"),
    ],
)  # fmt: skip
def test_the_checker_finds_bad_includes(tmp_path: Path, files: dict[str, str], finding: str) -> None:
    write(tmp_path, {**GOOD_CPP, **files})
    assert wrong_includes(tmp_path) == [finding]


def test_the_checker_finds_a_way_to_the_header_of_mpi(tmp_path: Path) -> None:
    files = {
        "kernels/transport/mpi/x.hpp": "#include <mpi.h>",
        "kernels/collective/call/x.hpp": '#include "../../transport/mpi/x.hpp"',
        "kernels/engine/calls/x.cpp": '#include "../../collective/call/x.hpp"',
        "kernels/collective/mpi/mpi_collective.cpp": '#include "../../transport/mpi/x.hpp"',
    }
    write(tmp_path, {**GOOD_CPP, **files})
    assert wrong_knowledge_of_mpi(tmp_path) == ["kernels/collective/call/x.hpp", "kernels/engine/calls/x.cpp"]


def test_the_checker_finds_an_include_cycle(tmp_path: Path) -> None:
    cycle = {f"kernels/base/{name}.hpp": f'#include "{after}.hpp"' for name, after in ("pq", "qr", "rp")}
    write(tmp_path, {**GOOD_CPP, **cycle})
    assert find_cycle(include_graph(tmp_path)) == [f"kernels/base/{name}.hpp" for name in "pqrp"]


GOOD_PYTHON = {
    "gradientflow/__init__.py": "from . import errors\nfrom .communicator import Communicator\n",
    "gradientflow/errors.py": "",
    "gradientflow/_location.py": "def f():\n    from gradientflow import _core\n    from .errors import E\n",
    "gradientflow/communicator.py": "from .errors import E\n",
    "gradientflow/pools/base.py": "import numpy\nfrom gradientflow.communicator import Communicator\n",
    "gradientflow/torch/optimizer.py": "import torch\nfrom ..pools import P\n",
    "bench/__init__.py": "",
    "bench/core/gloo.py": "import torch.distributed as dist\n",
    "bench/fusion/plan.py": "from ..core.gloo import GlooPeer\n",
    "gradientflow/cli/bench.py": "from gradientflow.bench.core import gloo\n",
    "gradientflow/cli/__init__.py": "",
}


def test_the_checker_accepts_good_modules(tmp_path: Path) -> None:
    write(tmp_path, GOOD_PYTHON)
    assert wrong_imports(tmp_path) == []
    assert find_cycle(inner_imports(tmp_path)) == []


@pytest.mark.parametrize(
    ("file", "text", "imported"),
    [
        ("gradientflow/errors.py", "from . import _location", "gradientflow._location"),
        ("gradientflow/handle.py", "from .communicator import C", "gradientflow.communicator"),
        ("gradientflow/memory.py", "def f():\n    import gradientflow.pools.base", "gradientflow.pools.base"),
        ("gradientflow/pools/base.py", "from gradientflow.bench.core import gloo", "gradientflow.bench.core.gloo"),
        (
            "gradientflow/cli/doctor/check.py",
            "from gradientflow.bench.core import gloo",
            "gradientflow.bench.core.gloo",
        ),
        ("gradientflow/pools/base.py", "import torch", "torch"),
        ("gradientflow/pools/base.py", "try:\n    import jax.numpy\nexcept ImportError: pass", "jax.numpy"),
        ("bench/plan.py", "from cupy import array", "cupy"),
        ("gradientflow/pools/base.py", "from pickle import loads", "pickle"),
        ("bench/plan.py", "from gradientflow.cli import main", "gradientflow.cli"),
        ("bench/core/plan.py", "from gradientflow.bench.fusion import plan", "gradientflow.bench.fusion.plan"),
        ("bench/train/plan.py", "from ..fusion.plan import parse", "gradientflow.bench.fusion.plan"),
        ("gradientflow/config.py", "import gradientflow as gf", "gradientflow"),
        (
            "gradientflow/communicator.py",
            "from .errors import E\nif TYPE_CHECKING:\n    from .pools import P",
            "gradientflow.pools",
        ),
    ],
)
def test_the_checker_finds_bad_imports(tmp_path: Path, file: str, text: str, imported: str) -> None:
    write(tmp_path, {**GOOD_PYTHON, file: text})
    module = file.removesuffix(".py").replace("/", ".")
    importer = module if module.startswith("gradientflow.") else f"gradientflow.{module}"
    assert wrong_imports(tmp_path) == [f"{importer} imports {imported}"]


@pytest.mark.parametrize(
    "question",
    [
        *("isinstance(x, CSC)", "x.strategy.is_sparse", "isinstance(x, A | SparseGradientPool)"),
        *("x.strategy.name == 'mine'", "x == 'csc'", "x in ('csc', 'other')", "type(x) is strategies.CSC"),
        *("isinstance(x, (int, strategies.Dense))", "case CSC():\n    pass", "case 'dense':\n    pass"),
    ],
)
def test_the_checker_finds_questions_of_kind(tmp_path: Path, question: str) -> None:
    text = "match x:\n" + indent(question, "    ") if question.startswith("case") else question
    places = ("gradientflow/torch/a.py", "bench/train/a.py", "gradientflow/cli/a.py", "gradientflow/strategies/b.py")
    write(tmp_path, dict.fromkeys(places, text))
    rooms = ("gradientflow.cli", "gradientflow.torch", "gradientflow.bench.train")
    assert questions_of_kind(tmp_path) == [f"{room}.a: {question}" for room in rooms]


def test_the_checker_finds_an_import_cycle(tmp_path: Path) -> None:
    write(
        tmp_path,
        {**GOOD_PYTHON, "gradientflow/cli/a.py": "from . import b", "gradientflow/cli/b.py": "from .a import x"},
    )
    assert find_cycle(inner_imports(tmp_path)) == ["gradientflow.cli.a", "gradientflow.cli.b", "gradientflow.cli.a"]
