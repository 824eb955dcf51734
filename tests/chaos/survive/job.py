"""One job whose ranks are killed and come back, and whether what the others have in the end is right."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradientflow.launch import module_command, scratch_folder
from gradientflow.launch.ports import free_port
from gradientflow.netlab import Netlab

from .ending import Ending
from .groups import GROUPS
from ranks import rank_command

_RANK_TIMEOUT = 60.0  # seconds: of the ranks' own waits; on a busy machine a process may stand still for 20
_PATIENCE = 150.0
_LINK = "host's link"
_ENDING = 0.6  # seconds: about what ranks go on for once they are told to end
_MOST_UNDONE = 2  # steps, when ranks are lost in the end
_LOST = "are lost with"  # in errors: the weights of a server, and the ranks that had them
_NEVER_GIVEN = "before its weights, with which all begin"  # in errors: rank 0's, when it has died
_NOT_LET_IN = "has let this process in"  # in errors


@dataclass
class Event:
    """Ranks that were ended at once: killed, or their host was cut off.

    Attributes
    ----------
    kind : str
        What happened.
    moment : str
        What the others were doing.
    victims : tuple of int
        The numbers of the processes.
    at : float
        When, by the monotonic clock.
    seconds : float or None
        Until those of the other members that did not die meanwhile had finished a step without them; None if no victim
        was a member.
    """

    kind: str
    moment: str
    victims: tuple[int, ...]
    at: float
    seconds: float | None = None


@dataclass
class Outcome:
    """What has become of a job.

    Attributes
    ----------
    strategy : str
        The name of the group.
    events : list of Event
        What happened to it.
    back : int
        How many processes that were started in place of others have finished a step.
    verdict : str
        "right", "stopped" (all were told that too few are left, or that weights are lost), "hang" or "wrong".
    detail : str
        What is wrong.
    """

    strategy: str
    events: list[Event] = field(default_factory=list)
    back: int = 0
    verdict: str = "right"
    detail: str = ""


@dataclass
class _Life:
    """A process, in the place of a rank of the first communicator."""

    place: int
    process: subprocess.Popen[str]
    said: list[dict[str, Any]] = field(default_factory=list)
    has_been_read: bool = False

    @property
    def members(self) -> list[int]:
        """Those with which it has last finished a step, by rank; none before the first one."""
        return next((said["members"] for said in reversed(self.said) if "members" in said), [])

    @property
    def has_ended(self) -> bool:
        """Whether it has come to its end, or to an error."""
        return self.has_failed or any("checksum" in said for said in self.said)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error."""
        return any("error" in said for said in self.said)


class Job:
    """Processes of `size` ranks, on the hosts of a netlab or on this machine.

    Parameters
    ----------
    size : int
        The number of ranks.
    name : str
        Of the group of strategies: what they run, and how that is checked.
    lab : Netlab, optional
        The hosts, all of whose links are up.
    seed : int
        Of all that is drawn by lot.
    """

    def __init__(self, size: int, name: str, lab: Netlab | None, seed: int) -> None:
        self._random = random.Random(seed)
        self._name, self._group = name, GROUPS[name]
        self._lab = lab
        self._hosts = lab.hosts_of_ranks if lab else ["" for _ in range(size)]
        self._waiting = list(range(size))  # places whose processes are to be started
        self._starts = [0] * size
        self._lives: list[_Life] = []
        self._living, self._cut = set[int](), set[int]()  # numbers
        self._goes_on, self._ends = True, False
        self._hit_late = set[int]()  # numbers of those that were killed while all end
        self._outcome = Outcome(name)

    def run(self, most_events: int) -> Outcome:
        """Kill at random moments, so many times.

        Parameters
        ----------
        most_events : int
            How many times.

        Returns
        -------
        Outcome
            Of the job.
        """
        with scratch_folder() as (folder, _), self._kept_store() as meet:
            self._folder, self._meet = Path(folder), meet
            try:
                for _ in range(most_events):
                    if self._goes_on and not self._weights_are_lost() and not self._cannot_begin():
                        self._pass_some_time()
                        self._hit()
                if self._weights_are_lost():
                    self._end_newcomers()
                elif self._goes_on and not self._cannot_begin():
                    self._start_some(1.0)
                    self._await_all()
                    self._tell_to_end()
                self._await(self._all_have_ended, "ranks do not end")
                self._judge()
            except TimeoutError as error:
                self._outcome.verdict, self._outcome.detail = "hang", f"{error}: {self._lines()}"
            finally:
                self._end()
        self._outcome.back = sum(bool(life.members) for life in self._lives[len(self._hosts) :])
        return self._outcome

    @contextlib.contextmanager
    def _kept_store(self) -> Iterator[str]:
        """Keep the store where ranks meet in a process that is none of them; gives its address."""
        meet = f"{self._lab.launcher_address if self._lab else '127.0.0.1'}:{free_port()}"
        command = module_command("gradientflow.launch.store_server", [meet])
        command = self._lab.command(command) if self._lab else command
        with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
            try:
                yield meet
            finally:
                server.kill()

    # ---- what happens to it --------------------------------------------------------------------------------------

    def _pass_some_time(self) -> None:
        """Wait for a moment: while others recover, while some meet or join, or when all go on."""
        if self._lives and self._random.random() < 0.4:
            time.sleep(self._random.random() ** 2 * 0.03)
            return
        self._start_some(0.8)
        if self._random.random() < 0.5:
            self._await(self._somebody_comes, "processes do not start")
            time.sleep(self._random.random() ** 2 * 0.4)
        else:
            self._await_all()
            time.sleep(self._random.random())

    def _start_some(self, share: float) -> None:
        """Start such a share of the processes that wait for it; all of them until the job stands."""
        for place in self._waiting[:]:
            if not self._members or self._random.random() < share:
                self._waiting.remove(place)
                self._start(place)

    def _start(self, place: int) -> None:
        number = len(self._lives)
        arguments = [str(self._last(number)), str(number), self._name]
        command = rank_command(f"survive.{self._group.program}", arguments)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "GRADIENTFLOW_TIMEOUT": f"{_RANK_TIMEOUT}",
            "GRADIENTFLOW_MEET": self._meet,
            "GRADIENTFLOW_RANK": str(place),
            "GRADIENTFLOW_SIZE": str(len(self._hosts)),
            "GRADIENTFLOW_RESTARTS": str(self._starts[place]),
        }
        words = command
        if self._lab:
            environment.update(self._lab.variables)
            words = self._lab.command([*self._lab.agent, self._hosts[place], f"exec {shlex.join(command)}"])
        life = _Life(place, subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
        self._living.add(number)
        self._lives.append(life)
        self._starts[place] += 1
        threading.Thread(target=_read, args=(life,), daemon=True).start()

    def _last(self, number: int) -> Path:
        """Give the file that tells a process to end."""
        return self._folder / f"last.{number}"

    def _hit(self) -> None:
        """End some ranks; one that has the state is left."""
        kind = self._random.choices(["one rank", "rank 0", "two ranks", _LINK], [3, 2, 2, 4])[0]
        if kind == _LINK and self._lab and not self._cut and not self._ends:
            self._cut_off(self._lab)
            return
        if kind == _LINK or (kind == "two ranks" and self._group.may_lose_weights):
            kind = "one rank"
        going = sorted(number for number in self._going if not self._lives[number].has_ended)
        if not going:
            return
        members = self._members
        have_state = [number for number in going if number in members] or going
        spared = self._random.choice(have_state)
        if len(have_state) == 1:
            going.remove(spared)
        if not going:
            return
        if kind == "rank 0":
            victims = [next((number for number in members if number in going), going[0])]
        else:
            victims = self._random.sample(going, min(1 + (kind == "two ranks"), len(going)))
        if set(have_state) <= set(victims):
            victims.remove(spared)
        self._await_copies(victims)
        moment = self._moment
        pids = [_innermost(self._lives[number].process.pid) for number in victims]
        at = time.monotonic()
        for pid in pids:
            _kill(pid)
        self._living -= set(victims)
        self._hit_late |= set(victims) if self._ends else set()
        self._waiting += [self._lives[number].place for number in victims]
        self._outcome.events.append(Event(kind, moment, tuple(victims), at))

    def _tell_to_end(self) -> None:
        """Tell all to end. In half of the jobs some are killed meanwhile."""
        self._ends = True
        for number in self._living:
            self._last(number).touch()
        if self._group.ends_together and self._random.random() < 0.5:
            time.sleep(self._random.random() * _ENDING)
            self._hit()

    def _cut_off(self, lab: Netlab) -> None:
        """Cut a host off, of which it is known whether the others may go on."""
        self._await_copies(self._members)
        if not (hosts := self._hosts_to_cut()):
            self._start_some(0.8)
            self._await_all()
            hosts = self._hosts_to_cut()
        if not hosts:
            return
        host = self._random.choice(sorted(hosts))
        moment, self._cut, self._goes_on = self._moment, self._on(host), hosts[host]
        self._waiting = [place for place in self._waiting if self._hosts[place] != host]
        self._outcome.events.append(Event(_LINK, moment, tuple(sorted(self._cut)), time.monotonic()))
        lab.take_link_down(int(host.removeprefix("host")), 0)
        if self._goes_on:
            self._await_all()  # with kills before it is noticed, too few might be left

    def _await_copies(self, victims: Sequence[int]) -> None:
        """Wait until ranks have copies of all weights again, if some of these may have weights."""
        if self._group.may_lose_weights and set(victims) & set(self._members):
            self._await_all()  # a step has ended since the last change

    def _hosts_to_cut(self) -> dict[str, bool]:
        """Give the hosts without which the others must go on or must stop, and which of these it is."""
        members = set(self._members)
        found: dict[str, bool] = {}
        for host in {self._hosts[self._lives[number].place] for number in self._living}:
            left = (members & self._living) - self._on(host)
            if 2 * len(left) > len(members | self._living):  # also if one who waits has been let in meanwhile
                found[host] = True
            elif members == self._living and 2 * len(left) == len(members):  # neither part may go on
                found[host] = False
        return found

    def _on(self, host: str) -> set[int]:
        """Give those who live on a host."""
        return {number for number in self._living if self._hosts[self._lives[number].place] == host}

    # ---- how it is -----------------------------------------------------------------------------------------------

    @property
    def _going(self) -> set[int]:
        return self._living - self._cut

    @property
    def _members(self) -> list[int]:
        """The members of the last communicator with which a rank that goes on is known to have finished a step."""
        told = [said for number in self._going for said in self._lives[number].said if "members" in said]
        return max(told, key=lambda said: said["seconds"])["members"] if told else []

    @property
    def _moment(self) -> str:
        if self._ends:
            return "all end"
        if not self._members:
            return "they meet"
        if any(not self._lives[number].members for number in self._going):
            return "some join"
        return "all go on" if self._all_go_on() else "others recover"

    def _somebody_comes(self) -> bool:
        lives = [self._lives[number] for number in self._going]
        return any(life.said and not life.members for life in lives) or self._all_go_on()

    def _all_go_on(self) -> bool:
        lives = [self._lives[number] for number in self._going]
        return self._cannot_begin() or all(life.has_failed or set(life.members) == self._going for life in lives)

    def _weights_are_lost(self) -> bool:
        """Tell whether all that had some have ended with the error that says so."""
        said = [self._lives[number].said[-1] for number in self._going if self._lives[number].members]
        return self._group.may_lose_weights and bool(said) and all(_LOST in each.get("error", "") for each in said)

    def _cannot_begin(self) -> bool:
        """Tell whether rank 0 was killed before a step, some were told that, and nothing else has happened to any."""
        hit = {self._lives[number].place for event in self._outcome.events for number in event.victims}
        if 0 not in hit or any(life.members for life in self._lives):
            return False
        lives = [self._lives[number] for number in self._going]
        errors = [life.said[-1]["error"] for life in lives if life.has_failed]
        expected = all(_NEVER_GIVEN in error or _NOT_LET_IN in error for error in errors)
        return expected and any(_NEVER_GIVEN in error for error in errors)

    def _all_have_ended(self) -> bool:
        lives = [self._lives[number] for number in self._living]
        return all(life.process.poll() is not None and life.has_been_read for life in lives)

    def _await_all(self) -> None:
        self._await(self._all_go_on, "ranks do not go on, or not come in")

    def _await(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(otherwise)
            time.sleep(0.01)

    # ---- what it comes to ----------------------------------------------------------------------------------------

    def _judge(self) -> None:
        outcome = self._outcome
        ends = {number: [{}, *self._lives[number].said][-1] for number in self._living}
        done = {number: end for number, end in ends.items() if "checksum" in end}
        must_go_on = self._going if self._goes_on else set()
        finals = {json.dumps([end["history"], end["steps"], end["checksum"]]) for end in done.values()}
        members = [set(end["members"]) - self._hit_late for end in done.values()]
        if any("checksum" not in end and "error" not in end for end in ends.values()):
            outcome.detail = "a rank ended without a word"
        elif not done and (self._weights_are_lost() or self._cannot_begin()):
            outcome.verdict = "stopped"
        elif not must_go_on <= set(done):
            outcome.detail = "ranks that may go on have not done so"
        elif not set(done) <= must_go_on:
            outcome.detail = "ranks that may not go on have done so"
        elif len(finals) > 1:
            outcome.detail = "ranks have ended with different results"
        elif done:
            # Who has lost a rank in the end may have gone on without those that were past that.
            if any(not each <= set(done) or (each != set(done) and not self._hit_late) for each in members):
                outcome.detail = "those that went on are not the last members"
            elif any(self._lacks_steps(end) for end in done.values()):
                outcome.detail = "ranks have ended before the step on which they have agreed"
            else:
                outcome.detail = self._group.check(Ending(self._folder, len(self._hosts), len(outcome.events), done))
                self._measure()
        else:
            outcome.verdict = "stopped"
        if outcome.detail:
            outcome.verdict, outcome.detail = "wrong", f"{outcome.detail}: {self._lines()}"

    def _lacks_steps(self, end: dict[str, Any]) -> bool:
        """Tell whether a rank, all of which step together, has fewer steps than it may."""
        agreed = self._folder / "end"
        if not end["history"] or not agreed.exists():
            return False
        undone = int(agreed.read_text("utf-8")) - int(end["steps"])
        return not 0 <= undone <= (_MOST_UNDONE if self._hit_late else 0)

    def _measure(self) -> None:
        for event in self._outcome.events:
            seconds, victims = [], set(event.victims)
            for number, life in enumerate(self._lives):
                told = [(said["seconds"] - event.at, set(said["members"])) for said in life.said if "members" in said]
                before = [members for passed, members in told if passed <= 0]
                after = [passed for passed, members in told if passed > 0 and not members & victims]
                if number not in victims and before and before[-1] & victims:
                    seconds += after[:1]  # none if it has died, too
            event.seconds = max(seconds, default=None)

    def _end_newcomers(self) -> None:
        """End those whom nobody will let in."""
        for number in [number for number in self._living if not self._lives[number].members]:
            _kill(_innermost(self._lives[number].process.pid))
            self._living.remove(number)

    def _end(self) -> None:
        for life in self._lives:
            _kill(_innermost(life.process.pid))
            life.process.kill()
            life.process.wait()

    def _lines(self) -> str:
        lives = [f"{number} as rank {life.place}: {life.said}" for number, life in enumerate(self._lives)]
        return "\n".join(["", *map(str, self._outcome.events), *lives])


def _read(life: _Life) -> None:
    assert life.process.stdout is not None
    for line in life.process.stdout:
        life.said.append(json.loads(line))
    life.has_been_read = True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _innermost(pid: int) -> int:
    """Give the process that a chain of launchers has started."""
    while True:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return pid
        if not children:
            return pid
        pid = int(children[0])
