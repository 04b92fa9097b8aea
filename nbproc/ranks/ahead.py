"""What is done before there is a job, so that it need not be done after: in the fork server, and in a rank that waits.

A fork shares memory, and the first write to a page copies it: that is most of what getting ready costs a rank. So a
rank that waits goes through the motions with an empty job. It leaves nothing behind: what it sets is what is set
already, and the real job sets all of it again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import locale
import os
import pickle
import select
import socket
import sys
import time
import weakref
from collections.abc import Iterator

from nbproc.ranks import holes, payload, results, streams, threads, wire, worker
from nbproc.ranks.job import Job, Settings

_ROOT = "it"


def freeze() -> None:
    """Make this process ready to be forked from, once everything is imported."""
    threads.look()
    streams.look()
    # A rank has other paths, and files may have changed: it looks for itself, and need not go through all of these.
    sys.path_importer_cache.clear()
    # Private, there is no public list. At exit torch would take its tables apart: 30 ms in each rank, for nobody.
    for final in list(getattr(weakref.finalize, "_registry", ())):
        final.atexit = False
    _sample()
    holes.fill()
    gc.freeze()


def clean() -> None:
    """Let go of what importing has left behind, a tenth of a second's work, and make ready again."""
    gc.unfreeze()
    gc.collect()
    freeze()


def rehearse(sock: socket.socket) -> None:
    """Go through the motions of a job for as long as there is none on the socket. In a rank, before `worker.run`."""
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLHUP)
    with contextlib.suppress(Exception):  # whatever it is, the real job will tell
        for _ in _motions():
            if poll.poll(0):
                return


def _motions() -> Iterator[None]:
    job_bytes, message = _sample()
    ours, theirs = wire.pair()
    with ours, theirs:
        wire.send(ours, wire.Kind.JOB, job_bytes)
        job: Job = pickle.loads(wire.receive(theirs)[1])
        yield
        worker.change_environment(dict(os.environ))
        yield
        job.settings.apply()
        yield
        time.tzset()
        locale.setlocale(locale.LC_ALL, locale.setlocale(locale.LC_ALL))
        yield
        with open(os.devnull, "w", encoding="utf-8", errors="backslashreplace", buffering=1) as nowhere:
            print("", file=nowhere)
        streams.flush()
        yield
        importlib.invalidate_caches()
        yield
        worker.seed()
        yield
        faulthandler.enable(file=2)
        yield
        ours.sendall(message)
        payload.receive(theirs).load()[_ROOT]()
        yield
        results.send(theirs, results.pack_result(None))
        yield


@functools.cache
def _sample() -> tuple[bytes, bytes]:
    """Return an empty job and a payload to go with it. The fork server makes them, ranks inherit them."""
    job = Job(
        rank=0,
        world_size=1,
        process_name="",
        daemon=False,
        environment={},
        settings=Settings.here(),
        error_file=os.devnull,
        stack_file=os.devnull,
        stdout=os.devnull,
        stderr=os.devnull,
        directory=os.devnull,
    )
    with payload.store([payload.Packer({}).pack({_ROOT: eval("lambda: None", {})})]) as shipment:
        return pickle.dumps(job), shipment[0].message
