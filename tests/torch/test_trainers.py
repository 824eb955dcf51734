"""Hugging Face's Trainer with a strategy. Further trainers are in real/test_trainers.py."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import Job

from gradientflow.launch import module_command

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train_hf_trainer.py"
REASON = "could not import 'transformers', which comes with the extra dev: pip install '.[dev]'"


@pytest.mark.skipif(find_spec("transformers") is None, reason=REASON)
def test_trainer_with_a_strategy(
    process_command: Callable[[Path], list[str]], start_command: Callable[..., Job]
) -> None:
    program = [*process_command(EXAMPLE), "--strategy", "top_k(ratio=16)"]
    run = module_command("gradientflow.cli", ["run", "-n", "2", "--transport", "tcp", "--", *program])
    finished = start_command(run, {}, 100).finish()
    assert finished.returncode == 0, finished.output
    assert "'gradientflow_residual_norm'" in finished.stdout
    accuracy, _, rest = finished.line("accuracy").partition(" ")
    assert rest == "on 2 ranks over gradientflow"
    assert float(accuracy) > 0.8
