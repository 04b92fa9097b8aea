"""A rank of start method "spawn" as a program, run by path so that a list of processes says what it is.

python rank_main.py JOB_FD ROOT
"""

import sys

if __name__ == "__main__":
    # its own folder is not for imports (it would hide modules of the same names); the caller's is, where it is not known
    here, _, _ = sys.argv[0].rpartition("/")
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    if sys.argv[2] not in sys.path:
        sys.path.append(sys.argv[2])

    from nbproc.ranks.worker import spawned

    spawned(int(sys.argv[1]))
