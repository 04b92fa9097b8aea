"""What well-known programs write, recorded by running them; nothing here is written down by hand but pip's bar."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import rich.console
import rich.logging
import rich.progress
import rich.table
import tqdm

RECORDINGS: dict[str, Callable[[], str]] = {}


def recording(make: Callable[[], str]) -> Callable[[], str]:
    RECORDINGS[make.__name__] = make
    return make


def bar(file: io.StringIO, total: int, **options: object) -> tqdm.tqdm:
    options = {"ascii": False, **options}
    return tqdm.tqdm(range(total), file=file, ncols=70, mininterval=0, miniters=1, **options)


def console(file: io.StringIO) -> rich.console.Console:
    return rich.console.Console(file=file, force_terminal=True, width=90, height=40, color_system="truecolor")


@recording
def tqdm_single() -> str:
    out = io.StringIO()
    for _ in bar(out, 20):
        pass
    return out.getvalue()


@recording
def tqdm_nested() -> str:
    out = io.StringIO()
    for epoch in bar(out, 3, desc="epochs"):
        for _ in bar(out, 5, desc=f"epoch {epoch}", leave=False):
            pass
    return out.getvalue() + "done\n"


@recording
def tqdm_nested_kept() -> str:
    out = io.StringIO()
    for epoch in bar(out, 3, desc="epochs"):
        for step in bar(out, 4, desc=f"epoch {epoch}", leave=True):
            for _ in bar(out, 3, desc=f"step {step}", leave=False, ascii=True):
                pass
    return out.getvalue()


@recording
def tqdm_positions() -> str:
    out = io.StringIO()
    bars = [bar(out, 6, position=position, desc=f"part {position}") for position in range(4)]
    for _ in range(6):
        for one in bars:
            one.update()
    for one in bars:
        one.close()
    return out.getvalue() + "\nafter\n"


@recording
def tqdm_write() -> str:
    out = io.StringIO()
    for epoch in bar(out, 4, desc="epochs"):
        for step in bar(out, 3, desc="steps", leave=False):
            if step == 1:
                tqdm.tqdm.write(f"epoch {epoch}: loss 0.{epoch}", file=out)
    return out.getvalue()


@recording
def tqdm_colour() -> str:
    out = io.StringIO()
    for _ in bar(out, 5, colour="green"):
        pass
    return "\x1b[31mred to the end\nof two lines\x1b[0m\n" + out.getvalue()


@recording
def rich_progress() -> str:
    out = io.StringIO()
    columns = (rich.progress.TextColumn("{task.description}"), rich.progress.BarColumn(), "[green]{task.completed}")
    with rich.progress.Progress(*columns, console=console(out), auto_refresh=False) as progress:
        tasks = [progress.add_task(f"[bold red]task {index}", total=5) for index in range(3)]
        for step in range(5):
            for task in tasks:
                progress.advance(task)
                progress.refresh()
            progress.console.print(f"step [cyan]{step}[/] is [i]over[/]")
        progress.add_task("a late one", total=None)
        progress.refresh()
    return out.getvalue() + "after\n"


@recording
def rich_status() -> str:
    out = io.StringIO()
    screen = console(out)
    with screen.status("[bold]working", refresh_per_second=1) as status:
        screen.print("one")
        screen.print("two\nthree")
        status.update("still working")
    return out.getvalue()


@recording
def rich_log() -> str:
    out = io.StringIO()
    handler = rich.logging.RichHandler(console=console(out), markup=True)
    record = logging.LogRecord("train", logging.WARNING, __file__, 1, "loss is [red]nan[/] at %d", (3,), None)
    handler.emit(record)
    table = rich.table.Table("rank", "loss")
    table.add_row("0", "[green]0.12")
    console(out).print(table)
    return out.getvalue()


@recording
def pip() -> str:
    out = "Collecting torch\n\x1b[?25l"
    for percent in range(0, 101, 10):
        out += f"\r\x1b[K     |{'█' * (percent // 5):20s}| {percent} MB 1.{percent} MB/s \x1b[33meta 0:00:{percent:02d}\x1b[0m"
    return (
        out
        + "\r\x1b[K     |████| 100 MB\x1b[?25h\r\n\x1b]0;pip\x07Installed \x1b]8;;http://x\x1b\\torch\x1b]8;;\x1b\\\r\n"
    )


@recording
def layers() -> str:
    """Redraw lines in the middle, as container tools do."""
    out = "pulling\n" + "".join(f"layer {index}: waiting\n" for index in range(5))
    for step in range(4):
        for index in range(5):
            up = 5 - index
            out += f"\x1b[{up}A\r\x1b[2Klayer {index}: {step * 25} %\r\x1b[{up}B"
    return out + "\x1b[3A\x1b[2G-\x1b[5C+\x1b[1K\x1b[3B\rall done\n"
