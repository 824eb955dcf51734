"""Which pushes are applied together, and who may go on."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import gradientflow as gf
from gradientflow._location import load_core
from gradientflow.errors import ArgumentError, ArgumentTypeError
from gradientflow.policies import ASP, BSP, Answer, Policy, as_policy, parse_policies

NOTHING = Answer()


def checked(running: Any, workers: int) -> Any:
    """Return a running policy as a server asks it."""
    return load_core().checked_policy(running, workers)


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
    [(BSP(), "bsp"), (ASP(), "asp")],
)
def test_a_policy_has_words_that_name_it(policy: Policy, words: str) -> None:
    assert repr(policy) == words
    assert as_policy(words) == policy == as_policy(policy)
    assert hash(as_policy(words)) == hash(policy)
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_policies_that_differ_are_not_equal() -> None:
    assert BSP() != ASP()


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
        ("bps", "there is no policy 'bps': there are asp, bsp, .*did you mean bsp"),
        ("bsp(3)", "the arguments of bsp are none"),
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


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_answers_are_values() -> None:
    answer = gf.policies.Answer(apply=((0, 1),), go_on=range(1))
    assert answer == Answer(apply=[[0, 1]], go_on=[0])
    assert answer != Answer(go_on=[0])
    assert repr(answer) == "Answer(apply=[[0, 1]], go_on=[0])"
    assert copy.deepcopy(answer) == answer == pickle.loads(pickle.dumps(answer))


@pytest.mark.parametrize(
    "arguments", [{"apply": 1}, {"apply": [0]}, {"apply": [["a"]]}, {"go_on": [1.0]}, {"go_on": 2}]
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
        (Answer(go_on=[7]), "names worker 7"),
        (Answer([[0], [0]]), "applies a push of worker 0, all of whose pushes are applied already"),
        (Answer([[1]]), "applies a push of worker 1"),
        (Answer([[0, 0]]), "worker 0 is twice"),
        (Answer([[1, 0]]), "applies a push of worker 1"),
        (Answer([[]]), "a round of no workers"),
        (Answer(go_on=[1]), "lets worker 1 go on, which already may"),
        (Answer(go_on=[0, 0]), "lets worker 0 go on"),
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


def test_what_interrupts_python_goes_through() -> None:
    running = checked(Says(KeyboardInterrupt()).start(1), 1)
    with pytest.raises(KeyboardInterrupt):
        running.pushed(0, 0.0)


def test_what_was_started_is_checked() -> None:
    with pytest.raises(ArgumentTypeError, match="started as a int, which has no method pushed"):
        checked(3, 2)
    with pytest.raises(ArgumentError, match="started for 3 workers: what is needed is one for 2"):
        checked(BSP().start(3), 2)
