from __future__ import annotations

__all__: list[str] = ["count_nonfinite", "dc_step", "follow", "glu_step", "replica_step", "round_step", "sgd_step"]

def count_nonfinite(address: int, dtype: str, count: int, wire: str = "") -> int: ...
def dc_step(
    weights: object,
    mean_squares: object,
    gradient_weights: object,
    gradient: int,
    dtype: str,
    rate: float,
    gradient_scale: float,
    weight_decay: float,
    lambda_0: float,
    decay: float,
    epsilon: float,
) -> None: ...
def follow(masters: object, weights: object) -> None: ...
def glu_step(
    weights: object,
    pre_weights: object,
    gradient: int,
    dtype: str,
    refreshes: bool,
    rate: float,
    gradient_scale: float,
    weight_decay: float,
    alpha: float,
    beta: float,
    global_scale: float,
) -> None: ...
def replica_step(
    weights: object,
    before: object,
    sums: object,
    gradient: int,
    dtype: str,
    rate: float,
    gradient_scale: float,
    weight_decay: float,
) -> bool: ...
def round_step(
    weights: object,
    before: object,
    means: object,
    rate: float,
    sums: object,
    gradient: int,
    dtype: str,
    gradient_scale: float,
    weight_decay: float,
) -> bool: ...
def sgd_step(
    weights: object, gradient: int, dtype: str, rate: float, gradient_scale: float, weight_decay: float
) -> None: ...
