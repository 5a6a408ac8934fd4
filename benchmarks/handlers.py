"""Handlers for benchmarks: they write a mark when they start, or print lines."""

import time

from benchmarks.start_marks import mark
from overnight import Context, handler

LINE = "read page 17 of the catalogue, found 12 links, 3 of them new, none broken"
# What one of 200 busy runs prints in a second, and what is written as one row then.
LINES = 100
PAUSE_SECONDS = 0.05


@handler("noop")
def noop(ctx: Context) -> object:
    """Do nothing."""
    mark(int(ctx.payload.get("label", 0)))
    return None


@handler("print")
def print_lines(ctx: Context) -> object:
    """Print some lines."""
    mark(int(ctx.payload.get("label", 0)))
    for _ in range(LINES):
        print(LINE)
    return None


@handler("clock")
def print_time(ctx: Context) -> object:
    """Print the time repeatedly."""
    for _ in range(ctx.payload["lines"]):
        print(time.time())
        time.sleep(PAUSE_SECONDS)
    return None
