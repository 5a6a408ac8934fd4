"""Batch files as commands read them: with times of day and durations of this machine."""

from collections.abc import Sequence

from overnight_server.cli.terminal import arguments
from overnight_server.domain import batch_files
from overnight_server.domain.batch_files import (
    MOST_VALUES,
    Document,
    Entry,
    FileFault,
    Unreadable,
    read,
    schema,
)

__all__ = [
    "MOST_VALUES",
    "Document",
    "Entry",
    "FileFault",
    "Unreadable",
    "entries",
    "read",
    "schema",
]


def entries(documents: Sequence[Document]) -> tuple[list[Entry], list[FileFault]]:
    """Return the graphs and tasks of a file in their order, and every fault of the file."""
    return batch_files.entries(documents, source="cli", next_instant=arguments.next_instant)
