"""The public interface of Python: names and signatures are those in docs/api.txt. As a program, writes that file."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "docs" / "api.txt"
RENEW = f"python {Path(__file__).relative_to(ROOT)}"

PARTS = "device errors jax mailbox metrics model optimizers policies server strategies torch training"
INTEGRATIONS = {f"gradientflow.torch.integrations.{name}": name for name in ("lightning", "transformers")}
MODULES = ["gradientflow", *(f"gradientflow.{part}" for part in PARTS.split()), *INTEGRATIONS]
FRAMEWORKS = {"gradientflow.jax": "jax", "gradientflow.torch": "torch", **INTEGRATIONS}


def names_of(module: ModuleType) -> list[str]:
    """Return the public names: `__all__`, or else what the module defines."""
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__)
    return sorted(getattr(module, "__all__", None) or (name for name in own if not name.startswith("_")))


def signature_of(function: object) -> str:
    try:
        text = str(inspect.signature(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # of a class without a constructor of its own
        return "(...)"
    text = re.sub(r"(: |-> |ForwardRef\()(['\"])(.*?)\2", r"\1\3", text)  # annotations are texts
    return re.sub(r"ForwardRef\(([^)]*)\)| at 0x[0-9a-f]+", r"\1", text).removesuffix(" -> None")


@functools.cache
def classes() -> list[object]:
    """Return the public classes that need no framework."""
    modules = [importlib.import_module(name) for name in MODULES if name not in FRAMEWORKS]
    return [getattr(module, name) for module in modules for name in names_of(module)]


def members_of(cls: type) -> Iterator[str]:
    """Yield the public members that the package has defined, and the class does not get from another public class."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base is cls or (base.__module__.startswith("gradientflow") and base not in classes()):
            found.update(vars(base))
    for name, value in sorted(found.items()):
        if name.startswith("_"):
            continue
        function = getattr(value, "__func__", value)  # of a class method or static method
        if isinstance(value, property):
            kind = signature_of(value.fget).rpartition(" -> ")[2]
            yield f"{name}: {kind}{'' if value.fset is None else ', can be set'}"
        elif callable(function):
            yield name + signature_of(function)
        else:
            yield name


def lines_of(name: str) -> Iterator[str]:
    """Yield the part of a module."""
    module = importlib.import_module(name)
    yield f"[{name}]"
    for each in names_of(module):
        value = getattr(module, each)
        if isinstance(value, type):
            bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
            yield f"class {each}({bases})" if bases else f"class {each}"
            if not issubclass(value, BaseException):
                yield f"    {each}{signature_of(value)}"
            yield from (f"    .{member}" for member in members_of(value))
        elif callable(value):
            yield each + signature_of(value)
        else:
            yield each


def text_of(name: str) -> str:
    return "\n".join(lines_of(name))


@pytest.mark.parametrize("name", MODULES)
def test_signatures(name: str) -> None:
    pytest.importorskip(FRAMEWORKS.get(name, "numpy"))
    stored = next((part for part in STORED.read_text().strip().split("\n\n") if part.startswith(f"[{name}]")), "")
    assert text_of(name) == stored, (
        f"the interface of {name} has changed; where that is meant, renew docs/api.txt: {RENEW}"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    STORED.write_text("\n\n".join(map(text_of, MODULES)) + "\n")
