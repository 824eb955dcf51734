"""Measurement of ways to average all gradients of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..core.case import Case
from ..core.measure import Steps, Times
from ..core.peers import Peer
from ..core.session import Session
from ..core.shapes import Model
from .columns import FusionResult, summarize_step
from .contestants import FusionContestant, fusion_contestants
from .plan import DTYPE


class FusionSession(Session[Model, FusionContestant, FusionResult]):
    """All ranks average the gradients of models; a block is a model."""

    def place(self, block: Model) -> str:
        """Name a model."""
        return block.title

    def title(self, block: Model) -> str:
        """Name a model for showing progress."""
        return f"fusion {block.title}"

    def case(self, block: Model) -> Case:
        """Give the allreduce of all gradients."""
        return Case("allreduce", 4 * block.parameters, DTYPE, "mean", self.comm.size, self.comm.rank, self.plan.wires)

    def contestants(self, block: Model, case: Case, peers: Sequence[Peer]) -> Iterator[FusionContestant]:
        """Make all contestants."""
        return fusion_contestants(self.comm, case, block, self.plan, peers)

    def parts(self, case: Case, contestant: FusionContestant) -> list[Case]:
        """Give the allreduce of each tensor."""
        return [replace(case, size=tensor.nbytes) for tensor in contestant.tensors]

    def steps(self, case: Case, contestant: FusionContestant, block_length: int) -> Steps:
        """Give steps that write the tensors in turn."""
        return contestant.steps(block_length)

    def check(
        self, block: Model, case: Case, contestants: list[FusionContestant]
    ) -> tuple[list[FusionContestant], list[int]]:
        """Check, and record the bytes that each contestant copies in its first step."""
        found = super().check(block, case, contestants)
        self._copied = {contestant.key: contestant.copied() for contestant in contestants}
        return found

    def result(
        self, block: Model, case: Case, contestant: FusionContestant, wrong: int, times: Times | None
    ) -> FusionResult:
        """Make the result of a contestant."""
        link_seconds = self.outcome.hosts.link_seconds(case, contestant.wire)
        copied = self._copied[contestant.key]
        return summarize_step(case, block, contestant, copied, self.comm.nodes, wrong, times, link_seconds)
