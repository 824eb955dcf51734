"""The options of ``gradientflow bench zipline`` as one checked value."""

from __future__ import annotations

from dataclasses import dataclass

from gradientflow.policies import Policy

from ..core.plan import Plan, PlanError, check_choices, check_memory, check_time

EXACT = ("zipline", "zipline_opt", "zipline_opt_bs", "smallest_window")
ALGORITHMS = ("grid_scan", "full_grid_scan", *EXACT)

_BYTES = 100  # bytes of all arrays for a predicted push


@dataclass(frozen=True)
class ZiplinePlan(Plan):
    """One run of ``gradientflow bench zipline``.

    Attributes
    ----------
    workers, lookahead : tuple of int
        The numbers of workers, and of predicted pushes of each; all combinations.
    algorithms : tuple of str
        Names in `ALGORITHMS`.
    policies : tuple of Policy
        The policies whose decisions are timed.
    deciding : int
        The number of workers in these decisions.
    draws : int
        Random instances of each size; a slow algorithm solves fewer.
    seconds : float
        The time to spend on each algorithm and size, roughly.
    """

    workers: tuple[int, ...]
    lookahead: tuple[int, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    policies: tuple[Policy, ...] = ()
    deciding: int = 64
    draws: int = 10
    seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse invalid options, with a sentence that names the remedy."""
        check_choices("--algorithms", self.algorithms, ALGORITHMS)
        check_time(None, self.seconds)
        for option, numbers in (
            ("--workers", self.workers),
            ("--lookahead", self.lookahead),
            ("--deciding", (self.deciding,)),
            ("--draws", (self.draws,)),
        ):
            if not numbers:
                raise PlanError(f"{option} names nothing")
            if min(numbers) < 1:
                raise PlanError(f"{option} needs at least 1, not {min(numbers)}")
        largest = max(self.workers) * max(self.lookahead)
        check_memory(largest * _BYTES, f"{largest} predicted pushes need", "fewer --workers or --lookahead")

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The sizes, workers and lookahead; all algorithms at one size are measured together."""
        return [(workers, lookahead) for lookahead in self.lookahead for workers in self.workers]
