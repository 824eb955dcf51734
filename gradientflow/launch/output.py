"""Forwarding of the output of several processes in whole lines, so that lines of ranks do not mix.

Launchers load this file by its path: it imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import select
import selectors
import signal
import threading
import time
from dataclasses import dataclass, field

_PROMPT_SECONDS = 0.1  # delay before the beginning of an unfinished line is forwarded
_LARGEST_PIPE = 1 << 20  # largest capacity of a pipe of an unprivileged user
_NAMES = {1: "standard output", 2: "standard error"}


@dataclass
class Stream:
    """Output stream of a process, standard output or standard error."""

    target: int  # file descriptor to which the stream is forwarded
    label: bytes = b""  # prefix of each line
    mark: bytes = b""  # prefix of notes, which are not forwarded: a launcher reports its start and failures in them
    due: float = math.inf  # time at which the beginning of an unfinished line is forwarded
    notes: list[bytes] = field(default_factory=list)  # notes received
    is_over: bool = False  # the process has ended: the rest of the stream is in the pipe
    ended: threading.Event = field(default_factory=threading.Event)  # set once nothing more is read
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
        self._failed: set[int] = set()  # targets with a failed write
        self._end, self._end_input = os.pipe()
        self._selector.register(self._end, selectors.EVENT_READ)
        self._is_finishing = False
        self.has_ended = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def pipe_to(self, stream: Stream) -> int | None:
        """Return a new pipe to an output of this process; None for a terminal that needs no pipe."""
        if os.isatty(stream.target) and not (stream.label or stream.mark):
            return None
        read, write = os.pipe()
        self._streams[read] = stream
        self._selector.register(read, selectors.EVENT_READ)
        return write

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
        finally:
            self.has_ended = True
            _wake_launcher()

    def _pass_on_what_comes(self) -> bool:
        """Wait for output and forward it; return False once `finish` was called."""
        due = min((stream.due for stream in list(self._streams.values())), default=math.inf)
        timeout = None if due == math.inf else max(0.0, due - time.monotonic())
        ready = [key.fd for key, _ in self._selector.select(timeout)]
        for pipe in ready:
            if stream := self._streams.get(pipe):
                data = os.read(pipe, 1 << 16)
                if not self._write(stream, stream.take(data) if data else stream.take_begun()) or not data:
                    self._forget(pipe)
        now = time.monotonic()
        for pipe, stream in list(self._streams.items()):
            if stream.is_over:
                self._pass_on_rest(pipe, stream)
            elif stream.due <= now and not self._write(stream, stream.take_begun()):
                self._forget(pipe)
        return self._end not in ready or bool(os.read(self._end, 1 << 16))

    def _pass_on_rest(self, pipe: int, stream: Stream) -> None:
        os.set_blocking(pipe, False)
        with contextlib.suppress(BlockingIOError):
            self._write(stream, stream.take(os.read(pipe, _LARGEST_PIPE)))  # reads all of the pipe
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
        stream.ended.set()
        _wake_launcher()


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
