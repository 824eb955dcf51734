"""The names of all metrics, with their units, types and descriptions, in the order of tables."""

from __future__ import annotations

from typing import Literal, NamedTuple

PREFIX = "gradientflow_"
WINDOW = 100  # steps of a mean


class Metric(NamedTuple):
    """One metric.

    Attributes
    ----------
    name : str
        Name in the form of OpenMetrics: the unit is a suffix, and a counter ends in ``_total``.
    unit : str
        Unit of the values; empty for pure numbers.
    kind : {"gauge", "counter"}
        A counter only grows while its source lives.
    help : str
        Description.
    sources : tuple of str
        Kinds of sources that have it.
    """

    name: str
    unit: str
    kind: Literal["gauge", "counter"]
    help: str
    sources: tuple[str, ...]


_ALL = ("training", "server", "process_group", "jax")
_TRAINING = ("training",)
_EXCHANGES = ("training", "jax")
_MESSAGES = ("training", "process_group", "jax")
_SERVER = ("server",)

METRICS: tuple[Metric, ...] = tuple(
    Metric(PREFIX + name, unit, "counter" if name.endswith("_total") else "gauge", text, sources)
    for name, unit, text, sources in (
        ("steps_total", "steps", "Steps made, or skipped, on this rank.", _EXCHANGES),
        ("dropped_steps_total", "steps", "Iterations without a step: skipped, given up, or lost.", _TRAINING),
        ("step_seconds", "seconds", "Time from the end of the step before to the end of the last step.", _TRAINING),
        ("mean_step_seconds", "seconds", "Mean of step_seconds over the last 100 steps.", _TRAINING),
        ("exposed_seconds", "seconds", "Time for which the last step waited for communication.", _TRAINING),
        ("mean_exposed_seconds", "seconds", "Mean of exposed_seconds over the last 100 steps.", _TRAINING),
        ("exchange_seconds", "seconds", "Time in which exchanges of the last step were under way.", _EXCHANGES),
        ("hidden_ratio", "ratio", "Share of exchange_seconds before the step waited.", _TRAINING),
        ("sent_bytes_total", "bytes", "Bytes that this rank has sent in messages.", _MESSAGES),
        ("step_sent_bytes", "bytes", "Bytes that this rank sent in messages in the last step.", _EXCHANGES),
        ("mean_step_sent_bytes", "bytes", "Mean of step_sent_bytes over the last 100 steps.", _TRAINING),
        ("step_node_bytes", "bytes", "Bytes of the last step's exchanges that passed through node memory.", _EXCHANGES),
        ("sent_bytes_per_second", "bytes per second", "step_sent_bytes over exchange_seconds.", _EXCHANGES),
        ("node_bytes_per_second", "bytes per second", "step_node_bytes over exchange_seconds.", _EXCHANGES),
        ("compression_ratio", "ratio", "Bytes of all gradients over their bytes that were exchanged.", _TRAINING),
        ("gradient_norm", "", "Norm of the gradients with which the last step was made.", _TRAINING),
        ("residual_norm", "", "Norm of the gradient entries that this rank has kept back.", _TRAINING),
        ("participants", "ranks", "Ranks that take part now.", _ALL),
        ("last_rank", "rank", "The rank whose gradients were complete last in the last step.", _TRAINING),
        ("last_rank_lag_seconds", "seconds", "Lag of last_rank behind the median of all other ranks.", _TRAINING),
        ("slowest_rank", "rank", "The rank that came last in the mean over the last 100 steps.", _TRAINING),
        ("slowest_rank_lag_seconds", "seconds", "Mean lag of slowest_rank over the last 100 steps.", _TRAINING),
        ("period_steps", "steps", "Steps from one exchange of the strategy to the next.", _TRAINING),
        ("delay_steps", "steps", "Steps after which the result of an exchange is applied.", _TRAINING),
        ("pushes_total", "pushes", "Pushes of this rank to the servers.", _SERVER),
        ("waited_seconds_total", "seconds", "Time for which this rank waited for pushes and pulls.", _SERVER),
        ("calls_total", "calls", "Collective calls and messages of the process group.", ("process_group",)),
        ("staleness_limit_steps", "steps", "Steps by which a rank may lead the slowest rank.", _TRAINING),
    )
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in METRICS}

__all__ = ["BY_NAME", "METRICS", "PREFIX", "WINDOW", "Metric"]
