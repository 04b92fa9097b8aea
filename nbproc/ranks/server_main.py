"""The fork server as a program, run by path so that a list of processes says what it is.

python server_main.py CONTROL_FD ROOT MODULE...
"""

import sys

if __name__ == "__main__":
    # its own folder is not for imports (it would hide modules of the same names); the caller's is, where it is not known
    here, _, _ = sys.argv[0].rpartition("/")
    sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]
    if sys.argv[2] not in sys.path:
        sys.path.append(sys.argv[2])

    from nbproc.ranks.server import main

    main(int(sys.argv[1]), sys.argv[3:])
