"""Trust in files that decide which code runs: their owners, and the folders of the program."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from . import _location


def why_not_own(path: Path) -> str:
    """Return the reason why another user could change a file, in words that follow its name; empty if none could.

    Files of root are trusted, and so are files writable by a group whose only member is their owner.

    Raises
    ------
    OSError
        If there is no such file.
    """
    found = path.stat()
    for owner in (path.lstat().st_uid, found.st_uid):  # a link has an owner, too
        if owner not in (0, os.geteuid()):
            return f"belongs to {_user(owner)}, while this process runs as {_user(os.geteuid())}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written to by every user"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, found.st_uid):
        return f"can be written to by the group {_group(found.st_gid)}"
    return ""


def is_folder_of_program(folder: Path) -> bool:
    """Return True if the main script lies in a folder, or Python imports from it: its code runs here anyway."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [*sys.path, *([os.path.dirname(script)] if script else [])]
    return folder.resolve() in {(_location.FOLDER / each).resolve() for each in folders}


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _group(number: int) -> str:
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _is_private(group: int, owner: int) -> bool:
    """Return True if a group is the owner's own: it has the owner's name, and no other members."""
    import grp

    try:
        found = grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == _user(owner) and set(found.gr_mem) <= {found.gr_name}


__all__ = ["is_folder_of_program", "why_not_own"]
