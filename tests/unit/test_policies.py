"""Which pushes are applied together, and who may go on."""

from __future__ import annotations

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_references import DSSPReference, ElasticReference

import gradientflow as gf
from gradientflow._location import core
from gradientflow.description import from_plain, plain_of
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.plain import dump, load
from gradientflow.policies import (
    ASP,
    BSP,
    DSSP,
    SSP,
    Answer,
    ElasticBSP,
    Policy,
    as_policy,
    parse_policies,
    simulate,
)

NOTHING = Answer()


def checked(running: Any, workers: int) -> Any:
    """Return a running policy as a server asks it."""
    return core.checked_policy(running, workers)


class Says(Policy):
    """Answers each event with the next of the answers that it was given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def start(self, workers: int) -> Any:
        return self

    def pushed(self, worker: int, seconds: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    departed = pushed


# ---- descriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (BSP(), "bsp"),
        (ASP(), "asp"),
        (SSP(3), "ssp(staleness=3)"),
        (DSSP(3, 15), "dssp(low=3, high=15)"),
        (DSSP(0, 0, judged="all"), "dssp(low=0, high=0, judged='all')"),
        (ElasticBSP(), "elastic_bsp"),
        (ElasticBSP(1), "elastic_bsp(lookahead=1)"),
    ],
)
def test_a_policy_has_words_that_name_it(policy: Policy, words: str) -> None:
    assert repr(policy) == words
    assert as_policy(words) == policy == as_policy(policy)
    assert hash(as_policy(words)) == hash(policy)
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_policies_that_differ_are_not_equal() -> None:
    assert len({BSP(), ASP(), SSP(1), SSP(2), SSP(2), DSSP(1, 2), ElasticBSP()}) == 6


def test_a_policy_of_a_file_is_named_by_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from gradientflow.policies import Policy\n"
        "class Mine(Policy):\n"
        "    def __init__(self, most): self.most = most\n"
        "    def start(self, workers): return self\n"
    )
    found = parse_policies(f"bsp; {file}:Mine(2)")
    assert [repr(each) for each in found] == ["bsp", "Mine(most=2)"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bps", "there is no policy 'bps': there are asp, bsp, dssp, elastic_bsp, ssp, .*did you mean bsp"),
        ("bsp(3)", "the arguments of bsp are none"),
        ("ssp", "missing a required argument: 'staleness'"),
        ("ssp(-1)", "staleness is 0 or more"),
        ("ssp(1.5)", "staleness is a whole number, not 1.5"),
        ("dssp(3, 2)", "high is 3 or more"),
        ("dssp(3, 4, 'both')", "judged is 'fastest' or 'all', not 'both'"),
        ("elastic_bsp(0)", "lookahead is 1 or more"),
        ("elastic_bsp(1000000000000)", "at most 100000"),
        ("dssp(0, 1000000000000)", "at most 100000"),
        ("", "is no policy in words"),
        (3, "the policy is a int: what is needed is a gradientflow.policies.Policy, or its words"),
        (BSP, "the policy is a BSP"),
    ],
)
def test_what_names_no_policy_is_refused(words: Any, message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        as_policy(words)


@pytest.mark.parametrize("workers", [0, -1, 2**40, "2", 1.0])
def test_workers_are_counted(workers: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="worker"):
        BSP().start(workers)


def test_the_policy_of_another_process_is_one_that_is_known_here() -> None:
    class Own(BSP):
        def __init__(self, rate: float = 1.0) -> None:
            self.rate = rate

    for policy in (BSP(), SSP(3), Own(0.5)):
        found = from_plain(Policy, load(dump(plain_of(policy))))
        assert type(found) is type(policy)
        assert found == policy
    for module, name in (("this", "s"), ("gradientflow.policies.policy", "Answer")):
        with pytest.raises(ArgumentError, match=f"there is no Policy {name} of {module} here: import it before"):
            from_plain(Policy, (module, name, {}))
    assert "this" not in sys.modules


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_answers_have_their_former_name_too() -> None:
    with pytest.warns(DeprecationWarning, match="go_on of Answer is called release now"):
        answer = Answer(go_on=[0])  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"Answer\.go_on is called release now"):
        assert answer.go_on == answer.release == [0]


def test_answers_are_values() -> None:
    answer = gf.policies.Answer(apply=((0, 1),), release=range(1))
    assert answer == Answer(apply=[[0, 1]], release=[0])
    assert answer != Answer(release=[0])
    assert repr(answer) == "Answer(apply=[[0, 1]], release=[0])"
    assert copy.deepcopy(answer) == answer == pickle.loads(pickle.dumps(answer))


@pytest.mark.parametrize(
    "arguments", [{"apply": 1}, {"apply": [0]}, {"apply": [["a"]]}, {"release": [1.0]}, {"release": 2}]
)
def test_answers_are_of_workers(arguments: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        Answer(**arguments)


# ---- BSP and ASP -----------------------------------------------------------------------------------------------------


def test_bsp_applies_one_push_of_each() -> None:
    running = BSP().start(3)
    assert running.pushed(2, 0.0) == NOTHING
    assert running.pushed(0, 1.0) == NOTHING
    assert running.pushed(2, 1.0) == NOTHING  # ahead, without having waited
    assert running.pushed(1, 2.0) == Answer([[0, 1, 2]], [0, 1, 2])
    assert running.departed(0, 3.0) == NOTHING
    assert running.departed(1, 3.0) == Answer([[2]], [2])


def test_asp_applies_each_push_alone() -> None:
    running = ASP().start(2)
    assert running.pushed(1, 0.0) == Answer([[1]], [1])
    assert running.departed(0, 0.0) == NOTHING
    assert running.pushed(1, 0.5) == Answer([[1]], [1])


# ---- SSP, DSSP and ElasticBSP ----------------------------------------------------------------------------------------


def test_dssp_decides_as_in_the_figure_of_the_thesis() -> None:
    """Figure 5.1, worked by hand: of 0 to 4 more iterations of the fastest worker 3 end nearest to a push of the other.

    They push every 10 and every 22 seconds. At 60 s the fast one is 4 ahead. It would push at 60, 70, 80, 90 or 100;
    the slow one at 66, 88, 110, 132 and 154. The nearest are 90 and 88. So it goes on at 60, 70 and 80. At 90 it is 5
    ahead, and 7 are allowed: of 90, 100, 110 and 120 against 110, 132, 154, 176 and 198 the third is nearest: 2 of 0
    to 3 iterations.
    """
    running = DSSP(3, 7).start(2)
    pushes = [(seconds, 0) for seconds in range(10, 110, 10)] + [(seconds, 1) for seconds in (22, 44, 66, 88)]
    for seconds, worker in sorted(pushes):
        assert running.pushed(worker, seconds) == Answer([[worker]], [worker])
    # 7 pushes ahead: of 0 or 1 iteration, 110 is the very time of a push of the slow one.
    assert running.pushed(0, 110) == Answer([[0]], [])


def test_dssp_without_an_interval_waits() -> None:
    running = DSSP(0, 5).start(2)
    assert running.pushed(0, 1.0) == Answer([[0]], [])
    assert running.pushed(1, 2.0) == Answer([[1]], [1, 0])


def draw(rng: np.random.Generator, longest: int) -> list[Any]:
    """Draw how long the iterations of some workers take, sometimes in whole numbers, which tie often."""
    workers = int(rng.integers(1, 5))
    speeds = rng.uniform(1, 4, workers)
    rows = [
        speed * rng.uniform(0.7, 1.3, rng.integers(0, longest) if rng.random() < 0.2 else longest) for speed in speeds
    ]
    return [np.ceil(row) for row in rows] if rng.random() < 0.3 else rows


@pytest.mark.parametrize("seed", range(150))
def test_policies_decide_like_their_references(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = int(rng.integers(0, 5))
    high = low + int(rng.integers(0, 6))
    lookahead = int(rng.integers(1, 6))
    durations = draw(rng, 25)
    pairs: list[tuple[Policy, Policy]] = [
        (SSP(low), DSSPReference(low, low)),
        (DSSP(low, high), DSSPReference(low, high)),
        (DSSP(low, high, "all"), DSSPReference(low, high, "all")),
        (ElasticBSP(lookahead), ElasticReference(lookahead)),
    ]
    for policy, reference in pairs:
        found = simulate(policy, durations, keep_events=True)
        expected = simulate(reference, durations, keep_events=True)
        assert [(*event[:3], event.answer.apply, sorted(event.answer.release)) for event in found.events] == [
            (*event[:3], event.answer.apply, sorted(event.answer.release)) for event in expected.events
        ], policy


def test_staleness_stays_within_its_bound() -> None:
    """Counted when a worker goes on. That somebody always goes on or computes, the simulation itself checks."""
    rng = np.random.default_rng(0)
    reached = {"ssp": 0, "dssp": 0}
    for _ in range(10_000):
        low, more = int(rng.integers(0, 6)), int(rng.integers(0, 8))
        policy: Any = SSP(low) if rng.random() < 0.5 else DSSP(low, low + more, ("fastest", "all")[rng.integers(2)])
        bound = policy.settings.get("high", low)
        found = simulate(policy, draw(rng, 40))
        assert len(found.staleness) - 1 <= bound, policy
        reached[policy.name] += len(found.staleness) - 1 == bound
    assert min(reached.values()) > 500


@pytest.mark.parametrize("policy", ["bsp", "asp", "ssp(2)", "dssp(1, 4)", "dssp(1, 4, 'all')", "elastic_bsp(4)"])
def test_workers_that_do_not_wait_are_answered_too(policy: str) -> None:
    """Each push at most once, which the checks hold; and when all but one have left, whatever that one pushes."""
    rng = np.random.default_rng(1)
    for _ in range(100):
        running = as_policy(policy).start(4)
        pushes, applied, answered = [0] * 4, [0] * 4, [0] * 4
        last = int(rng.integers(4))
        events = [(float(time), int(worker)) for time, worker in zip(range(200), rng.integers(0, 4, 200), strict=True)]
        events += [(200.0, -1 - worker) for worker in range(4) if worker != last]
        events += [(201.0 + time, last) for time in range(40)]
        for time, worker in events:
            answer = running.departed(-1 - worker, time) if worker < 0 else running.pushed(worker, time)
            pushes[worker] += worker >= 0
            for each in [worker for round_ in answer.apply for worker in round_]:
                applied[each] += 1
            for each in answer.release:
                answered[each] += 1
        assert applied == pushes
        assert answered[last] in (pushes[last], pushes[last] - 1)


@pytest.mark.parametrize("policy", ["bsp", "asp", "ssp(2)", "dssp(1, 4)", "dssp(1, 4, 'all')", "elastic_bsp(4)"])
def test_a_worker_that_leaves_does_not_hold_the_others(policy: str) -> None:
    """The first is a hundred times as slow, and leaves after two iterations; as one that dies, in the middle of one."""
    found = simulate(policy, [[100.0, 100.0], *[[1.0, 1.1, 0.9] * 200] * 3])
    assert found.pushes == [2, 600, 600, 600]
    assert found.seconds < 900
    running = as_policy(policy).start(3)
    computing = {1, 2}
    for time in range(8):
        for worker in sorted(computing):
            computing = computing - {worker} | set(running.pushed(worker, time).release)
    assert len(computing | set(running.departed(0, 8.0).release)) == 2


def test_elastic_bsp_waits_less_than_bsp_and_has_barriers() -> None:
    durations = [[speed] * int(220 / speed) for speed in (1.0, 1.3, 1.7, 2.2)]
    bsp, elastic = (simulate(policy, durations, until=200.0) for policy in ("bsp", "elastic_bsp(15)"))
    assert sum(elastic.waited) < sum(bsp.waited) / 2
    assert len(bsp.barriers) == min(bsp.pushes)
    assert 10 < len(elastic.barriers) < 40


def test_dssp_that_judges_all_waits_no_more_than_ssp_on_average() -> None:
    durations = [[speed] * 300 for speed in (1.0, 1.3, 1.7, 2.2)]
    waited = [sum(simulate(SSP(staleness), durations, until=200.0).waited) for staleness in range(3, 16)]
    assert sum(simulate("dssp(3, 15, 'all')", durations, until=200.0).waited) <= sum(waited) / len(waited)


def test_the_policy_of_the_documentation_applies_rounds_of_k() -> None:
    file = Path(__file__).parents[2] / "docs" / "examples" / "k_sync.py"
    found = simulate(f"{file}:KSync(2)", [[1.0] * 6, [1.5] * 4, [10.0] * 2], keep_events=True)
    assert found.pushes == [6, 4, 2]
    rounds = [round_ for event in found.events for round_ in event.answer.apply]
    assert rounds[:3] == [[0, 1]] * 3
    assert sorted(len(round_) for round_ in rounds)[-1] == 2


def test_thousands_of_workers_are_simulated() -> None:
    rng = np.random.default_rng(0)
    found = simulate("dssp(3, 15)", rng.uniform(1, 2, (3000, 20)))
    assert found.pushes == [20] * 3000


def test_a_simulation_tells_what_it_did() -> None:
    found = simulate("bsp", [[1.0, 1.0], [2.0, 3.0]], keep_events=True)
    assert (found.pushes, found.computed, found.waited) == ([2, 2], [2.0, 5.0], [3.0, 0.0])
    assert (found.staleness, found.barriers, found.seconds) == ([4], [2.0, 5.0], 5.0)
    assert found.iterations_per_second == 4 / 5
    assert found.events[1] == (1, 2.0, "push", Answer([[0, 1]], [0, 1]))
    assert [event.kind for event in found.events] == ["push"] * 4 + ["departure"] * 2
    half = simulate("bsp", [[1.0, 1.0], [2.0, 3.0]], until=1.5)
    assert (half.pushes, half.waited, half.seconds) == ([1, 0], [0.5, 0.0], 1.5)


def test_a_policy_that_lets_no_worker_continue_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"no worker continue: at 2.0* s no worker computes, .* wait: 0, 1"):
        simulate(Says(NOTHING, NOTHING), [[1.0], [2.0]])


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worker", "seconds", "message"),
    [
        (2, 1.0, "a push of worker 2 at 1.0* s, but it has workers 0 to 1"),
        (-1, 1.0, "worker -1"),
        (0, 0.5, "the event before was at 1.0"),
        (0, float("nan"), "that is no time"),
        (1, 2.0, "this worker has departed"),
        (0.5, 2.0, "worker is the number of a rank, not 0.5"),
        (0, "soon", "seconds is a number"),
    ],
)
def test_events_that_cannot_be_are_refused(worker: Any, seconds: Any, message: str) -> None:
    running = ASP().start(2)
    running.departed(1, 1.0)
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        running.pushed(worker, seconds)
    assert running.pushed(0, 1.0) == Answer([[0]], [0])  # a wrong event changes nothing


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer([[0, 2]]), "names worker 2, but the workers are 0 to 1"),
        (Answer(release=[7]), "names worker 7"),
        (Answer([[0], [0]]), "applies a push of worker 0, all of whose pushes are applied already"),
        (Answer([[1]]), "applies a push of worker 1"),
        (Answer([[0, 0]]), "worker 0 is twice"),
        (Answer([[1, 0]]), "applies a push of worker 1"),
        (Answer([[]]), "a round of no workers"),
        (Answer(release=[1]), "lets worker 1 go on, which already may"),
        (Answer(release=[0, 0]), "lets worker 0 go on"),
        ([[0]], "answers with a list from pushed: what is needed is a gradientflow.policies.Answer"),
        (None, "answers with a NoneType"),
        (ValueError("too late"), "the policy Says fails in pushed: ValueError: too late"),
    ],
)
def test_answers_that_cannot_be_are_refused(answer: Any, message: str) -> None:
    running = checked(Says(answer, NOTHING).start(2), 2)
    for _ in range(2):  # and at each further event again
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            running.pushed(0, 0.0)


def test_rounds_are_in_ascending_order() -> None:
    running = checked(Says(NOTHING, Answer([[1, 0]])).start(2), 2)
    running.pushed(0, 0.0)
    with pytest.raises(ArgumentError, match=r"worker 0 comes after worker 1: .* ascending order"):
        running.pushed(1, 0.0)


def test_a_policy_in_python_is_asked_from_any_thread() -> None:
    """The simulation gives Python's lock up, and the policy takes it again."""
    durations = [[1.0] * 200, [2.0] * 100]
    expected = simulate("ssp(2)", durations, keep_events=True)
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(simulate, DSSPReference(2, 2), durations, keep_events=True) for _ in range(8)]
    assert all(run.result() == expected for run in runs)


def test_what_interrupts_python_goes_through() -> None:
    running = checked(Says(KeyboardInterrupt()).start(1), 1)
    with pytest.raises(KeyboardInterrupt):
        running.pushed(0, 0.0)


def test_what_was_started_is_checked() -> None:
    with pytest.raises(ArgumentTypeError, match="started as a int, which has no method pushed"):
        checked(3, 2)
    with pytest.raises(ArgumentError, match="started for 3 workers: what is needed is one for 2"):
        checked(BSP().start(3), 2)
