"""Forwarding of the output of several processes in whole lines, so that lines of ranks do not mix.

Ranks that make the same mistake write equal tracebacks. What a rank writes to standard error from a traceback on is
held for a moment, in which the tracebacks of further ranks come, and equal ones are forwarded once. Nothing is lost,
and the order of a rank's lines stays.

Launchers load this file by its path: it imports nothing of the package, and `tracebacks` from its own folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import queue
import re
import select
import selectors
import signal
import struct
import termios
import threading
import time
import tty
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from . import tracebacks
else:
    import tracebacks

_PROMPT_SECONDS = 0.1  # delay before the beginning of an unfinished line is forwarded
_HELD_SECONDS = 1.0  # time after the last output in which a running rank's traceback is held
_LONGEST_HELD_SECONDS = 1.5  # the same after the traceback's beginning
_MOST_HELD = 1 << 20  # bytes
_ENDED_SECONDS = 2.0  # time in which the last traceback of a rank that has ended is held
_LARGEST_PIPE = 1 << 20  # largest capacity of a pipe of an unprivileged user
_NAMES = {1: "standard output", 2: "standard error"}


@dataclass(eq=False)
class Stream:
    """Output stream of a process, standard output or standard error."""

    target: int  # file descriptor to which the stream is forwarded
    label: bytes = b""  # prefix of each line
    mark: bytes = b""  # prefix of notes, which are not forwarded: a launcher reports its start and failures in them
    due: float = math.inf  # time at which the beginning of an unfinished line is forwarded
    notes: list[bytes] = field(default_factory=list)  # notes received
    rank: int | None = None  # rank that writes the stream, if its tracebacks are compared with those of other ranks
    is_over: bool = False  # the process has ended: the rest of the stream is in the pipe
    ended: threading.Event = field(default_factory=threading.Event)  # set once nothing more is read
    held: bytes = b""  # output from a traceback on, which is held
    release: float = math.inf  # time until which it is held
    _latest_release: float = math.inf
    _begun: list[bytes] = field(default_factory=list)  # pieces of the unfinished last line
    _in_line: bool = False  # the beginning of an unfinished line has been forwarded

    def take(self, data: bytes) -> bytes:
        """Take new data; return the data to forward, in whole lines."""
        lines, newline, rest = data.rpartition(b"\n")
        ended = self._take_pieces() + lines + newline if newline else b""
        if rest:
            self.due = min(self.due, time.monotonic() + _PROMPT_SECONDS)
            self._begun.append(rest)
        return self._labeled(ended)

    def take_begun(self) -> bytes:
        """Return the beginning of an unfinished line, without the beginning of a note."""
        begun = self._take_pieces()
        if self.mark and (note := self._note_in(begun)):
            begun = begun.removesuffix(note)
            self._begun = [note]
        return self._labeled(begun)

    def _note_in(self, begun: bytes) -> bytes:
        """Return the part of an unfinished line from a mark on; the mark itself may be incomplete."""
        _, mark, note = begun.partition(self.mark)
        last = begun.rfind(self.mark[:1])  # no later byte of a mark equals its first byte
        return mark + note or (begun[last:] if last >= 0 and self.mark.startswith(begun[last:]) else b"")

    def _take_pieces(self) -> bytes:
        begun, self._begun, self.due = b"".join(self._begun), [], math.inf
        return begun

    def _labeled(self, data: bytes) -> bytes:
        if self.mark and self.mark in data:
            note = re.compile(re.escape(self.mark) + rb"(.*)\n")
            self.notes += note.findall(data)
            data = note.sub(b"", data)
            _wake_launcher()
        return self.labeled(self._without_held(data))

    def _without_held(self, data: bytes) -> bytes:
        """Hold data from a traceback on; return the data before it."""
        if self.rank is None or not data:
            return data
        if not self.held:
            begin = tracebacks.begin_of_traceback(data)
            if begin < 0:
                return data
            self._latest_release = time.monotonic() + _LONGEST_HELD_SECONDS
            data, self.held = data[:begin], data[begin:]
        else:
            data, self.held = b"", self.held + data
        self.release = min(time.monotonic() + _HELD_SECONDS, self._latest_release)
        if len(self.held) > _MOST_HELD:
            self.release = time.monotonic()
        return data

    def take_held(self) -> bytes:
        """Return the output that was held, and hold it no longer."""
        held, self.held, self.release = self.held, b"", math.inf
        return held

    def labeled(self, data: bytes) -> bytes:
        """Return data with the label before each line."""
        if not self.label or not data:
            return data
        labeled = data[:-1].replace(b"\n", b"\n" + self.label) + data[-1:]
        was_in_line, self._in_line = self._in_line, not data.endswith(b"\n")
        return labeled if was_in_line else self.label + labeled


class Output:
    """Forwarder of streams, in a thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._streams: dict[int, Stream] = {}  # streams by their pipe
        self._compared: list[Stream] = []  # streams whose tracebacks are compared
        self._lock = threading.Lock()  # of `_compared`: a rank may be started again while others are compared
        self._shown: dict[bytes, set[int]] = {}  # ranks by the hash of the traceback that was shown for them
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()  # the launcher's own sentences
        self._failed: set[int] = set()  # targets with a failed write
        self._end, self._end_input = os.pipe()
        self._selector.register(self._end, selectors.EVENT_READ)
        self._is_finishing = False
        self.has_ended = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def pipe_to(self, stream: Stream) -> int | None:
        """Return a new pipe to an output of this process; None for a terminal that needs no pipe.

        In place of a pipe to a terminal it is a terminal itself: programs write to it line by line, with colors.
        """
        is_terminal = os.isatty(stream.target)
        if is_terminal and not (stream.label or stream.mark):
            return None
        read, write = _terminal_like(stream.target, len(stream.label)) if is_terminal and stream.label else os.pipe()
        self.follow(read, stream)
        return write

    def follow(self, pipe: int, stream: Stream) -> None:
        """Forward a stream from the reading end of a pipe."""
        self._streams[pipe] = stream
        if stream.rank is not None:
            with self._lock:
                self._compared.append(stream)
        self._selector.register(pipe, selectors.EVENT_READ)

    def start(self) -> None:
        """Start the thread; called once all processes have been started."""
        self._thread.start()

    def end(self, stream: Stream) -> None:
        """Read the rest of a stream whose process has ended; SIGCHLD comes once all of it is read."""
        if not stream.is_over:
            stream.is_over = True
            os.write(self._end_input, b".")

    def finish(self) -> None:
        """Begin to stop; called once the processes have ended. Later output of processes left behind is dropped.

        SIGCHLD comes once the thread has stopped.
        """
        if not self._is_finishing:
            self._is_finishing = True
            os.close(self._end_input)

    def say(self, sentence: str) -> None:
        """Write a sentence of the launcher to standard error, after the tracebacks that are held."""
        self._said.put(sentence)
        if self._is_finishing:
            self._pass_on_said()
        else:
            os.write(self._end_input, b".")

    @property
    def is_lost(self) -> bool:
        """True if some output could not be forwarded."""
        return bool(self._failed)

    def _pass_on(self) -> None:
        try:
            while self._pass_on_what_comes():
                pass
            for pipe, stream in list(self._streams.items()):
                self._pass_on_rest(pipe, stream)
            self._pass_on_held(is_end=True)
        finally:
            self.has_ended = True
            _wake_launcher()

    def _pass_on_what_comes(self) -> bool:
        """Wait for output and forward it; return False once `finish` was called."""
        streams = [*self._streams.values(), *self._compared]
        due = min((min(stream.due, stream.release) for stream in streams), default=math.inf)
        timeout = None if due == math.inf else max(0.0, due - time.monotonic())
        ready = [key.fd for key, _ in self._selector.select(timeout)]
        for pipe in ready:
            if stream := self._streams.get(pipe):
                data = _read(pipe, 1 << 16)
                if not self._write(stream, stream.take(data) if data else stream.take_begun()) or not data:
                    self._forget(pipe)
        now = time.monotonic()
        for pipe, stream in list(self._streams.items()):
            if stream.is_over:
                self._pass_on_rest(pipe, stream)
            elif stream.due <= now and not self._write(stream, stream.take_begun()):
                self._forget(pipe)
        self._pass_on_held()
        return self._end not in ready or bool(os.read(self._end, 1 << 16))

    def _pass_on_held(self, *, is_end: bool = False) -> None:
        """Forward held output if its time is over or no rank can write more; then the launcher's own sentences."""
        open_streams = list(self._streams.values())
        is_end |= all(each.rank is None for each in open_streams)
        while held := [each for each in self._compared if each.held]:  # a rank started again may have two streams
            due = [each for each in held if is_end or each.release <= time.monotonic()]
            if not due:
                break
            found = {tracebacks.traceback_in(each.held) for each in due} - {b""}
            ready = [each for each in held if each in due or tracebacks.traceback_in(each.held) in found]
            self._forward_held({each.rank: each for each in reversed(ready) if each.rank is not None})
        with self._lock:
            open_streams = list(self._streams.values())
            self._compared = [each for each in self._compared if each.held or each in open_streams]
        if not held:
            self._pass_on_said()

    def _forward_held(self, streams: dict[int, Stream]) -> None:
        """Forward the output of ranks from a traceback on: equal lines once, with the ranks."""
        texts = {rank: stream.take_held() for rank, stream in streams.items()}
        for ranks, text in tracebacks.merged(texts):
            first = streams[ranks[0]]
            traceback = tracebacks.traceback_in(text)
            shown = self._shown.setdefault(hashlib.sha256(traceback).digest(), set()) if traceback else set()
            before = sorted(shown)
            if before and shown.isdisjoint(ranks):
                rest = text.splitlines(keepends=True)[len(traceback.splitlines()) :]
                text = b"".join([b"the same traceback as on %b\n" % tracebacks.named(before), *rest])
            shown.update(ranks)
            data = tracebacks.shortened(text)
            if len(ranks) > 1 or before:
                data = _marked(b"[%b] " % tracebacks.named(ranks), data, every_line=bool(first.label))
            else:
                data = first.labeled(data)
            self._write(first, data)

    def _pass_on_said(self) -> None:
        with contextlib.suppress(queue.Empty, OSError):
            while True:
                os.write(2, f"gradientflow: {self._said.get_nowait()}\n".encode())

    def _pass_on_rest(self, pipe: int, stream: Stream) -> None:
        os.set_blocking(pipe, False)
        with contextlib.suppress(BlockingIOError):
            left = _LARGEST_PIPE  # processes left behind may write without an end
            while left > 0 and (data := _read(pipe, left)):
                left -= len(data)
                self._write(stream, stream.take(data))
        self._write(stream, stream.take_begun())
        self._forget(pipe)

    def _write(self, stream: Stream, data: bytes) -> bool:
        """Write data from a stream; return True if the stream should still be read."""
        if stream.mark and stream.target in self._failed:
            return True  # the stream's notes are still needed
        left = memoryview(data)
        try:
            while left:
                left = left[_write_some(stream.target, left) :]
        except OSError as error:
            self._note_failure(stream.target, error)
            return bool(stream.mark)  # a rank's pipe is closed, so that the rank notices
        return True

    def _note_failure(self, target: int, error: OSError) -> None:
        """Report once that output is lost. It is no error if the reader of a pipe has closed it."""
        if target not in self._failed and error.errno != errno.EPIPE:
            with contextlib.suppress(OSError):
                os.write(
                    2, f"gradientflow: {_NAMES[target]} of the ranks cannot be written: {error.strerror}\n".encode()
                )
        self._failed.add(target)

    def _forget(self, pipe: int) -> None:
        stream = self._streams.pop(pipe)
        self._selector.unregister(pipe)
        os.close(pipe)
        if stream.held:
            stream.release = time.monotonic() + _ENDED_SECONDS
        stream.ended.set()
        _wake_launcher()


def _marked(mark: bytes, data: bytes, *, every_line: bool) -> bytes:
    """Return lines with a mark before each, or before the first."""
    return mark + (data[:-1].replace(b"\n", b"\n" + mark) + data[-1:] if every_line else data)


def _terminal_like(target: int, label: int) -> tuple[int, int]:
    """Return both ends of a new terminal, as large as another less a label, or of a pipe without more terminals."""
    try:
        read, write = os.openpty()
    except OSError:
        return os.pipe()
    tty.setraw(write)
    with contextlib.suppress(OSError):
        rows, columns, *pixels = struct.unpack("4H", fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(8)))
        fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("4H", rows, max(columns - label, 0), *pixels))
    return read, write


def _read(pipe: int, size: int) -> bytes:
    """Read from a pipe or a terminal; return no bytes once all its writers have ended."""
    try:
        return os.read(pipe, size)
    except OSError as error:
        if error.errno == errno.EIO:  # the other end of a terminal is closed
            return b""
        raise


def _write_some(target: int, data: memoryview) -> int:
    """Write as much as fits, and return how much; wait for a non-blocking target."""
    try:
        return os.write(target, data)
    except BlockingIOError:
        select.select([], [target], [])
        return 0


def _wake_launcher() -> None:
    """Wake the launcher by SIGCHLD, as if a process had ended."""
    os.kill(os.getpid(), signal.SIGCHLD)
