"""Finding and ending the processes of a run, exactly: by recorded pid and start time, session, and mark.

A process is only ever signalled after a look at what it is, so a number that was given to another process in the
meantime is never touched. Where there is no /proc, process groups are all that is known.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nbproc.ranks import guardian, platform


@dataclass(frozen=True)
class Process:
    """One process: its number and when it started (0 where the system does not tell)."""

    pid: int
    start: int


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it is gone or the system does not tell."""
    if not platform.use_linux_features():
        return 0
    try:
        stat = _read_stat(pid)
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def _read_stat(pid: int) -> bytes:
    """Return /proc/<pid>/stat: less than a page, which the system gives at once."""
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def send_signal(process: Process, signum: int) -> bool:
    """Send a signal to exactly this process. Returns False if it is gone."""
    try:
        pidfd = platform.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    if pidfd is None:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signum)
            return True
        return False
    try:
        # 0: gone, which sending tells, or this process is short of descriptors and cannot look
        if process.start and start_time(process.pid) not in (0, process.start):
            return False
        signal.pidfd_send_signal(pidfd, signum)
        return True
    except OSError:
        return False
    finally:
        os.close(pidfd)


def members(leaders: Iterable[Process], mark: str = "") -> list[Process]:
    """Return the living processes of the sessions that these led, and those that carry the mark.

    Zombies are not living. Where there is no /proc, the leaders themselves are returned as long as their process
    group has a member.
    """
    return _look(list(leaders), mark)[0]


def _look(leaders: list[Process], mark: str) -> tuple[list[Process], bool]:
    """Return the members, and whether there is somebody who may turn out to be one."""
    if not platform.use_linux_features():
        return [leader for leader in leaders if _group_alive(leader.pid)], False
    table = guardian.table()
    sessions = set()
    for leader in leaders:
        entry = table.get(leader.pid)
        if entry is None or not leader.start or entry[2] == leader.start:
            sessions.add(leader.pid)
    marks = {mark.encode()} if mark else set()
    # what carries the mark was started by a leader, or by what it started; a leader itself was told its mark later
    since = min((leader.start for leader in leaders), default=0)
    above = guardian.reapers(table)
    found, expected, me = [], False, os.getpid()
    for pid, (parent, session, start, state) in table.items():
        if state in (b"Z", b"X") or pid == me:
            continue
        if session in sessions:
            found.append(Process(pid, start))
        elif marks and start >= since:
            unborn = guardian.unborn(pid, parent, state, above)
            if guardian.marked(pid, marks):
                found.append(Process(pid, start))
            expected = expected or unborn
    return found, expected


def below(leaders: Iterable[Process]) -> list[Process]:
    """Return what leads a session of its own among the children of these and their children: once its parent is gone,
    nobody can tell whose it was. Empty where there is no /proc.
    """
    if not platform.use_linux_features():
        return []
    table = guardian.table()
    found = {leader.pid for leader in leaders if leader.pid in table and table[leader.pid][2] == leader.start}
    known, size = set(found), 0
    while size != len(found):
        size = len(found)
        found |= {pid for pid, entry in table.items() if entry[0] in found}
    return [Process(pid, table[pid][2]) for pid in found - known if table[pid][1] == pid]


def end(leaders: Iterable[Process], mark: str = "", timeout: float = 5.0) -> list[Process]:
    """Kill what is left of these sessions and of the marked processes; wait until it is gone.

    Returns what is still there after ``timeout`` seconds (a process that the system itself does not let go of).
    """
    leaders = list(leaders)
    deadline = time.monotonic() + timeout
    born = time.monotonic() + guardian.BIRTH_TIME
    while True:
        left, expected = _look(leaders, mark)
        now = time.monotonic()
        if not left and expected and now < min(born, deadline):
            time.sleep(0.005)  # nothing tells when a process begins its program
            continue
        if not left or now > deadline:
            return left
        born = now + guardian.BIRTH_TIME
        if doomed := killable(left):
            left = doomed
        elif _tidied(left):
            continue
        for process in left:
            if platform.use_linux_features():
                send_signal(process, signal.SIGKILL)
            else:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
        wait_for(left, min(0.5, max(0.0, deadline - time.monotonic())))


def killable(processes: Iterable[Process]) -> list[Process]:
    """Return those that may be killed while others of them live: all but those that tidy up after the others."""
    return [process for process in processes if not guardian.tidies(process.pid)]


def _tidied(processes: Sequence[Process]) -> bool:
    """Wait a moment for those that tidy up, which is all that is left. Returns whether they have ended."""
    wait_for(processes, guardian.TIDY_TIME)
    return not any(is_there(process) for process in processes)


def is_there(process: Process) -> bool:
    """Return whether a process lives; a zombie does not."""
    state = _state(process)
    return state not in ("", "Z", "X")


def resume(process: Process) -> None:
    """Let a process go on that was stopped (SIGSTOP, Ctrl-Z): it hears no other signal than SIGKILL before."""
    if _state(process) == "T":
        send_signal(process, signal.SIGCONT)


def _state(process: Process) -> str:
    """Return the letter for its state; "" if it is gone."""
    if not platform.use_linux_features():
        return "?" if _alive(process.pid) else ""
    try:
        stat = _read_stat(process.pid)
    except OSError:
        return ""
    fields = stat[stat.rindex(b")") + 2 :].split()
    return fields[0].decode() if process.start in (0, int(fields[19])) else ""


def wait_for(processes: Iterable[Process], timeout: float) -> None:
    """Wait until these processes have ended, at most ``timeout`` seconds; they need not be children."""
    deadline = time.monotonic() + timeout
    for process in processes:
        try:
            pidfd = platform.pidfd_open(process.pid)
        except ProcessLookupError:
            continue
        if pidfd is None:
            while _alive(process.pid) and time.monotonic() < deadline:
                time.sleep(0.01)  # without process descriptors there is nothing to wait on
            continue
        try:
            if not process.start or start_time(process.pid) in (0, process.start):
                _readable(pidfd, deadline - time.monotonic())
        finally:
            os.close(pidfd)


def _readable(fd: int, timeout: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(max(0, int(timeout * 1000)))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _group_alive(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
