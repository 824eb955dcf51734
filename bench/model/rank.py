"""A rank of a job that measures as told in JSON; rank 0 prints its findings."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import gradientflow as gf
from gradientflow.annotations import JsonObject, JsonValue
from gradientflow.model import computation_of, layers_of
from gradientflow.model.fit import measure
from gradientflow.paced import step_seconds

from ..core.job_turns import MARK
from .lossless import race


def main() -> None:
    """Measure calls, or steps of strategies."""
    told: JsonObject = json.loads(sys.argv[1])
    with gf.init() as comm:
        found: JsonValue
        if told["measure"] == "link":
            found = asdict(measure(comm))
        elif told["measure"] == "auto":
            found = race(comm, computation_of(layers_of(told["model"]), told["step"]))
        else:
            factors = told["stragglers"]
            factor = factors[comm.rank % len(factors)]
            found = []
            for run in told["runs"]:
                computation = computation_of(layers_of(run["model"]), run["step"])
                found.append(step_seconds(comm, run["strategy"], computation, run["steps"], told["blocks"], factor))
        if comm.rank == 0:
            print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
