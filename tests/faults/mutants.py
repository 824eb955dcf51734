"""Random mutants: changes of one operator or constant in a line of Python.

The same seed draws the same lines of sources that have changed elsewhere: runs before and after can be compared.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from faults import Fault

_TORCH = "tests/torch/test_torch_promises.py tests/torch/test_optimizer.py tests/torch/test_strategies.py"
_ADMISSION = "tests/ranks/test_restart.py tests/ranks/test_recovery.py"

# The first entry that a file's path begins with names its tests.
_TESTS: list[tuple[str, str]] = [
    ("gradientflow/torch/process_group", "tests/torch/test_process_group.py"),
    ("gradientflow/torch", _TORCH),
    ("gradientflow/jax", "tests/jax"),
    ("gradientflow/launch", "tests/launch"),
    ("gradientflow/meeting", "tests/unit/test_meeting.py tests/unit/test_stores.py tests/ranks/test_meeting.py"),
    ("gradientflow/model", "tests/unit/test_model.py tests/project/test_simulate.py"),
    ("gradientflow/policies", "tests/unit/test_policies.py tests/ranks/test_live_policies.py"),
    ("gradientflow/server", "tests/ranks/test_parameter_server.py tests/ranks/test_served.py"),
    ("gradientflow/strategies/predict", "tests/unit/test_model.py tests/ranks/test_auto.py"),
    (
        "gradientflow/strategies",
        "tests/ranks/test_promises.py tests/unit/test_contract.py tests/ranks/test_own_strategies.py"
        " tests/ranks/test_served.py",
    ),
    (
        "gradientflow/training",
        "tests/ranks/test_promises.py tests/ranks/test_steps.py tests/ranks/test_tensors.py"
        " tests/ranks/test_survival.py tests/unit/test_iteration.py tests/unit/test_membership.py",
    ),
    ("gradientflow/pools", "tests/ranks/test_pool.py tests/ranks/test_sparse_pool.py tests/ranks/test_top_k_pool.py"),
    ("gradientflow/optimizers", "tests/ranks/test_steps.py tests/unit/test_adam_step.py"),
    ("gradientflow/cli", "tests/project/test_cli.py tests/project/test_checks.py tests/project/test_timeline_merge.py"),
    ("gradientflow/admission", _ADMISSION),
    ("gradientflow/joining", _ADMISSION),
    (
        "gradientflow",
        "tests/unit tests/ranks/test_collectives.py tests/ranks/test_async.py tests/ranks/test_mismatch.py",
    ),
    ("bench/train", "tests/bench/test_train.py"),
    ("bench", "tests/bench"),
]

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}


def mutants(root: Path, number: int, seed: int) -> list[Fault]:
    """Draw mutants of the package and the benchmarks: the expressions whose hashes with the seed are the smallest."""
    places = sorted(place for file in _files(root) for place in _places(root, file, seed))
    return [_mutant(root, file, place) for _, file, place in places[:number]]


def _files(root: Path) -> Iterator[Path]:
    for folder in ("gradientflow", "bench"):
        yield from sorted(each for each in (root / folder).rglob("*.py") if not each.parent.is_symlink())


def _places(root: Path, file: Path, seed: int) -> Iterator[tuple[str, Path, int]]:
    """Give each expression that can be changed a hash of its line, file and column, and of equal lines before."""
    source = file.read_text(encoding="utf-8")
    lines, seen = source.splitlines(), Counter[str]()
    for place, node in enumerate(_changes(ast.parse(source))):
        text = f"{seed} {file.relative_to(root)} {node.col_offset} {lines[node.lineno - 1]}"
        yield hashlib.sha256(f"{text} {seen[text]}".encode()).hexdigest(), file, place
        seen[text] += 1


def _changes(tree: ast.Module) -> Iterator[ast.expr]:
    """Find the expressions that can be changed, in the order of the tree: operators, and numbers and truths."""
    for node in ast.walk(tree):
        match node:
            case ast.BoolOp():
                yield node
            case ast.Compare(ops=[first, *_]) if type(first) in _SWAPPED:
                yield node
            case ast.BinOp(op=operator) if type(operator) in _SWAPPED and not _is_text(node):
                yield node
            case ast.Constant(value=value) if type(value) in (int, bool):
                yield node


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(each, ast.JoinedStr | ast.Constant) and not _is_number(each) for each in (node.left, node.right)
    )


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _mutant(root: Path, file: Path, place: int) -> Fault:
    source = file.read_text(encoding="utf-8")
    node = list(_changes(ast.parse(source)))[place]
    old = ast.get_source_segment(source, node) or ""
    if isinstance(node, ast.Compare):
        node.ops[0] = _SWAPPED[type(node.ops[0])]()  # type: ignore[assignment]
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = _SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    new = ast.unparse(node)
    begin = _offset(source, node.lineno, node.col_offset)
    end = f"{node.end_lineno}:{node.end_col_offset}"
    # In parentheses, as the old text may stand on several lines.
    changed = source[:begin] + f"({new})" + source[begin + len(old) :]
    path = file.relative_to(root).as_posix()
    lines = [text.splitlines(keepends=True) for text in (source, changed)]
    patch = "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}"))
    tests = next(tests for prefix, tests in _TESTS if path.startswith(prefix)).split()
    return Fault(f"{path}:{node.lineno}:{node.col_offset}-{end}", f"{' '.join(old.split())} -> {new}", [tests], patch)


def _offset(source: str, line: int, column: int) -> int:
    """Turn a place of `ast`, whose columns count bytes of UTF-8, into a place in the text."""
    lines = source.splitlines(keepends=True)
    within = lines[line - 1].encode()[:column].decode()
    return sum(map(len, lines[: line - 1])) + len(within)
