"""A handler that prints a line and then waits for a long time."""

import logging
import time

from overnight import Context, handler


@handler("print-and-wait")
def print_and_wait(ctx: Context) -> object:
    """Print and log one line each, and wait until the run must end."""
    print("printed line")  # noqa: T201 - that is the point
    logging.getLogger("library").warning("logged line")
    ctx.log("context line")
    while not ctx.cancelled:
        time.sleep(0.05)
    ctx.check()
    return None
