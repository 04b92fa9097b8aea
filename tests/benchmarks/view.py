"""How the live view bears a flood of lines, in JupyterLab in headless Chromium (benchmark B9).

    python tests/benchmarks/view.py [--lines 100000] [--rate 20000] [--ranks 1] [--tab "Rank 0"]

Prints JSON: how far what is seen is behind what was written, how long the page was blocked, memory, bytes received.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from lab import Lab, chromium

SETUP = """\
from pathlib import Path
import tempfile, time, threading
from fakes import FakeContext
from nbproc.logs.lines import LineEvent, Stream
from nbproc.notebook.view import RunView
place = tempfile.TemporaryDirectory()
ctx = FakeContext({ranks}, Path(place.name) / "run").start()
view = RunView(ctx)
view.show()
"""
WRITE = """\
def write(lines={lines}, rate={rate}, ranks={ranks}):
    tick, per_tick = 0.05, max(1, int(rate * 0.05 / ranks))
    n, start = 0, time.monotonic()
    while n * ranks < lines:
        now = time.time()
        for rank in range(ranks):
            ctx.say([LineEvent(rank, Stream.OUT, n + i, f"\\x1b[32mINFO\\x1b[0m {{now:.4f}} step {{n + i}} "
                     "loss 0.12345 accuracy 0.98765 lr 3.0e-04 grad norm 1.234 tokens/s 123456", True, now)
                     for i in range(per_tick)])
        n += per_tick
        time.sleep(max(0, start + n * ranks / rate - time.monotonic()))
    ctx.say([LineEvent(0, Stream.OUT, n, f"{{time.time():.4f}} the end", True, time.time())])
    ctx.finish()
thread = threading.Thread(target=write); thread.start()
"""
WATCH = """() => {
  const seen = window.seen = {lags: [], blocked: [], end: null};
  new PerformanceObserver((list) => seen.blocked.push(...list.getEntries().map((e) => e.duration)))
    .observe({type: 'longtask'});
  let last = '';
  const look = () => {
    const rows = document.querySelectorAll('.nb-row .nb-text, .nb-last');
    let newest = 0;
    for (const row of rows) {
      const found = /(\\d{10}\\.\\d{4})/.exec(row.textContent);
      if (found) newest = Math.max(newest, Number(found[1]));
      if (row.textContent.includes('the end') && !seen.end) seen.end = Date.now() / 1000 - newest;
    }
    if (newest && String(newest) !== last) { last = String(newest); seen.lags.push(Date.now() / 1000 - newest); }
    if (!seen.end) requestAnimationFrame(look);
  };
  requestAnimationFrame(look); }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--tab", default="Rank 0")
    asked = parser.parse_args()
    given = {"lines": asked.lines, "rate": asked.rate, "ranks": asked.ranks}
    with tempfile.TemporaryDirectory() as root, chromium() as browser, Lab(Path(root), browser) as lab:
        book = lab.open([SETUP.format(**given)])
        book.run()
        book.idle()
        book.until(lambda: book.page.query_selector(".nb-run[data-ready]"), "the view is there")
        book.page.get_by_role("tab", name=asked.tab, exact=True).click()
        devtools = book.page.context.new_cdp_session(book.page)

        def heap() -> float:
            devtools.send("HeapProfiler.collectGarbage")
            return devtools.send("Runtime.getHeapUsage")["usedSize"] / 1e6

        def resident() -> float:
            chromium = psutil.Process().children(recursive=True)
            renderers = [p for p in chromium if any("--type=renderer" in word for word in p.cmdline())]
            return max(p.memory_info().rss for p in renderers) / 1e6

        before, rss, received = heap(), resident(), book.received
        book.page.evaluate(WATCH)
        book.say(WRITE.format(**given))
        book.until(lambda: book.page.evaluate("window.seen.end"), "the last line is seen", 120)
        seen = book.page.evaluate("window.seen")
        lags = sorted(seen["lags"])
        print(
            json.dumps(
                {
                    **given,
                    "tab": asked.tab,
                    "lag of the last line, s": round(seen["end"], 3),
                    "lag while it ran, median and worst, s": [round(lags[len(lags) // 2], 3), round(lags[-1], 3)],
                    "times that a new line was seen": len(lags),
                    "blocked, longest, ms": max(seen["blocked"], default=0),
                    "blocked, sum, ms": sum(seen["blocked"]),
                    "heap, MB more": round(heap() - before, 1),
                    "renderer, MB more": round(resident() - rss, 1),
                    "received, MB": round((book.received - received) / 1e6, 1),
                },
                indent=1,
            )
        )
        book.page.get_by_role("tab", name="All", exact=True).click()
        book.page.evaluate("() => { window.seen.blocked.length = 0 }")
        book.page.get_by_label("Filter lines").fill("step 99")
        book.until(lambda: " of " in book.text(".nb-tools .nb-count"), "the filter is done")
        book.page.wait_for_timeout(500)
        found = book.text(".nb-tools .nb-count")
        longest = book.page.evaluate("Math.max(0, ...window.seen.blocked)")
        print(json.dumps({"filter": found, "blocked, longest, ms": longest}))
        book.close()


if __name__ == "__main__":
    main()
