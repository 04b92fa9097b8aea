"""A failed run is explained once: at length where nothing else does it, in short under a view that stands."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from jupyter_client.blocking import BlockingKernelClient

from kernels import Kernel, Ran, plain

VIEW = "application/vnd.jupyter.widget-view+json"


def hello(kernel: Kernel, ran: Ran) -> None:
    """Say what a browser says when it has shown the view of that cell."""
    view = ran.of("display_data")[0]["data"][VIEW]["model_id"]
    content = {"comm_id": view, "data": {"method": "custom", "content": {"t": "hello", "client": "browser"}}}
    kernel.client.shell_channel.send(kernel.client.session.msg("comm_msg", content))
    assert kernel.ask("1") == 1  # it has been handled: one after the other


@pytest.fixture
def seen(kernel: Kernel) -> Iterator[None]:
    """A front end that has shown a view, and that is forgotten afterwards."""
    kernel.run("def fail(x):\n    raise ValueError(f'bad batch {x}')")
    hello(kernel, kernel.begin("%spawn -n 1 1", stdin=()).end())
    yield
    kernel.run("from nbproc.notebook import front_ends\nfront_ends._seen.clear()")


def test_under_a_view_that_stands_the_error_is_the_headline_and_where_the_rest_is(kernel: Kernel, seen: None) -> None:
    ran = kernel.begin("%spawn -n 2 fail(17)", stdin=()).end()
    headline, where = ran.error.splitlines()
    assert "ValueError: bad batch 17, in fail, cell [" in headline
    assert headline.startswith(("ranks 0, 1 failed (same): ", "rank "))
    assert where == "The view above explains it; %tb prints the whole here."


def test_nothing_is_lost_of_it_in_the_notebook_and_for_programs(kernel: Kernel, seen: None) -> None:
    ran = kernel.begin("%spawn -n 2 fail(17)", stdin=()).end()
    saved = ran.of("display_data")[0]["data"]
    for text in (saved["text/plain"], saved["text/html"], ran.of("error")[0]["evalue"]):
        assert "Traceback of rank" in text
        assert "raise ValueError(f" in text
    told = kernel.run("%tb").error
    assert told == plain(ran.of("error")[0]["evalue"])
    assert kernel.run("%tb").error == told


def test_where_no_view_has_answered_the_error_is_the_whole(kernel: Kernel) -> None:
    ran = kernel.begin("%%spawn -n 2\n1 / 0", stdin=()).end()
    assert "Traceback of rank" in ran.error
    assert ran.error == plain(ran.of("error")[0]["evalue"])


def test_another_front_end_of_the_same_kernel_gets_the_whole(kernel: Kernel, seen: None) -> None:
    other = BlockingKernelClient()
    other.load_connection_info(kernel.client.get_connection_info(session=False))
    other.start_channels()
    try:
        other.wait_for_ready(timeout=60)
        reply = other.execute_interactive("%spawn -n 2 fail(1)", output_hook=lambda _: None, timeout=60)
    finally:
        other.stop_channels()
    assert "Traceback of rank" in json.dumps(reply["content"]["traceback"])


def test_a_quiet_run_has_no_view_and_says_all(kernel: Kernel, seen: None) -> None:
    assert "Traceback of rank" in kernel.begin("%spawn -n 2 --quiet fail(17)", stdin=()).end().error


def test_debug_says_that_the_ranks_process_is_gone_and_goes_up_past_our_own_frames(kernel: Kernel) -> None:
    kernel.run("%%spawn -n 2\n1 / 0")
    ran = kernel.run("%debug", stdin=["up", "up", "q"])
    assert "the process of the rank has ended, so there is nothing of it to look at" in ran.text
    assert "%tb prints the rank's traceback" in ran.text
    assert "magic.py" not in ran.text
    assert "----> 1 %%spawn -n 2" in plain(ran.text)
