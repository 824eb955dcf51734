"""Facts of the system about a process."""

from __future__ import annotations

from pathlib import Path


def stat_of(process: int | str) -> list[str]:
    """Return the fields of ``/proc/PROCESS/stat`` behind the name: state, parent, and so on."""
    text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()  # pid (name) state parent ...; the name may hold spaces and parentheses


__all__ = ["stat_of"]
