"""Names that jaxlib looks up in the library that replaces MPI. Nothing here imports JAX."""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Iterator
from pathlib import Path

from gradientflow._location import jax_library

_PREFIXES = (b"MPIABI_", b"MPIXABI_")


def jaxlib_library() -> Path | None:
    """Return the shared object of the installed jaxlib that looks up these names, or None."""
    spec = importlib.util.find_spec("jaxlib")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        if (found := Path(folder, "libjax_common.so")).is_file():
            return found
    return None


def names_in(library: Path) -> set[str]:
    """Return the names of MPItrampoline's interface among the strings of a shared object."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return {name for prefix in _PREFIXES for name in _strings(content, prefix)}


def missing_names(jaxlib: Path) -> list[str]:
    """Return the names that a jaxlib shared object looks up and that GradientFlow's library lacks."""
    return sorted(names_in(jaxlib) - names_in(jax_library()))


def _strings(content: mmap.mmap, prefix: bytes) -> Iterator[str]:
    """Yield every whole string that begins with the prefix and is a name."""
    at = content.find(b"\0" + prefix)
    while at >= 0:
        end = content.find(b"\0", at + 1)
        name = content[at + 1 : end].decode("latin-1")
        if name.isidentifier() and len(name) > len(prefix):
            yield name
        at = content.find(b"\0" + prefix, end)
