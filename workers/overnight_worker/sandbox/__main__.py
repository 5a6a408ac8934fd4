"""Prints which sandboxes work here as JSON: `python -P -m overnight_worker.sandbox`, for doctor."""

import dataclasses
import json
import sys

from overnight_worker.sandbox.probe import probe_all_kinds


def main() -> None:
    """Probe every kind of sandbox, and print the list."""
    json.dump([dataclasses.asdict(probe) for probe in probe_all_kinds()], sys.stdout)


if __name__ == "__main__":
    main()
