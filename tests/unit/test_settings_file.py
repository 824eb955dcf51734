"""The settings file: where it is looked for, what it may say, and what overrides it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pace import scaled

import gradientflow as gf
from gradientflow import _location
from gradientflow.cli.doctor import command, network, settings
from gradientflow.errors import ArgumentError
from gradientflow.job import asked_transport
from gradientflow.settings_file import (
    NAME,
    VARIABLE,
    SettingsFile,
    _read_once,
    read_settings_file,
    settings_file,
    write_settings_file,
)
from gradientflow.strategies import default_strategy
from gradientflow.whole_file import whole_file

EVERYTHING = SettingsFile(
    strategy="dense(wire='float16')",
    settings={"timeout": 31, "ring_bytes": "1MiB", "direct_read": False, "timeline": 'tr"ä.json'},
    link={"latency": 1e-5, "per_byte": 0.0},
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith("GRADIENTFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_location, "FOLDER", tmp_path)
    _read_once.cache_clear()
    yield tmp_path
    _read_once.cache_clear()


def test_what_is_written_is_read(folder: Path) -> None:
    write_settings_file("some.toml", EVERYTHING, ["a remark", "of two\nlines"])
    found = read_settings_file("some.toml")
    assert (found.strategy, found.settings, found.link) == (EVERYTHING.strategy, EVERYTHING.settings, EVERYTHING.link)
    assert os.listdir(folder) == ["some.toml"]


KILLED_AS_IT_WRITES = """
import os
from gradientflow.whole_file import whole_file
with whole_file("state") as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), 9)
"""


def test_a_process_that_is_killed_as_it_writes_a_file_leaves_nothing(folder: Path) -> None:
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
    except OSError as error:
        pytest.skip(f"files of {folder} need names: {error}")
    (folder / "state").write_bytes(b"before")
    killed = subprocess.run([sys.executable, "-c", KILLED_AS_IT_WRITES], check=False, timeout=scaled(60))
    assert (killed.returncode, os.listdir(folder), (folder / "state").read_bytes()) == (-9, ["state"], b"before")


def test_files_are_whole_where_drafts_need_names_and_old_drafts_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # a folder cannot be written to: EISDIR, as of old kernels
    stale, recent, other = folder / "state.7.part", folder / "state.8.part", folder / "states.7.part"
    for draft in (stale, recent, other):
        draft.touch()
    os.utime(stale, (0, 0))
    with whole_file("state") as file:
        file.write(b"whole")
        assert sorted(os.listdir(folder)) == sorted([f"state.{os.getpid()}.part", recent.name, other.name])
    assert sorted(os.listdir(folder)) == ["state", recent.name, other.name]
    assert (folder / "state").read_bytes() == b"whole"


def test_without_a_file_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_file() == SettingsFile()
    assert repr(default_strategy()) == "dense"
    write_settings_file(NAME, EVERYTHING)
    for word in ("off", "NO", "0"):
        monkeypatch.setenv(VARIABLE, word)
        assert settings_file() == SettingsFile()


def test_the_environment_overrides_the_file_and_a_program_both(monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings_file(NAME, EVERYTHING)
    found = gf.Config()
    assert (found["timeout"], found["direct_read"], found["timeline"]) == ("31", "off", 'tr"ä.json')
    assert repr(default_strategy()) == EVERYTHING.strategy
    monkeypatch.setenv("GRADIENTFLOW_TIMEOUT", "40")
    assert gf.Config()["timeout"] == "40"
    assert gf.Config(timeout=50)["timeout"] == "50"
    monkeypatch.setenv("GRADIENTFLOW_TIMEOUT", "")
    assert gf.Config()["timeout"] == "31"


def test_the_transport_may_be_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings_file(NAME, SettingsFile(settings={"transport": "tcp"}))
    assert asked_transport() == "tcp"
    monkeypatch.setenv("GRADIENTFLOW_TRANSPORT", "mpi")
    assert asked_transport() == "mpi"


def test_it_is_read_once(folder: Path) -> None:
    write_settings_file(NAME, EVERYTHING)
    before = settings_file()
    write_settings_file(NAME, SettingsFile(strategy="lags"))
    assert settings_file() == before


GOES_AWAY = """
import os, sys
import gradientflow
os.chdir("other")
from gradientflow.settings_file import settings_file
print(settings_file().path)
"""


@pytest.mark.parametrize("named", ["", NAME])
def test_a_program_that_goes_to_another_folder_keeps_the_file(folder: Path, named: str) -> None:
    (folder / "other").mkdir()
    for place in (NAME, f"other/{NAME}"):
        write_settings_file(place, EVERYTHING)
    environment = {**os.environ, VARIABLE: named}
    assert python(GOES_AWAY, environment) == str(folder / NAME)


def test_a_folder_that_is_gone_has_no_file() -> None:
    gone = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); "
    assert python(gone + "import gradientflow as gf; gf.Config(); print('right')", dict(os.environ)) == "right"


def python(program: str, environment: dict[str, str]) -> str:
    """Run a program in the current folder, and return what it prints."""
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=scaled(60))
    return found.stdout.strip()


def test_another_file_may_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings_file(NAME, EVERYTHING)
    write_settings_file("other.toml", SettingsFile(strategy="lags"))
    monkeypatch.setenv(VARIABLE, "other.toml")
    assert settings_file().path == folder / "other.toml"
    assert repr(default_strategy()) == "lags"
    monkeypatch.setenv(VARIABLE, "missing.toml")
    with pytest.raises(ArgumentError, match=r"missing\.toml cannot be read"):
        gf.Config()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stratgey = 'dense'", "has stratgey, and a settings file has strategy"),
        ("strategy = 3", "strategy is words such as"),
        ("settings = 3", r"settings is a table, \[settings\], not 3"),
        ("[settings]\ntimeout = [1]", r"\[settings\] timeout is text, a number, true or false"),
        ("[settings]\ntimeout = 'soon'", r"\[settings\] .*timeout.*soon"),
        ("[settings]\ntimeot = 3", r"\[settings\] .*timeot"),
        ("[settings", "cannot be read"),
        pytest.param(f"a = {'[' * 10_000}", "cannot be read: .*recursion", id="nested"),
    ],
)
def test_mistakes_are_named_with_the_file(folder: Path, text: str, sentence: str) -> None:
    (folder / NAME).write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError, match=rf"gradientflow\.toml.*{sentence}"):
        gf.Config()


def test_a_strategy_that_there_is_not_is_named_with_the_file(folder: Path) -> None:
    (folder / NAME).write_text("strategy = 'denes'", encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"gradientflow\.toml: strategy: there is no strategy 'denes'"):
        default_strategy()


def test_a_program_of_pytorch_overrides_the_strategy_with_any_of_its_settings() -> None:
    pytest.importorskip("torch")
    from gradientflow.torch.optimizer import _checked_strategy

    write_settings_file(NAME, SettingsFile(strategy="lags"))
    settings = {"fusion_threshold": "auto", "wire": None, "share": None, "nonfinite": None}
    assert repr(_checked_strategy(None, **settings)) == "lags"
    assert repr(_checked_strategy(None, **{**settings, "wire": "float16"})) == "dense(wire='float16')"


def test_what_is_wrong_in_the_environment_is_not_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings_file(NAME, EVERYTHING)
    monkeypatch.setenv("GRADIENTFLOW_TIMEOUT", "soon")
    with pytest.raises(ArgumentError, match="GRADIENTFLOW_TIMEOUT"):
        gf.Config()


def test_all_ranks_use_it_and_rank_0_says_so_once(folder: Path, mpirun: Callable[..., Any]) -> None:
    write_settings_file("same.toml", SettingsFile(strategy="csc(density=0.5)", settings={"timeout": 31}))
    for rank, (strategy, size) in enumerate([("dense", 2048), ("lags", 1024)]):
        write_settings_file(f"strategy{rank}.toml", SettingsFile(strategy=strategy))
        write_settings_file(f"settings{rank}.toml", SettingsFile(settings={"inline_bytes": size}))
    job = mpirun(2, "settings_file", folder)
    said = "same.toml sets timeout=31, the strategy csc(density=0.5), where the program does not"
    assert job.stderr.count(said) == 1, job.output


# ---- whose it is -----------------------------------------------------------------------------------------------------

CODE = """
from pathlib import Path
from gradientflow.strategies import Dense
Path(__file__).with_name("it has run").touch()
class Own(Dense): pass
"""
NOBODY = 65534


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file belong to another user."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)


def names_code(folder: Path, words: str = "own.py:Own") -> Path:
    (folder / "own.py").write_text(CODE, encoding="utf-8")
    write_settings_file(NAME, SettingsFile(strategy=words))
    return folder / "own.py"


@pytest.mark.parametrize(("mode", "why"), [(0o646, "every user"), (0o664, "the group "), (0o660, "the group ")])
def test_a_file_that_others_may_write_to_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mode: int, why: str
) -> None:
    write_settings_file(NAME, EVERYTHING)
    (folder / NAME).chmod(mode)
    monkeypatch.setattr("gradientflow.trust._is_private", lambda *_: False)
    with pytest.raises(ArgumentError, match=rf"{NAME} can be written to by {why}.*: {VARIABLE}=.* trusts it all"):
        gf.Config()
    monkeypatch.setenv(VARIABLE, NAME)
    assert gf.Config()["timeout"] == "31"


def test_the_group_of_its_owner_alone_may_write_to_a_file(folder: Path) -> None:
    pwd, grp = pytest.importorskip("pwd"), pytest.importorskip("grp")
    write_settings_file(NAME, EVERYTHING)
    found = (folder / NAME).stat()
    if grp.getgrgid(found.st_gid) != (pwd.getpwuid(found.st_uid).pw_name, "x", found.st_gid, []):
        pytest.skip("this user has no group alone")
    (folder / NAME).chmod(0o664)
    assert gf.Config()["timeout"] == "31"


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_of_another_user_is_refused_until_it_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    write_settings_file("target.toml" if is_link else NAME, EVERYTHING)
    if is_link:
        (folder / NAME).symlink_to("target.toml")
        if os.geteuid() != 0:
            pytest.skip("only root gives links away")
        os.lchown(folder / NAME, NOBODY, NOBODY)
    else:
        give_away(folder / NAME, monkeypatch)
    for read in (gf.Config, asked_transport, default_strategy, lambda: read_settings_file(NAME)):
        with pytest.raises(ArgumentError, match=rf"{NAME} belongs to .*, while this process runs as .*{VARIABLE}=off"):
            read()
    assert read_settings_file(NAME, of_anyone=True).link == EVERYTHING.link
    monkeypatch.setenv(VARIABLE, str(folder / NAME))
    assert gf.Config()["timeout"] == "31"
    assert read_settings_file(NAME).strategy == EVERYTHING.strategy


def test_code_runs_in_programs_of_its_folder_or_where_its_file_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names_code(folder)
    with pytest.raises(ArgumentError, match=rf"{NAME} names code, own.py, which runs in programs of this folder only"):
        default_strategy()
    assert not (folder / "it has run").exists()
    with monkeypatch.context() as context:
        context.syspath_prepend(folder)
        assert repr(default_strategy()) == "Own"
    with monkeypatch.context() as context:
        context.setattr(sys.modules["__main__"], "__file__", str(folder / "program.py"), raising=False)
        assert repr(default_strategy()) == "Own"
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")  # its files are found beside it all the same
    monkeypatch.setenv(VARIABLE, NAME)
    assert repr(default_strategy()) == "Own"


def test_code_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = names_code(folder)
    monkeypatch.syspath_prepend(folder)
    if os.geteuid() == 0:
        give_away(code, monkeypatch)
    else:
        code.chmod(0o666)
    with pytest.raises(ArgumentError, match=r"own\.py (belongs to|can be written to by)"):
        default_strategy()
    assert not (folder / "it has run").exists()


def test_doctor_runs_no_code_of_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names_code(folder)
    monkeypatch.syspath_prepend(folder)
    found = {each.name: each.value for each in settings.settings()}
    assert found["strategy"] == f"own.py:Own (from {NAME})"
    assert not (folder / "it has run").exists()


def test_an_argument_runs_no_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names_code(folder, r"ssd_sgd(optimizer='own\x2epy:Own')")
    monkeypatch.setenv(VARIABLE, NAME)
    with pytest.raises(ArgumentError, match=r"there is no optimizer 'own\.py:Own': there are adam, lars, sgd"):
        default_strategy()
    assert not (folder / "it has run").exists()


@pytest.mark.parametrize("name", ["nccl_library", "cuda_library"])
def test_a_settings_file_names_no_library(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_settings_file(NAME, SettingsFile(settings={name: "./evil.so"}))
    sentence = f"{name} names a library, which GRADIENTFLOW_{name.upper()} or the program has to do"
    with pytest.raises(ArgumentError, match=sentence):
        gf.Config()
    write_settings_file(NAME, SettingsFile(settings={name: "auto"}))
    _read_once.cache_clear()
    assert gf.Config()[name] == "auto"


def test_doctor_says_what_is_wrong_with_the_file_and_looks_at_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / NAME).write_text("[settings", encoding="utf-8")
    monkeypatch.setattr(command, "_sections", lambda: (("how ranks would meet", network.meeting), *command._AFTER[-1:]))
    found = CliRunner().invoke(command.doctor, ["--json"])
    report = json.loads(found.stdout)
    assert report["failed"] == ["how ranks would meet", "configuration"], found.output
    assert NAME in report["checks"]["how ranks would meet"][0]["advice"]
