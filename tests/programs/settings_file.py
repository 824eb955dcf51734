"""What a settings file sets on all ranks, and the errors of ranks that read different ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from support import raises

import gradientflow as gf
from gradientflow.errors import MismatchError
from gradientflow.settings_file import VARIABLE

FOLDER = Path(sys.argv[1])


def use(name: str) -> None:
    os.environ[VARIABLE] = str(FOLDER / name)


def strategy_on(comm: gf.Communicator, *given: str) -> str:
    training = gf.training.ArrayLoop(comm, [np.zeros(8, np.float32)], *given)
    training.close()
    return repr(training.strategy)


os.environ[VARIABLE] = "off"
with gf.init() as comm:
    rank = comm.rank
    assert comm.describe()["settings_file"] is None
    assert strategy_on(comm) == "dense"

use("same.toml")
with gf.init() as comm:
    facts = comm.describe()
    assert facts["settings_file"] == str(FOLDER / "same.toml")
    assert facts["settings"]["timeout"] == "31"
    assert strategy_on(comm) == "csc(density=0.5)"
    assert strategy_on(comm, "lags") == "lags"
with gf.init(config=gf.Config(timeout=32)) as comm:
    assert comm.describe()["settings"]["timeout"] == "32"

use(f"strategy{rank}.toml")
with gf.init() as comm, raises(MismatchError, "strategy is lags on rank 1 and dense on rank 0"):
    strategy_on(comm)

use(f"settings{rank}.toml")
with raises(MismatchError, "inline_bytes differs between ranks: 2048 on rank 0, 1024 on rank 1"):
    gf.init()
