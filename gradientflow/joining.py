"""Joining a running job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from .admission import Admission
from .communicator import Communicator
from .config import settings
from .errors import MismatchError, PeerError
from .job import admission_at, asked_transport, init
from .meeting import InitArguments, find_plan

# Modules that a training loop imports on first use. The key is a module whose import shows that the program trains.
_LOOPS = {"gradientflow": "gradientflow.optimizers", "gradientflow.torch": "gradientflow.torch.optimizer"}


def join(meet: str | None = None, config: Mapping[str, str] | None = None) -> Communicator:
    """Join a job, even long after its start.

    If `meet` is given, or ``gradientflow run --restart`` has started this process in place of a failed rank, `join`
    waits until the ranks of the job call `Communicator.admit`. The new communicator has these ranks and, behind them,
    this process. The program then sends its state from rank 0 to the joiner. In all other processes, `join` is `init`
    and starts the job. If all ranks wait for admission, for example after all have died, `join` restarts the job.

    Parameters
    ----------
    meet : str, optional
        Address where the ranks of the job met: ``host:port``, several with commas, or ``file:///path``; by default the
        launcher's address. The store there must still exist. GRADIENTFLOW_TOKEN must be the job's token.
    config : Config, optional
        Settings; by default from the environment. Settings that all ranks must share have to equal the job's.

    Returns
    -------
    Communicator
        Its ``recovered_from`` has an entry for each earlier rank, or is None if this call has started the job.

    Raises
    ------
    gradientflow.errors.CommunicationTimeoutError
        If no rank has admitted this process within GRADIENTFLOW_TIMEOUT.
    gradientflow.errors.MismatchError
        If the job has ended, or the version or a setting of this process does not fit the job.
    gradientflow.errors.PeerError
        If the ranks of the job have died meanwhile, or have taken this process for dead.
    """
    chosen = settings(config)
    if meet is not None:
        plan = find_plan({}, InitArguments(meet=meet, rank=0, size=1), "tcp")
        return _join(admission_at(replace(plan, rank=None, size=None, serves=False), chosen), chosen)
    plan = find_plan(os.environ, None, asked_transport(config))
    if not plan.has_store_server:
        return init(config=config)
    admission, seconds = admission_at(plan, chosen), float(chosen["timeout"])
    end = time.monotonic() + seconds
    while True:
        if plan.replaces and admission.is_running():
            try:
                return _join(admission, chosen)
            except MismatchError:
                if admission.is_running():
                    raise
                end = time.monotonic() + seconds
        try:
            return init(config=config)
        except PeerError:  # a rank died before the job was running, and is restarted
            if time.monotonic() > end or admission.missing_reason():
                raise
            plan = replace(plan, replaces=True)  # the remaining ranks may have met meanwhile


def _join(admission: Admission, chosen: Mapping[str, str]) -> Communicator:
    for imported, needed in _LOOPS.items():  # imported before admission: later, the job's ranks would wait for it
        if imported in sys.modules:
            import_module(needed)
    made = Communicator(admission.join(chosen), chosen)
    made._admission = admission
    return made


__all__ = ["join"]
