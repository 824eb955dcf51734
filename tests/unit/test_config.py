"""Settings: what they accept, which source wins, what a bad one says, and that the documentation lists them all."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradientflow as gf
from gradientflow import _core, settings_file
from gradientflow.config import Field, fields, unknown_variables
from gradientflow.errors import ArgumentError, GradientFlowError

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"
parse_bytes: Callable[[str], int] = _core.parse_bytes

UNITS = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
UNITS |= {unit + end: UNITS[unit] for unit in "KMGT" for end in ("B", "iB")}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in fields():
        monkeypatch.delenv(field.variable, raising=False)


# ---- sizes -----------------------------------------------------------------------------------------------------------


@given(
    number=st.integers(0, 2**20),
    unit=st.sampled_from(sorted(UNITS)),
    write=st.sampled_from([str, str.lower, str.upper]),
)
def test_sizes(number: int, unit: str, write: Callable[[str], str]) -> None:
    assert parse_bytes(f"{number}{write(unit)}") == number << UNITS[unit]


def test_the_largest_sizes() -> None:
    assert parse_bytes(str(2**64 - 1)) == 2**64 - 1
    assert parse_bytes("16777215T") == 16777215 << 40


NOT_SIZES = [
    "",
    " ",
    "K",
    "-1",
    "+1",
    "1.5M",
    "1 K",
    " 1",
    "1 ",
    "0x10",
    "1e3",
    "ten",
    "1KK",
    "1BB",
    "1IB",
    "1KBB",
    "1P",
]


@pytest.mark.parametrize(
    "text", [*NOT_SIZES, str(2**64), "16777216T", "99999999999999999999G", "\N{FULLWIDTH DIGIT ONE}"]
)
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a size in bytes"):
        parse_bytes(text)


# ---- every setting ---------------------------------------------------------------------------------------------------


def test_fields_are_complete() -> None:
    found = fields()
    assert len({field.name for field in found}) == len(found)
    for field in found:
        assert field.variable == f"GRADIENTFLOW_{field.name.upper()}"
        assert field.unit in (
            "seconds",
            "bytes",
            "ranks",
            "count",
            "choice",
            "file",
            "folder",
            "library",
            "name",
            "list",
        )
        assert field.meaning.endswith(".")
    assert {field.name for field in found} == set(gf.Config())


def test_defaults() -> None:
    assert dict(gf.Config()) == {field.name: field.default for field in fields()}


def test_every_default_is_accepted_as_a_value() -> None:
    for field in fields():
        assert gf.Config(**{field.name: field.default})[field.name] == field.default


GOOD: dict[str, list[tuple[object, str]]] = {
    "timeout": [(30, "30"), (0.5, "0.5"), ("1e2", "100"), (0.000001, "1e-06"), ("86400", "86400")],
    "node_size": [(0, "0"), (8, "8"), ("2147483647", "2147483647")],
    "simd": [("auto", "auto")],
    "direct_read": [(True, "on"), (False, "off"), ("1", "on"), ("0", "off"), ("yes", "on"), ("no", "off"),
                    ("true", "on"), ("false", "off"), ("off", "off")],
    "inline_bytes": [(0, "0"), ("64KiB", "65536"), (100, "100")],
    "staging_bytes": [(4096, "4096"), ("1GiB", str(2**30)), ("1M", "1048576")],
    "direct_read_bytes": [(0, "0"), (1, "1"), ("8MiB", "8388608")],
    "streaming_bytes": [(0, "0"), ("1T", str(2**40))],
    "segment_bytes": [(1024, "1024"), ("63KiB", "64512"), ("1GiB", str(2**30))],
    "window": [(0, "0"), (1, "1"), ("1024", "1024")],
    "stretch_bytes": [(4096, "4096"), ("1GiB", str(2**30)), ("4MiB", "4194304")],
    "doubling_bytes": [(0, "0"), ("1GiB", str(2**30))],
    "ring_bytes": [(0, "0"), (1, "1"), ("1GiB", str(2**30))],
    "host_piece_bytes": [(4096, "4096"), ("1GiB", str(2**30)), ("4MiB", "4194304")],
    "device_slot_bytes": [(4096, "4096"), ("1GiB", str(2**30))],
    "peer_bytes": [(0, "0"), ("1GiB", str(2**30))],
    "nccl_library": [("auto", "auto"), ("off", "off"), ("/opt/lib/libnccl.so.2", "/opt/lib/libnccl.so.2")],
    "cuda_library": [("auto", "auto"), ("lib.so", "lib.so")],
    "progress": [("auto", "auto"), ("thread", "thread"), ("caller", "caller")],
    "watch": [(True, "on"), (False, "off"), ("no", "off")],
    "debug": [(True, "on"), (False, "off"), ("1", "on"), ("no", "off")],
    "timeline": [("off", "off"), ("0", "off"), ("no", "off"), (False, "off"), ("trace.json", "trace.json"),
                 ("/tmp/a b", "/tmp/a b"), ("./on", "./on"), (Path("t/x"), "t/x")],
    "metrics": [("off", "off"), ("no", "off"), ("run.jsonl", "run.jsonl"),
                ("a/b.jsonl,prometheus:9090,tensorboard:t/",) * 2,
                ("prometheus:0.0.0.0:65535", "prometheus:0.0.0.0:65535")],
    "dump": [("auto", "auto"), ("off", "off"), ("no", "off"), (False, "off"), ("/tmp/a b", "/tmp/a b")],
    "transport": [("auto", "auto"), ("mpi", "mpi"), ("tcp", "tcp")],
    "interface": [("auto", "auto"), ("eth1", "eth1"), ("^lo,eth1", "^lo,eth1"),
                  ("10.0.0.0/24", "10.0.0.0/24"), ("fd00::/64", "fd00::/64")],
    "congestion": [("auto", "auto"), ("reno", "reno")],
    "host_timeout": [(3, "3"), (0.5, "0.5"), ("60", "60")],
    "spin": [(0, "0"), (1000000, "1000000")],
    "yields": [(0, "0"), (7, "7")],
}  # fmt: skip

BAD: dict[str, list[object]] = {
    "timeout": [0, -1, "nan", "inf", "soon", "", "1s", "5 "],
    "node_size": [-1, "2.5", "two", "", "2147483648", " 2"],
    "simd": ["sse", "AVX2", "", "best"],
    "direct_read": ["maybe", "", "ON", 2],
    "inline_bytes": [65537, "1MiB", -1, ""],
    "staging_bytes": [0, 4095, "1KiB", 2**30 + 1, -4096, ""],
    "direct_read_bytes": [-1, "much", 1.5],
    "streaming_bytes": ["", "8MBit", "8,0M"],
    "segment_bytes": [0, 1023, 1025, "1000", 1024 + 32, 2**30 + 64, -1024, ""],
    "window": [1025, -1, "2.5", "many", ""],
    "stretch_bytes": [0, 4095, "1KiB", 2**30 + 1, ""],
    "doubling_bytes": [-1, 2**30 + 1, "1T", "little", ""],
    "ring_bytes": [-1, 2**30 + 1, "1.5M", "never", ""],
    "host_piece_bytes": [0, 4095, "1KiB", 2**30 + 1, ""],
    "device_slot_bytes": [0, 4095, 2**30 + 1, "all", ""],
    "peer_bytes": [-1, 2**30 + 1, "few", ""],
    "nccl_library": ["lib/", ""],
    "cuda_library": ["lib/", ""],
    "progress": ["threads", "AUTO", ""],
    "watch": ["maybe", "", 2],
    "debug": ["maybe", "", "loud", 2],
    "timeline": ["traces/", "/", "", "on", "1", "true", "yes"],
    "metrics": [
        "",
        "on",
        "run.json",
        ".jsonl",
        "a/.jsonl",
        "prometheus",
        "prometheus:",
        "prometheus:0",
        "prometheus:65536",
        "prometheus:9090x",
        "tensorboard:",
        "run.jsonl,",
        "run.jsonl,off",
    ],
    "dump": ["", "on", "yes"],
    "transport": ["TCP", "ucx", "", "tcp,mpi"],
    "interface": ["", " ", "eth0 eth1", "eth0\n", "^", "lo,", ",lo", "^^lo", "^auto", "auto,lo", "eth0,^lo"],
    "congestion": ["", "two words", "-1", "a" * 16],
    "host_timeout": [0, -3, "nan", "inf", "3s", ""],
    "spin": [-1, 1.0, ""],
    "yields": ["-5", "x"],
}


@pytest.mark.parametrize("seconds", [1e-7, 0.1, 1 / 3, 1e12])
def test_timeouts_survive_being_written_as_text(seconds: float) -> None:
    """A communicator gets its settings as texts, so the text of a good value must be a good value."""
    config = gf.Config(timeout=seconds)
    assert float(config["timeout"]) == pytest.approx(seconds)
    assert gf.Config(**config) == config


def test_all_settings_are_tried() -> None:
    assert set(GOOD) == set(BAD) == {field.name for field in fields()}


@pytest.mark.parametrize("name", GOOD)
def test_accepted_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, text in GOOD[name]:
        assert gf.Config(**{name: value})[name] == text, (name, value)
        if not isinstance(value, bool):
            monkeypatch.setenv(f"GRADIENTFLOW_{name.upper()}", str(value))
            assert gf.Config()[name] == text, (name, value)


@pytest.mark.parametrize("name", BAD)
def test_refused_values_are_named_with_their_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"GRADIENTFLOW_{name.upper()}"
    for value in BAD[name]:
        with pytest.raises(ArgumentError) as refusal:
            gf.Config(**{name: value})
        assert name in str(refusal.value)
        assert variable in str(refusal.value)
        assert f"'{value}'" in str(refusal.value) or name == "simd"
        with monkeypatch.context() as patch:
            if value != "":  # an empty variable is as good as none
                patch.setenv(variable, str(value))
                with pytest.raises(ArgumentError, match=variable):
                    gf.Config()
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentError, GradientFlowError)


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_the_environment_alone_sets_the_simd_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="set GRADIENTFLOW_SIMD in the environment"):
        gf.Config(simd=level)
    monkeypatch.setenv("GRADIENTFLOW_SIMD", level)
    assert gf.Config()["simd"] == gf.Config(simd=level)["simd"] == level


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in fields():
        monkeypatch.setenv(field.variable, "")
    assert dict(gf.Config()) == {field.name: field.default for field in fields()}


def test_unknown_settings_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="unknown setting 'speed'") as refusal:
        gf.Config(speed="high")
    for field in fields():
        assert field.name in str(refusal.value)


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gf.Config()["staging_bytes"] == "524288"
    monkeypatch.setenv("GRADIENTFLOW_STAGING_BYTES", "1MiB")
    assert gf.Config()["staging_bytes"] == "1048576"
    assert gf.Config(staging_bytes="2MiB")["staging_bytes"] == "2097152"
    assert gf.Config(timeout=5)["staging_bytes"] == "1048576"
    monkeypatch.delenv("GRADIENTFLOW_STAGING_BYTES")
    assert gf.Config()["staging_bytes"] == "524288"


def test_a_config_is_a_fixed_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    config = gf.Config(timeout=7)
    monkeypatch.setenv("GRADIENTFLOW_TIMEOUT", "8")
    assert config["timeout"] == "7"
    assert len(config) == len(list(config)) == len(fields())
    with pytest.raises(KeyError):
        config["speed"]
    with pytest.raises(TypeError):
        config["timeout"] = "9"  # type: ignore[index]
    assert eval(repr(config), {"Config": gf.Config}) == config


# ---- variables that nothing reads -----------------------------------------------------------------------------------


def unknown(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Return what is said where the environment has these variables of ours and no others."""
    for name in [name for name in os.environ if name.startswith("GRADIENTFLOW_")]:
        monkeypatch.delenv(name)
    for name in names:
        monkeypatch.setenv(name, "1")
    return unknown_variables()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("GRADIENTFLOW_TIMEOTU", "GRADIENTFLOW_TIMEOUT"),
        ("GRADIENTFLOW_TIME_OUT", "GRADIENTFLOW_TIMEOUT"),
        ("GRADIENTFLOW_STAGINGBYTES", "GRADIENTFLOW_STAGING_BYTES"),
        ("GRADIENTFLOW_TIMELINES", "GRADIENTFLOW_TIMELINE"),
        ("GRADIENTFLOW_timeout", "GRADIENTFLOW_TIMEOUT"),
    ],
)
def test_a_misspelt_variable_is_told_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    (sentence,) = unknown(monkeypatch, given, "OTHER_TIMEOTU")
    assert given in sentence
    assert sentence.endswith(f"; perhaps {meant} was meant")


def test_a_variable_that_is_like_no_setting_is_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown(monkeypatch, "GRADIENTFLOW_COFFEE_MACHINE") == [
        "the variable GRADIENTFLOW_COFFEE_MACHINE of the environment is no setting of GradientFlow"
    ]


def test_variables_that_something_reads_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the settings, of their file and of the build, and the marks of processes of netlab and of the tests."""
    files = ("setup.py", "gradientflow/netlab/lab.py", "tests/shared/forked_ranks.py", "gradientflow/settings_file.py")
    others = {name for file in files for name in VARIABLE.findall((ROOT / file).read_text(encoding="utf-8"))}
    assert others > {"GRADIENTFLOW_WERROR", "GRADIENTFLOW_NETLAB", "GRADIENTFLOW_TEST_JOB"}
    assert unknown(monkeypatch, *(field.variable for field in fields()), *others) == []


def test_rank_0_warns_once(mpirun: Callable[..., Any]) -> None:
    job = mpirun(2, "unknown_variables", env={"GRADIENTFLOW_TIMEOTU": "5"})
    assert job.stderr.count("GradientFlowWarning") == 1, job.output
    assert "GRADIENTFLOW_TIMEOTU of the environment is no setting" in job.stderr


# ---- the page --------------------------------------------------------------------------------------------------------


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of every table row, without code marks."""
    return [
        [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.lstrip().startswith("|")
    ]


def same_value(field: Field, shown: str) -> bool:
    """Tell whether a page shows a default: as it is, or, for a size, in another unit."""
    if shown == field.default:
        return True
    if field.unit != "bytes":
        return shown.split(" ")[0] == field.default
    try:
        return parse_bytes(re.split(r"[(,;]", shown)[0].replace(" ", "")) == int(field.default)
    except ArgumentError:
        return False


VARIABLE = re.compile(r"GRADIENTFLOW_[A-Z_]*[A-Z]")


def build_variables() -> set[str]:
    """Return the variables that the build reads."""
    return set(VARIABLE.findall((ROOT / "setup.py").read_text(encoding="utf-8")))


def test_the_page_lists_every_setting_with_its_default() -> None:
    rows = table_rows(PAGE.read_text(encoding="utf-8"))
    for field in fields():
        of_field = [row for row in rows if field.variable in row]
        assert len(of_field) == 1, f"{PAGE.name} has {len(of_field)} rows for {field.variable}"
        assert any(same_value(field, cell) for cell in of_field[0]), f"{of_field[0]} does not show {field.default}"


def test_the_page_lists_nothing_else() -> None:
    text = PAGE.read_text(encoding="utf-8")
    runtime = {field.variable for field in fields()}
    listed = {cell for row in table_rows(text) for cell in row if cell.startswith("GRADIENTFLOW_")}
    assert listed - runtime <= build_variables(), "unknown variables"
    assert runtime <= listed
    named = set(VARIABLE.findall(text))
    assert named == runtime | {settings_file.VARIABLE} | (named & build_variables()), "variables that nothing reads"


def test_no_variable_is_read_behind_the_settings_back() -> None:
    """The core reads the environment in one place, and knows no variables but the documented ones.

    Whether several ranks of NCCL may share a device is said in a variable of NCCL's own, how many processes a launcher
    has started in those of the launchers, which interfaces MPI may use in its own, that names of hosts may come late in
    one of Kubernetes, and where the ranks of a C program meet, and how long tests have it wait, in variables that are
    no settings.
    """
    others = {f"GRADIENTFLOW_{name}" for name in ("MEET", "RANK", "SIZE", "TOKEN", "PATIENCE")}
    variables: set[str] = set()
    readers = []
    for source in sorted((ROOT / "kernels").rglob("*.[ch]*")) + sorted((ROOT / "bindings").rglob("*.[ch]*")):
        text = source.read_text(encoding="utf-8")
        variables |= set(re.findall(r'"(GRADIENTFLOW_[A-Z_]*[A-Z])"', text))
        if "getenv" in text:
            readers.append(source.relative_to(ROOT).as_posix())
    assert variables == {field.variable for field in fields()} | others
    assert set(readers) <= {
        "kernels/base/config.cpp",
        "kernels/base/waits.cpp",
        "kernels/c/meeting.cpp",
        "kernels/compute/simd.cpp",
        "kernels/collective/on_device/device_group.cpp",
        "kernels/transport/meeting/address.cpp",
        "kernels/transport/meeting/transport_choice.cpp",
        "kernels/transport/mpi/launcher.cpp",
    }


def test_settings_differ_in_type_only() -> None:
    with_numbers: dict[str, Any] = {"timeout": 30, "inline_bytes": 128, "direct_read": False}
    with_texts: dict[str, Any] = {"timeout": "30", "inline_bytes": "128", "direct_read": "off"}
    assert gf.Config(**with_numbers) == gf.Config(**with_texts)
