"""The settings file, ``gradientflow.toml``: defaults that programs and environment variables override."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from functools import cache
from pathlib import Path

from . import _location
from .errors import ArgumentError
from .trust import is_folder_of_program, why_not_own
from .whole_file import whole_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "gradientflow.toml"
VARIABLE = "GRADIENTFLOW_CONFIG_FILE"
_NONE = ("off", "0", "false", "no")
_KINDS = {"strategy": str, "settings": dict, "link": dict}

logger = logging.getLogger("gradientflow")


@dataclass(frozen=True)
class SettingsFile:
    """Contents of a settings file.

    Attributes
    ----------
    path : Path or None
        Path of the file; None if there is no file.
    strategy : str or None
        Words of the strategy for programs that name none.
    settings : mapping of str to str, number or bool
        Settings of communicators, by name.
    link : mapping of str to number
        Costs of the link between nodes; empty if it was not measured.
    """

    path: Path | None = None
    strategy: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)
    link: Mapping[str, float] = field(default_factory=dict, hash=False)

    def unless_in_environment(self) -> dict[str, object]:
        """Return the settings that no environment variable overrides."""
        return {name: value for name, value in self.settings.items() if not os.environ.get(variable_of(name))}

    def check_code(self, file: Path) -> None:
        """Raise unless this program may run a file of code that the settings file names.

        A settings file that happens to be in the current folder must not bring code into programs from elsewhere.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the settings file is neither named by GRADIENTFLOW_CONFIG_FILE nor in the folder of the program, or
            another user could change the file of code.
        """
        assert self.path is not None
        if _is_named(self.path):
            return
        if not is_folder_of_program(self.path.parent):
            raise ArgumentError(
                f"{self.path} names code, {file}, which runs in programs of this folder only; "
                f"{VARIABLE}={self.path} lets it run in all"
            )
        _require_own(self.path.parent / file, self.path)


def variable_of(setting: str) -> str:
    """Return the environment variable of a setting."""
    return f"GRADIENTFLOW_{setting.upper()}"


def _find(named: str) -> Path | None:
    """Return the file that the variable names, else ``gradientflow.toml`` in the starting folder; None if missing."""
    if named:
        return None if named.lower() in _NONE else _location.FOLDER / named
    here = _location.FOLDER / NAME
    return here if here.is_file() else None


def _is_named(path: str | os.PathLike[str]) -> bool:
    """Return True if the variable names this file."""
    named = os.environ.get(VARIABLE, "")
    return bool(named) and _location.FOLDER / named == _location.FOLDER / path


def _require_own(file: Path, settings: Path) -> None:
    """Raise if another user could change a file: the settings file, or a file that it names."""
    try:
        why = why_not_own(file)
    except OSError:
        return  # reading the file raises this error
    if why:
        message = f"{file} {why}: {VARIABLE}={settings} trusts it all the same, and {VARIABLE}=off reads no settings"
        raise ArgumentError(message)


def settings_file() -> SettingsFile:
    """Return the contents of this process's settings file; empty contents if there is no file.

    It is read once, from the folder in which GradientFlow was imported: later changes of the file or of the current
    folder do not affect a running program.

    Raises
    ------
    gradientflow.errors.ArgumentError
        See `read_settings_file`.
    """
    return _read_once(os.environ.get(VARIABLE, ""))


@cache
def _read_once(named: str) -> SettingsFile:
    path = _find(named)
    return SettingsFile() if path is None else read_settings_file(path)


def read_settings_file(path: str | os.PathLike[str], *, of_anyone: bool = False) -> SettingsFile:
    """Return the contents of a settings file.

    Parameters
    ----------
    path : path
        The file.
    of_anyone : bool, default False
        True to accept a file that another user could change and GRADIENTFLOW_CONFIG_FILE does not name. Pass True only
        if such a file can do no harm.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the file cannot be read, has an unknown key or a value of the wrong type, or if another user could change it.
    """
    if not (of_anyone or _is_named(path)):
        _require_own(Path(path), Path(path))
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from error
    for name, value in found.items():
        if name not in _KINDS:
            raise ArgumentError(f"{path} has {name}, and a settings file has strategy, [settings] and [link]")
        if not isinstance(value, _KINDS[name]):
            what = "words such as 'csc(density=0.1)'" if name == "strategy" else f"a table, [{name}]"
            raise ArgumentError(f"{path}: {name} is {what}, not {value!r}")
    for name, value in found.get("settings", {}).items():
        if isinstance(value, dict | list | date | time):
            raise ArgumentError(f"{path}: [settings] {name} is text, a number, true or false, not {value!r}")
    return SettingsFile(Path(path), **found)


def write_settings_file(path: str, contents: SettingsFile, remarks: Sequence[str] = ()) -> None:
    """Write a settings file, replacing an existing one.

    Parameters
    ----------
    path : str
        The file.
    contents : SettingsFile
        Its contents.
    remarks : sequence of str
        Comments at the top.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If the file cannot be written.
    """
    lines = [f"# {line}".rstrip() for remark in remarks for line in remark.splitlines()]
    if contents.strategy is not None:
        lines.append(f"strategy = {_value(contents.strategy)}")
    for name, table in (("settings", contents.settings), ("link", contents.link)):
        if table:
            lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    try:
        with whole_file(path) as file:
            file.write(("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise ArgumentError(f"{path} cannot be written: {error}") from error


@cache
def say_what_holds(found: SettingsFile) -> None:
    """Log, once per process, the values that a settings file sets: a forgotten file would surprise."""
    words = [f"{name}={value!r}" for name, value in found.unless_in_environment().items()]
    words += [f"the strategy {found.strategy}"] if found.strategy else []
    if words:
        logger.warning("%s sets %s, where the program does not", found.path, ", ".join(words))


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


__all__ = [
    "NAME",
    "VARIABLE",
    "SettingsFile",
    "read_settings_file",
    "say_what_holds",
    "settings_file",
    "variable_of",
    "write_settings_file",
]
