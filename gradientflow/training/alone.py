"""A communicator of one process, on which strategies are bound before or beside the communicator of a job."""

from __future__ import annotations

from collections.abc import Mapping

from gradientflow.communicator import Communicator
from gradientflow.meeting.endpoints import meet_by
from gradientflow.meeting.variables import RankAndSize


def alone(config: Mapping[str, str]) -> Communicator:
    """Return a communicator of this process alone, with the settings of another communicator."""
    settings = {**config, "timeline": "off"}  # the job's rank 0 writes the timeline file
    return Communicator(meet_by(None, RankAndSize(0, 1), settings), settings)


__all__ = ["alone"]
