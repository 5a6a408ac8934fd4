"""Run a command of Overnight with a clock that is wrong by some seconds: `SECONDS COMMAND …`.

The process reads the wrong time from `time`; the database keeps the right one.
"""

import sys
import time


def shift(seconds: float) -> None:
    """Shift the wall clock of this process."""
    read, read_ns = time.time, time.time_ns
    time.time = lambda: read() + seconds
    time.time_ns = lambda: read_ns() + round(seconds * 1e9)


if __name__ == "__main__":
    shift(float(sys.argv.pop(1)))
    from overnight_server.cli.main import main

    main()
