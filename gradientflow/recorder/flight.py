"""The last calls in the format of PyTorch's flight recorder, which its command ``torchfrtrace`` reads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from gradientflow.annotations import JsonObject

from .entries import POOL
from .private_file import write_privately

_VERSION = "2.10"
_NAMES = {
    "barrier": "barrier",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
}
_DTYPES = {
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float32": "Float",
    "float64": "Double",
    "int8": "Char",
    "uint8": "Byte",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
}
_STATES = {"under way": "started", "ended": "completed", "failed": "started"}


def write_flight_recording(path: Path, report: list[JsonObject]) -> None:
    """Write the collective calls of a report to a pickle file, readable by this user only.

    The names of calls have the prefix ``nccl:``, since ``torchfrtrace`` knows no other libraries.
    """
    head, *lines = report
    groups = {
        each["communicator"]: {
            "name": each["communicator"],
            "desc": each["name"],
            "ranks": str(each["members"]),
        }
        for each in head["communicators"]
        if each["size"] > 1 and not each["communicator"].endswith(POOL)
    }
    entries = [_entry(line, groups) for line in lines if line.get("communicator") in groups and line["kind"] in _NAMES]
    content = {"version": _VERSION, "pg_config": groups, "pg_status": {}, "entries": entries}
    write_privately(path, pickle.dumps(content))


def _entry(line: JsonObject, groups: dict[str, JsonObject]) -> dict[str, Any]:
    group = groups[line["communicator"]]
    sizes = [] if line["dtype"] is None else [[line["count"]]]
    dtypes = [] if line["dtype"] is None else [_DTYPES.get(line["dtype"], line["dtype"])]
    return {
        "record_id": line["call"],
        "pg_id": list(groups).index(line["communicator"]),
        "process_group": (group["name"], group["desc"]),
        "collective_seq_id": line["sequence"],
        "p2p_seq_id": 0,
        "op_id": line["call"],
        "profiling_name": f"nccl:{_NAMES[line['kind']]}",
        "time_created_ns": 0,
        "input_sizes": sizes,
        "input_dtypes": dtypes,
        "output_sizes": sizes,
        "output_dtypes": dtypes,
        "state": _STATES[line["state"]],
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": line["state"] == "ended",
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": [{"name": line["function"], "filename": line["file"], "line": line["line"]}] if line["file"] else [],
    }
