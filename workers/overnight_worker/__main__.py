"""Run Celery's command line for one process of the service: `python -P -m overnight_worker beat`.

`python -m celery -A …` would import from the working directory first, so that a `redis.py` or a
`celery.py` of the user's project would be imported in place of the library. `-P` keeps the working
directory off the import path, and `find_last` puts it behind everything that is installed.
"""

import sys

from overnight_worker.working_directory import find_last


def main() -> None:
    """Start what the arguments name; the process ends with Celery's exit code.

    A worker that found itself deaf starts anew instead.
    """
    find_last()
    # After the path is set, because Celery imports its plugins at once.
    from celery.__main__ import main as celery  # noqa: PLC0415

    if "flower" in sys.argv:
        from overnight_worker.flower_login import require_login  # noqa: PLC0415

        require_login()
    from overnight_worker.restart import RESTART  # noqa: PLC0415

    sys.argv[1:1] = ["--quiet", "--app", "overnight_worker.celery_app"]
    try:
        celery()
    finally:
        RESTART.execute()


if __name__ == "__main__":
    main()
