"""Strategies on a parameter server by their words, and the speed model of SSD-SGD."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradientflow import policies
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.strategies import ASGD, DSSP, SSDSGD, SSGD, SSP, ElasticBSP, StepTimes, parse_strategy


def test_words_and_policies() -> None:
    for words, strategy, policy in (
        ("ssgd", SSGD(), policies.BSP()),
        ("asgd(servers=2)", ASGD(servers=2), policies.ASP()),
        ("ssp(staleness=3)", SSP(3), policies.SSP(3)),
        ("dssp(low=3, high=15)", DSSP(3, 15), policies.DSSP(3, 15)),
        ("elastic_bsp(lookahead=20)", ElasticBSP(20), policies.ElasticBSP(20)),
        ("ssd_sgd(k=2, warmup=20, wire='float16')", SSDSGD(2, 20, wire="float16"), policies.BSP()),
    ):
        found = parse_strategy(words)
        assert found == strategy
        assert repr(found) == words
        assert strategy.policy == policy
    assert (SSDSGD(2, 20).profile()[:2], SSGD().profile()[:2]) == ((20, 2), (0, 1))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ssd_sgd(k=3, warmup=500)", "warmup is a positive multiple of k, 3: 501, for example, not 500"),
        ("ssd_sgd(warmup=0)", "warmup is a positive multiple of k, 5: 5, for example, not 0"),
        ("ssd_sgd(k=0)", "k is 1 or more"),
        ("ssd_sgd(local_update='adam')", "local_update is 'glu', 'sgd', 'dc_asgd' or 'none', not 'adam'"),
        ("ssd_sgd(optimizer='lars')", "with 'lars' let local_update be another one"),
        ("ssd_sgd(optimizer='adam')", "with 'adam' let local_update be another one"),
        ("ssgd(optimizer='adam(beta1=1.0)')", "beta1 is from 0 to below 1, not 1.0"),
        ("asgd(optimizer='adam(eps=0)')", "eps is from 1e-37 to 1e37, not 0.0"),
        ("ssd_sgd(loc_lr=-1.0)", "loc_lr is 0 or more"),
        ("ssd_sgd(alpha=1e999)", "alpha is finite"),
        ("ssd_sgd(decay=1.0)", "decay is from 0 to below 1"),
        ("ssd_sgd(epsilon=0.0)", "epsilon is above 0"),
        ("ssgd(wire=float16)", "wire of ssgd is float16: what is needed is a number, a text in quotes"),
        ("ssgd(wire='int8')", "wire is one of float32, float16, bfloat16"),
        ("ssgd(wire='float8_e4m3')", "ssgd sends values one by one, and those of float8_e4m3 share a scale"),
        ("lags(wire='float8_e4m3')", "lags sends values one by one, .* take float32, float16 or bfloat16"),
        ("ssgd(optimizer='sdg')", "did you mean sgd"),
        ("lgas", r"did you mean lags\?"),
        ("csc(densty=0.1)", r"the arguments of csc are density, .*; did you mean density\?"),
        ("lags(density=0.05)", "the arguments of lags are ratio, .*, algorithm$"),
        ("csc(density=(0.1)", r"is no strategy in words, as a \) is missing at its end: they are name"),
        ("asgd(servers=0)", "servers is 1 or more"),
        ("dssp(4, 3)", "high is 4 or more"),
    ],
)
def test_what_does_not_fit_is_refused(words: str, sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        parse_strategy(words)
    with pytest.raises(ArgumentTypeError, match="in words"):
        SSGD(optimizer=3)  # type: ignore[arg-type]


# ---- the speed model -------------------------------------------------------------------------------------------------

SECONDS = st.floats(0.001, 10)


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, st.integers(1, 20))
def test_the_equations_of_the_paper(f: float, b: float, hs: float, rest: float, hb: float, hloc: float, k: int) -> None:
    """As printed: equations 2, 4 and 7, and case 3."""
    hb, hc1 = min(hb, b), rest / 2
    c = hs + rest
    times = StepTimes(f, b, hs, c, hb, hc1, hloc)
    if b - hb > c - hc1:
        assert times.ssgd == pytest.approx(f + b + hc1)
    else:
        assert times.ssgd == pytest.approx(f + c + hb)
        in_second_case = hs >= f + b + hloc
        if in_second_case:
            assert times.case() == 2
            assert times.ssd_sgd(k) == pytest.approx(hs + max(0.0, c + hb - b - hs) / k)
        elif c + hb - f - 2 * b - hloc > 0:
            assert times.case() == 1
            assert times.ssd_sgd(k) == pytest.approx(f + b + hloc + (c + hb - f - 2 * b - hloc) / k)
            assert times.saved(k) == pytest.approx((k - 1) * (c - b + hb - hloc) + f + b)
        else:
            assert times.case() == 3
            assert times.ssd_sgd(k) == pytest.approx(f + b + hloc)
    assert times.ssd_sgd(k + 1) <= times.ssd_sgd(k) + 1e-9
    assert times.ssd_sgd(k) >= times.linear - 1e-9


def test_the_second_case_with_a_push_that_is_half_of_the_communication() -> None:
    """Equation 7, as printed."""
    f, b, c, hb = 0.1, 0.2, 2.0, 0.05
    times = StepTimes(f, b, c / 2, c, hb, 0.5)
    assert times.case() == 2
    for k in (1, 2, 5):
        assert times.saved(k) == pytest.approx(k * f + (k - 1) / 2 * c + (k - 1) * hb + b)


def test_times_that_are_none() -> None:
    with pytest.raises(ArgumentError, match="backward is 0 or more"):
        StepTimes(1.0, -1.0, 1.0, 1.0)
    with pytest.raises(ArgumentError, match="k is 1 or more"):
        StepTimes(1.0, 1.0, 1.0, 1.0).ssd_sgd(0)
