"""A tiny process that ends a run's processes when their owner is gone.

It is a program of its own (the owner runs this file by path, isolated): no torch, no threads, one loop. It reads
lines from its standard input:

    server PID START     the fork server: its children are ranks too
    rank PID START       a rank, leader of its own session
    gone PID             that rank has ended and was cleaned up
    mark TEXT            processes with NBPROC_RUN=TEXT... in their environment belong to the owner
    unmark TEXT
    bye                  the owner ends in order and has left nothing

START is the process's start time (field 22 of /proc/PID/stat, or 0 where there is none): a number that was given to
another process in the meantime is never touched. When the owner has ended, everything listed, its sessions, the
server's children and the marked processes get SIGKILL, again and again until none is left, and the guardian ends.
Those that tidy up after the others (`tidies`) have a moment to do so before.
Not covered: a process that made itself a daemon (a session of its own) and cleaned its environment.

    python guardian.py OWNER_PID OWNER_PIDFD          (OWNER_PIDFD is -1 where the system has no pidfds)
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # typing itself takes 6 ms to import
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MARK = b"NBPROC_RUN="

TIDY_TIME = 3.0
"""Seconds in which what tidies up may do so after the rest is gone; torch's manager waits for two itself."""
BIRTH_TIME = 0.5
"""Seconds in which a process that was forked by a rank may begin its own program after the rest is gone."""
_TIDYING = (b"multiprocessing.resource_tracker", b"torch_shm_manager")


def table() -> dict[int, tuple[int, int, int, bytes]]:
    """Every process now: pid -> (parent, session, start time, state). Empty where there is no /proc."""
    processes: dict[int, tuple[int, int, int, bytes]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return processes
    for name in names:
        if name.isdigit():
            try:
                file = os.open("/proc/" + name + "/stat", os.O_RDONLY)  # a third cheaper than a file object
            except OSError:
                continue
            try:
                stat = os.read(file, 4096)
            except OSError:
                continue
            finally:
                os.close(file)
            fields = stat[stat.rindex(b")") + 2 :].split()
            processes[int(name)] = (int(fields[1]), int(fields[3]), int(fields[19]), fields[0])
    return processes


def marked(pid: int, marks: Collection[bytes]) -> bool:
    """Say whether a process carries one of the marks in the environment it was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            text = file.read()
    except OSError:
        return False
    if MARK not in text:
        return False
    environment = text.split(b"\0")
    return any(
        entry == MARK + mark or entry.startswith(MARK + mark + b"/")
        for entry in environment
        if entry.startswith(MARK)
        for mark in marks
    )


def tidies(pid: int) -> bool:
    """Say whether a process only waits for the others' end, to remove what they left in shared memory, and ends then.

    These are multiprocessing's resource tracker and torch's manager of shared memory. To be asked only of processes
    that are known to be the owner's.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    return any(name in command for name in _TIDYING)


def reapers(processes: Mapping[int, tuple[int, int, int, bytes]]) -> set[int]:
    """Return those that may be the parent of an orphan: the first process, or a nearer one that asked to be.

    Such a one (of a desktop's session, say) stands above this process, too.
    """
    found = {1}
    pid = os.getpid()
    while pid in processes and (pid := processes[pid][0]) not in found:
        found.add(pid)
    return found


def unborn(pid: int, parent: int, state: bytes, reapers: Collection[int]) -> bool:
    """Say whether this may be an orphan that a rank forked and that has not begun its own program yet.

    Until it has, its environment is that of the rank's program, which does not carry the mark. To be asked before
    `marked`: a program that begins between the two has the mark by then.
    """
    if parent not in reapers or state in (b"Z", b"X"):
        return False
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return False
    # nothing: the system is just about to replace one program by the other
    return not command or b"/nbproc/ranks/server_main.py\0" in command


class Watch:
    """What the owner has told so far."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        self.servers: dict[int, int] = {}
        self.marks: set[bytes] = set()

    def hear(self, line: bytes) -> None:
        """Take in one line; one that is not understood is left out."""
        words = line.split()
        try:
            if words[0] == b"server":
                self.servers[int(words[1])] = int(words[2])
            elif words[0] == b"rank":
                self.ranks[int(words[1])] = int(words[2])
            elif words[0] == b"gone":
                self.ranks.pop(int(words[1]), None)
                self.servers.pop(int(words[1]), None)
            elif words[0] == b"mark":
                self.marks.add(words[1])
            elif words[0] == b"unmark":
                self.marks.discard(words[1])
        except (IndexError, ValueError):
            pass

    def victims(self, sessions: set[int]) -> set[int]:
        """The processes to end now; ``sessions`` collects the sessions that were found to be the owner's."""
        processes = table()
        me = os.getpid()
        found: set[int] = set()
        for pid, start in list(self.ranks.items()) + list(self.servers.items()):
            entry = processes.get(pid)
            if entry is not None and (start in (0, entry[2])):
                found.add(pid)
                if entry[1] == pid:
                    sessions.add(pid)
            elif entry is None:
                sessions.add(pid)
        alive_servers = {pid for pid in self.servers if pid in found}
        for pid, (parent, session, _, _) in processes.items():
            if parent in alive_servers or session in sessions or (self.marks and marked(pid, self.marks)):
                found.add(pid)
                if session == pid:
                    sessions.add(pid)
        # what hangs below a victim in a session of its own goes too
        below = found
        while below:
            below = {
                pid for pid, entry in processes.items() if entry[0] in found and entry[0] != 1 and pid not in found
            }
            found |= below
        return {pid for pid in found if pid not in (me, 1) and processes[pid][3] not in (b"Z", b"X")}

    def expects(self) -> bool:
        """Say whether there is somebody who may turn out to be a victim."""
        processes = table()
        above = reapers(processes)
        return any(unborn(pid, one[0], one[3], above) for pid, one in processes.items())

    def end(self) -> None:
        """Kill until nothing is left, for at most ten seconds."""
        sessions: set[int] = set()
        deadline = time.monotonic() + 10
        tidied = 0.0
        born = 0.0
        while time.monotonic() < deadline:
            if os.path.isdir("/proc/self"):
                expected = self.expects()
                victims = self.victims(sessions)
                if not victims:
                    born = born or time.monotonic() + BIRTH_TIME
                    if not expected or time.monotonic() > born:
                        return
                doomed = {pid for pid in victims if not tidies(pid)}
                if doomed or not tidied:
                    tidied = time.monotonic() + TIDY_TIME
                if time.monotonic() < tidied:
                    victims = doomed
                # the servers are stopped first: they must not fork between the look and the kill
                for pid in sorted(victims, key=lambda pid: pid not in self.servers):
                    strike(pid, signal.SIGSTOP if pid in self.servers else signal.SIGKILL)
                for pid in victims:
                    strike(pid, signal.SIGKILL)
            else:
                alive = False
                for pid in list(self.ranks) + list(self.servers):
                    try:
                        os.killpg(pid, signal.SIGKILL)
                        alive = True
                    except OSError:
                        strike(pid, signal.SIGKILL)
                if not alive:
                    return
            time.sleep(0.02)


def strike(pid: int, signum: int) -> None:
    """Send a signal; a process that is gone already is fine."""
    try:
        os.kill(pid, signum)
    except OSError:
        pass


def main(owner: int, pidfd: int) -> None:
    """Listen until the owner has ended, then end what it left behind."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        with open("/proc/self/comm", "w") as file:
            file.write("nbproc guardian")
    except OSError:
        pass  # it is only for who looks at a list of processes
    watch = Watch()
    pending = b""
    hearing = True
    while True:
        poll = select.poll()  # select() knows no descriptor above 1023, and the pidfd has the number the owner gave it
        for fd in ([0] if hearing else []) + ([pidfd] if pidfd >= 0 else []):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if pidfd >= 0 else 100)}
        if 0 in ready:
            piece = os.read(0, 65536)
            hearing = bool(piece)
            *lines, pending = (pending + piece).split(b"\n")
            for line in lines:
                if line == b"bye":
                    return
                watch.hear(line)
        elif pidfd in ready or (pidfd < 0 and os.getppid() != owner):
            break
    watch.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
