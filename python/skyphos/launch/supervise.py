"""Supervisor of child processes: starts them, passes on output and signals, and ends all when one fails.

A :class:`Supervisor` starts children, passes their output on line by line under a label, forwards signals, and when
one child fails ends the others, unless they are to go on: SIGTERM after a short time for their own error messages, and
SIGKILL after a grace. It is one loop over file descriptors in one thread, which pipes and signals wake.

Children are process groups of their own, so that Ctrl-C at a terminal reaches them once, through the launcher, and
so that a child can be ended together with what it started (:mod:`.leftovers`). On Linux the kernel kills a child
whose launcher died, even by SIGKILL (``PR_SET_PDEATHSIG``, set between fork and exec: it costs nothing, while a small
Python process between launcher and rank would cost each rank the start of an interpreter, 15 ms of CPU). Elsewhere,
and for processes that a child has started, that guarantee is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import secrets
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import IO, TYPE_CHECKING, Literal

from ..errors import BadInput, SkyphosError
from ..text.plain_text import encoded
from . import leftovers
from .exit_status import Exit, group_status
from .failures import Failure
from .streams import descriptor_of, fill_gaps

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Child", "Report", "Supervisor"]

#: Children whose exit is reported: none, those that were killed, all that failed.
Report = Literal["", "killed", "failed"]

_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
# Bytes of a line that are passed on at once; a longer line is cut, so that no child can fill the launcher's memory.
_LONGEST_LINE = 1 << 16
#: Longest time to wait for the last output of ended children, or for processes that cannot be killed.
_DRAIN_S = 1.0
#: Seconds between two checks of the processes that ended children left behind.
_LOOK_S = 0.02

#: Seconds that children have to end by themselves after one has failed, before they are sent SIGTERM.
_LAST_WORDS_S = 1.0


@dataclass(eq=False)
class Child:
    """One child process, its name in messages, and the incomplete last lines of its output."""

    label: str
    who: str
    process: subprocess.Popen[bytes]
    incomplete: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    has_ended: bool = False
    #: ``NAME=value`` in its environment, by which processes that it starts are found.
    mark: tuple[bytes, ...] = ()

    @property
    def origin(self) -> leftovers.Origin:
        return leftovers.Origin(self.process.pid, self.mark)


class Supervisor:
    """Starts children and stays until the last has ended.

    Parameters
    ----------
    grace_s : float
        Seconds from SIGTERM to SIGKILL.
    keep_going : bool
        Whether the others go on when a child fails.
    report : {"", "killed", "failed"}
        Children whose exit is reported on stderr: none, those that were killed, or all that failed. One line for the
        first of them, which also says what happens to the others; with ``keep_going`` one line for each.

    Notes
    -----
    A context manager, to be used from the main thread: it takes over the signal handlers until its end, and no
    child is left when it ends, whatever the reason.
    """

    def __init__(self, grace_s: float = 5.0, *, keep_going: bool = False, report: Report = "") -> None:
        self.children: list[Child] = []
        self._exits: list[Exit] = []
        self._keep_going, self._report = keep_going, report
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        self._failed_status: int | None = None
        self._interrupt: int | None = None
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._out_closed = False
        self._ends_all = False
        # Begins a line in which a child reports how its program failed.
        self.failure_word = f"\x1e{secrets.token_hex(8)}"
        # Reported failures: the child, the line before each line of its trace, and the failure.
        self._failures: list[tuple[str, str, Failure]] = []
        # The exit that ended the group, and whether other children were running then.
        self._first_end: tuple[Exit, bool] | None = None
        # Children that ended with an error before the launcher ended any.
        self._by_themselves: list[Exit] = []
        # Ended children whose own children must end too, with the time at which those are killed.
        self._with_leftovers: dict[Child, float] = {}
        self._give_up_at: float | None = None

    def __enter__(self) -> Self:
        # A closed stream's number must not become that of a pipe.
        fill_gaps()
        self._reaped_before = leftovers.adopt(True)
        self._stdout, self._stderr = descriptor_of(sys.stdout, 1), descriptor_of(sys.stderr, 2)
        # Signals arrive as bytes in a pipe that the loop watches, so no handler runs at a bad moment.
        self._wake_read, self._wake_write = os.pipe()
        for end in (self._wake_read, self._wake_write):
            os.set_blocking(end, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        wanted = (*_FORWARDED, signal.SIGCHLD)
        self._handlers_before = {number: signal.signal(number, _nothing) for number in wanted}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.alive():
            self.signal_child(child, signal.SIGKILL)
        for child in self.children:
            child.process.wait()
        if kind is not None:
            self._signal_leftovers(self.children, signal.SIGKILL)
        for child in self.children:
            for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
                if stream is not None:
                    stream.close()
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        leftovers.adopt(self._reaped_before)
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        label: str = "",
        who: str = "",
        pipes: bool = True,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        mark: Sequence[str] = (),
    ) -> Child:
        """Start a child.

        Parameters
        ----------
        argv : sequence of str
            Program and arguments.
        env : mapping
            Its whole environment.
        label : str
            Put before each line of its output.
        who : str
            Its name in messages: rank and host.
        pipes : bool
            Whether its output goes through the supervisor; else it has the launcher's own stdout and stderr.
        stdin : as in subprocess
            Its stdin.
        pass_fds : sequence of int
            File descriptors that it keeps.
        mark : sequence of str
            Names of variables whose values no other child has. A process with them in its environment was started by
            this child, and is ended with it if it fails.

        Raises
        ------
        BadInput
            If the program cannot be started.
        """
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=stdin,
                stdout=subprocess.PIPE if pipes else None,
                stderr=subprocess.PIPE if pipes else None,
                pass_fds=pass_fds,
                bufsize=0,  # bytes that a broken pipe did not take must not be written again on closing
                # The forked process has one thread and only execs, so preexec_fn is safe.
                preexec_fn=partial(_before_exec, _prctl(), os.getpid()),  # noqa: PLW1509
            )
        except OSError as error:
            raise BadInput(f"cannot run {argv[0]}: {error.strerror}") from None
        except (TypeError, ValueError) as error:  # arguments or variables that are no text, or hold a byte 0
            raise BadInput(f"cannot run {argv[0]!r}: its arguments and variables must be text: {error}") from None
        child = Child(label, who, process, mark=tuple(os.fsencode(f"{name}={env[name]}") for name in mark))
        self.children.append(child)
        for stream, to in ((process.stdout, self._stdout), (process.stderr, self._stderr)):
            if stream is not None:
                self.watch(stream.fileno(), partial(self._pass_on, child, to))
        return child

    def watch(self, fd: int, ready: Callable[[int], bool]) -> None:
        """Call ``ready(fd)`` whenever there is something to read; it returns True if it passed on output."""
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, ready)

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor."""
        self._selector.unregister(fd)

    def run(self) -> int:
        """Wait until every child has ended; return the exit code of the group.

        Returns
        -------
        int
            0 if all children returned 0; else 128 + the signal that the launcher was sent; else the code of the
            first child that failed, or :func:`.group_status` if the others were to go on.
        """
        while self._unnoted() or self._with_leftovers:
            due = [at for at in (self._term_at, self._kill_at) if at is not None]
            # The end of a process that is not our child raises no signal, so such processes are polled.
            due += [time.monotonic() + _LOOK_S] if self._with_leftovers else []
            timeout = max(0.0, min(due) - time.monotonic()) if due else None
            for key, _ in self._selector.select(timeout):
                key.data(key.fd)
            self._note_ended()
            if self._term_at is not None and time.monotonic() >= self._term_at:
                self.end_all()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self.end_all(signal.SIGKILL)
                self._kill_at = None
            self._check_leftovers()
        self._drain()
        self._tell_cause()
        failed = self._failed_status or any(exited.status for exited in self._exits)
        if failed and self._interrupt is not None:
            return 128 + self._interrupt
        return self._failed_status or group_status(self._exits)

    def end_all(self, number: int = signal.SIGTERM) -> None:
        """Send every child a signal, and SIGKILL after the grace."""
        self._ends_all = True
        for child in self.alive():
            self.signal_child(child, number)
        self._term_at = None
        self._kill_at = time.monotonic() + (0.0 if number == signal.SIGKILL else self._grace_s)
        self._with_leftovers = {child: min(at, self._kill_at) for child, at in self._with_leftovers.items()}

    def signal_child(self, child: Child, number: int) -> None:
        """Send a signal to a child and the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, number)

    def alive(self) -> list[Child]:
        """Children that have not ended."""
        return [child for child in self.children if child.process.poll() is None]

    def any_left(self) -> bool:
        """Whether the exit of any child has not been recorded."""
        return self._unnoted()

    def _unnoted(self) -> bool:
        return any(not child.has_ended for child in self.children)

    def _note_ended(self) -> None:
        # Killed children first: others that ended at the same time probably ended because of them.
        ended = [child for child in self.children if not child.has_ended and child.process.poll() is not None]
        for child in sorted(ended, key=lambda child: child.process.returncode >= 0):
            child.has_ended = True
            self._drain_one(child)  # its remaining output comes before the report of its exit
            if child.process.returncode or self._ends_all:
                # Processes that it started may still run.
                self._signal_leftovers([child], signal.SIGTERM)
                self._with_leftovers[child] = time.monotonic() + self._grace_s
            self.child_ended(child)

    def _signal_leftovers(self, children: Sequence[Child], number: int) -> None:
        """Send a signal to processes that ended children started."""
        origins = [child.origin for child in children]
        leftovers.send(number, origins, leftovers.find(origins))

    def _check_leftovers(self) -> None:
        """Forget ended children whose processes are all gone; after the grace, kill the remaining processes."""
        if not self._with_leftovers:
            return
        found = leftovers.find([child.origin for child in self._with_leftovers])
        for child, kill_at in list(self._with_leftovers.items()):
            if child.origin not in found:
                del self._with_leftovers[child]
            elif time.monotonic() >= kill_at:
                leftovers.send(signal.SIGKILL, [child.origin], found)
                # Processes that the system does not let us kill are not waited for.
                self._with_leftovers[child] = math.inf
                self._give_up_at = self._give_up_at or time.monotonic() + _DRAIN_S
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            self._with_leftovers = {child: at for child, at in self._with_leftovers.items() if at < math.inf}
            self._give_up_at = None

    def child_ended(self, child: Child) -> None:
        """Record the exit of a child; called once, after all of its output has been passed on."""
        self.note(Exit(child.who, child.process.returncode))

    def note(self, exited: Exit, *, ends_all: bool = False) -> None:
        """Record an exit, and end the others if it is a failure that ends them, or if ``ends_all``."""
        self._exits.append(exited)
        if exited.status and not self._ends_all:
            self._by_themselves.append(exited)
        if not exited.status or self._failed_status is not None or self._ends_all:
            return
        goes_on = self._keep_going and not ends_all
        reported = self._report == "failed" or (self._report == "killed" and exited.died)
        if reported and (goes_on or self.any_left()):
            if goes_on:
                self._say(f"skyphos: {exited}; the others go on" if self.any_left() else f"skyphos: {exited}")
            else:
                # The cause is known only when all have ended.
                self._first_end = exited, self.any_left()
        if not goes_on:
            self._failed_status = self._failed_status or exited.status
            # The other ranks receive the error from their peers, and get a short time to report their own.
            self._term_at = time.monotonic() + _LAST_WORDS_S

    def failure_reported(self, child: Child, failure: Failure) -> None:
        """Record the failure that a child reported."""
        self.note_failure(child.who, child.label, failure)

    def note_failure(self, who: str, label: str, failure: Failure) -> None:
        """Print an error: with its traceback if the others go on; else one line, because the cause is printed last."""
        if self._keep_going:
            self._say_whole(label, failure)
            return
        before = self._cause() if self._failures else None
        one = (who, label, failure)
        self._failures.append(one)
        if before is not None:
            _, label, failure = before if self._cause() is one else one
            self._say(f"{label}{failure.summary}")

    def _cause(self) -> tuple[str, str, Failure]:
        """The first failure that is not a consequence of another one; else the first."""
        return next((one for one in self._failures if not one[2].follows), self._failures[0])

    def _tell_cause(self) -> None:
        """Report which rank failed first, and why, after the output of all."""
        exited, others_left = self._first_end or (None, False)
        why = ""
        if self._failures:
            who, label, failure = self._cause()
            silent = self._silent_cause() if failure.follows else None
            if silent is None:
                self._say_whole(label, failure)
                why = f" ({failure.summary})"
                exited = next((one for one in self._exits if one.who == who and one.status), exited)
            else:
                self._say(f"{label}{failure.summary}")
                exited = silent
        if self._first_end is not None and exited is not None:
            self._failed_status = exited.status
            # Only `skyphos run` reports every failure, and it has the option --keep-going.
            may_go_on = self._report == "failed" and exited.died and not self._keep_going
            hint = " (--keep-going: they go on)" if may_go_on else ""
            others = f"; the others are ended{hint}" if others_left else ""
            self._say(f"skyphos: {exited}{why}{others}")

    def _silent_cause(self) -> Exit | None:
        """A child that ended with an error by itself and did not report why: preferably one that died."""
        reported = {who for who, _, _ in self._failures}
        silent = [exited for exited in self._by_themselves if exited.who not in reported]
        return next((one for one in silent if one.died), silent[0] if silent else None)

    def _say_whole(self, label: str, failure: Failure) -> None:
        for line in failure.whole.rstrip("\n").split("\n"):
            self._say(f"{label}{line}")

    def _say(self, line: str) -> None:
        self._write(self._stderr, encoded(line) + b"\n")

    def _without_failures(self, child: Child, lines: bytes) -> bytes:
        """A child's lines without its reports to the supervisor."""
        word = self.failure_word.encode() + b" "
        while word in lines:
            before, _, rest = lines.partition(word)
            reported, _, after = rest.partition(b"\n")
            lines = before + after
            try:
                failure = Failure.of_json(reported)
            except (ValueError, TypeError):  # it was cut off
                continue
            self.failure_reported(child, failure)
        return lines

    def _drain_one(self, child: Child) -> None:
        """Pass on what is left in the pipes of an ended child."""
        until = time.monotonic() + _DRAIN_S
        for stream in (child.process.stdout, child.process.stderr):
            key = self._selector.get_map().get(stream.fileno()) if stream is not None else None
            while key is not None and key.data(key.fd) and time.monotonic() < until:
                pass

    def _drain(self) -> None:
        """Pass on what is left in the pipes of ended children, for a limited time: grandchildren may still write."""
        until = time.monotonic() + _DRAIN_S
        while any([key.data(key.fd) for key, _ in self._selector.select(0)]) and time.monotonic() < until:
            pass
        for child in self.children:
            for to, line in child.incomplete.values():
                if line:
                    self.deliver(child, to, line + b"\n")

    def _woken(self, fd: int) -> bool:
        for number in os.read(fd, 4096):
            if number in _ENDING:
                # A second signal means: do not wait for the grace.
                self.end_all(number if self._interrupt is None else signal.SIGKILL)
                self._interrupt = self._interrupt or number
            elif number != signal.SIGCHLD:
                for child in self.alive():
                    self.signal_child(child, number)
        return False

    def _pass_on(self, child: Child, to: int, fd: int) -> bool:
        """Copy whole lines from a child's pipe; True if there was something to read."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        lines = child.incomplete.pop(fd, (to, b""))[1] + data
        if not data:
            self.unwatch(fd)
            lines += b"\n" if lines else b""
        elif len(lines) < _LONGEST_LINE:
            end = lines.rfind(b"\n") + 1
            child.incomplete[fd] = to, lines[end:]
            lines = lines[:end]
        lines = self._without_failures(child, lines)
        if lines:
            self.deliver(child, to, lines)
        return bool(data)

    def deliver(self, child: Child, to: int, lines: bytes) -> None:
        """Write a child's lines to stdout or stderr, its label before each."""
        label = encoded(child.label)
        self._write(to, b"".join(label + line for line in lines.splitlines(keepends=True)))

    def _write(self, to: int, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._out_closed:
            try:
                view = view[os.write(to, view) :]
            except BlockingIOError:
                select.select([], [to], [])
            except OSError as error:
                if error.errno != errno.EPIPE:
                    stream = {self._stdout: "standard output", self._stderr: "standard error"}.get(to, str(to))
                    raise SkyphosError(f"{stream}: {error.strerror}") from None
                # The reader of our output has gone (``| head``): end the children too.
                self._out_closed = True
                self._failed_status = self._failed_status or 128 + signal.SIGPIPE
                self.end_all()


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal is not ignored; the work is done where the wake-up pipe is read."""


def _prctl() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function: Callable[[int, int], int] = ctypes.CDLL(None, use_errno=True).prctl
    return function


def _before_exec(prctl: Callable[[int, int], int] | None, launcher: int) -> None:
    os.setpgid(0, 0)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it died before the kernel knew
            os._exit(128 + signal.SIGKILL)
