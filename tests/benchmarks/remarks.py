"""What the numbers are made of, and what was decided by them. Put into the page by `run`."""

from __future__ import annotations

LIMITS: dict[str, str] = {
    "B1": """
CPU time of one cell with four ranks, in milliseconds, on two cores of which others use a part:

| part | ms |
|---|---:|
| an empty cell: the kernel's own messages | 3 |
| plan, files, pickling, sockets, until the result is known | 5 |
| the view: its model with its code (50 kB), what is displayed and saved, and the kernel's threads that send it | 6 |
| each rank, from its job to its result | 2 |
| afterwards: the look for what is left, old files, asking for new ranks | 2 |
| afterwards: each rank's end, and a new one in its place | 7 |
| afterwards: the fork server, for four ranks | 8 |

The four ranks share the cores, so with two of them the floor of the ranks is 4 ms. The rest of the time of a cell is
who has the processor when. The ranks get their jobs before the view is made, which takes place while they run. Ranks
that have returned are kept from exiting for 20 ms, so that the kernel can finish the cell first: four exits take as
long as the cell. What comes afterwards runs while the user reads; back to back it is the larger part, 46 ms of CPU time
for two cores, and it is the system's: a fork copies the tables of pages, each first write to a page copies it (2.6
microseconds here, 1,300 pages until a rank stands by), an exit takes all of it apart.

What brought a rank's cost from 45 ms of CPU time to 9: torch's own tables are not taken apart at its exit (27 ms), BLAS
libraries are looked for once in the server (4 ms), the server's memory is in large pages (3 ms, and the server's own
fork 5 instead of 1 ms), all modules that a rank runs on are imported ahead (a test sees to that: one that is not costs
each rank 3 ms), and a rank that waits goes through the motions of a job once, which copies the pages it will write to:
300 page faults are left between job and result, of 1,350.
""",
    "B2": """
The same without a kernel's messages and without a view. 2 ms of CPU time for each rank, 5 for the caller. Bare forks of a
process with torch in it, which do nothing and exit, stand beside: ours cost less than these, because they come from the
fork server, whose memory is in large pages, and because they are made before the call and exit after it. So this is
below the system's limit for processes that are made when they are asked for; back to back, where nothing can be made
before, it is what forks and exits cost. loky's processes have run before and keep their modules and what the last call
left in them, ours are new each time.
""",
    "B3": """
The fork server's import of torch is most of it; nothing that can be done before or beside it is done after it. A kernel
starts it with `%load_ext nbproc`, so that a first cell that comes a few seconds later does not wait for it.
""",
    "B4": """
`import nbproc` loads names when they are used. `%load_ext nbproc` loads the magics and what a launch needs, 55 ms of CPU
time, so that the first cell does not: 120 modules of ours and the standard library, a fifth of it for making
dataclasses, a seventh for regular expressions. All modules are compiled before the benchmarks begin, as an installer
does; where Python may not write what it compiles, it takes 65 ms more. The cells that come next share the cores with
the server's import of torch, a second and a half of CPU time on a core of its own where there is one.
""",
    "B5": """
Of the CPU time of a launch all but 5 ms is the system's write of the value into memory files, 0.37 s a gigabyte, of which
the copy is a tenth and the taking of fresh pages of 4 kB the rest. The system lets one thread at a time write to a file,
so the value is spread over as many files as there are cores, up to eight, which ranks map one behind the other: here two
threads halve the time that the row of `os.write` takes. Large pages for such files would be cheaper still; they are off
on most systems (`shmem_enabled`), and cannot be asked for then. The ranks map the files: 0.3 ms. A DataFrame costs each
rank the import of pandas, 0.3 to 0.5 s of CPU time: `NBPROC_PRELOAD` takes it out.

A second launch with the unchanged tensor: comparing it with what was sent last time would cost a tenth of sending it
(0.05 s a gigabyte). It is not done: the file would have to be kept between runs, and memory is given back when a run
ends. A tensor that is to be used often is sent without any copy after `tensor.share_memory_()`.
""",
    "B6": """
The same writing, by four ranks at once, which keeps all cores busy; reading maps it. The row of `os.write` is four
processes that do only that: the limit. Ours and torch's also make the tensors (0.2 s, page by page) and give the memory
back. On a virtual machine memory that was free for a while may have to be fetched from the host again, which shows as runs
that take several times as long; the median is not theirs as long as they are few.
""",
    "B7": """
A rank that was not there before costs a fork in the server (2 ms of CPU time), 4 ms of its own until it runs, 0.4 ms in the
caller, and an end (2 to 4 ms). All are linear in the number of ranks. Most of its own part is the system's: each first
write to a page that is shared since the fork copies it, 1,100 times: 340 before Python has come out of the fork, 150 to
import the module that the function is in. torch's children do less before the function, 1,000 such writes: ours point
their output at files, take on the caller's environment, limits, locale and working directory, seed anew, say that they
run, and import the user's module in each rank (never in the server: an edit must be seen). A fork of torch's server costs
twice as much, since its memory is in small pages. Two ranks start at a time here, since there are two cores. The server's
own memory is counted with the ranks.
""",
    "B8": """
The reader is one thread that looks at the files at most 20 times a second; a bare reader of these files costs the ranks
as much where there are no more cores than ranks.
""",
    "B10": """
The rank's traceback and `error.json` (10 ms), SIGINT to the others and their ends, the search for what is left of their
sessions (2 ms), the explanation.
""",
    "B11": """
The reader looks ten times a second for lines of a run that says nothing, the view once for its processor time.
Ranks that stand by sleep in a read.
""",
    "DDP": """
Wrapping a model imports `torch._dynamo`, 820 modules; all but 10 ms is that. See below why the fork server does not.
""",
}

DECISIONS: list[str] = """\
## What was decided by these numbers

- **The fork server does not import `torch._dynamo` by itself.** It would cost the server 1.1 s of CPU time and 67 MB,
  which all ranks share, and take 0.9 s of CPU time out of each rank that uses DistributedDataParallel: with four ranks
  on two cores, a cell of 7 s took 0.4 s. But with it 2 of 9 such runs did not end, and none of 31 without it: torch's
  gloo group, let go of right after the last step, waits for its own thread while it holds the interpreter's lock, and
  that thread needs the lock to let go of a Python object. `NBPROC_PRELOAD=torch._dynamo` has it imported when the server
  is idle, for programs that end with a barrier and keep their model; the way is there when torch has mended it.
- **Packages that the notebook has imported are not imported ahead by themselves.** Some start threads or take a GPU when
  they are imported, which a process that forks must not have; who knows his packages names them in `NBPROC_PRELOAD`.
- **The server's memory is put into large pages** (`MADV_COLLAPSE`, Linux 6.1), 0.3 s of its time, also when it is idle.
  A fork with the end of its child then costs 4 ms of CPU time instead of 10. Elsewhere it is left out.
- **Finalizers that torch registered in the server do not run in the ranks.** They take torch's tables of operators
  apart, 27 ms of CPU time at the exit of each rank, and nobody can see that they did. What the user's code registers
  runs.
- **Ranks that have returned exit 20 ms after the result is known,** or when somebody waits for that. With two cores and
  four ranks their exits made the end of a cell wait for 5 to 10 ms. Back to back nothing is lost: the next run's ranks
  are forked meanwhile.
- **Ranks that stand by are asked for at once when a run has ended,** not after a pause: what they cost has to be paid
  before the next run in any case.
""".splitlines()
