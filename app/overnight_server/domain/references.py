"""References to results of other tasks, and the content of artifacts."""

import json
from dataclasses import dataclass
from typing import Any

from overnight_server.domain.ids import ArtifactId, MalformedId, TaskId, parse_artifact, parse_task

LEGAL = "task:<id or name>:output or artifact:<id>"


@dataclass(frozen=True)
class OutputOf:
    """The output of a task, by id."""

    task_id: TaskId


@dataclass(frozen=True)
class NamedOutput:
    """The output of a task of the same graph, by its name there."""

    name: str


@dataclass(frozen=True)
class ArtifactOf:
    """An artifact, by id."""

    artifact_id: ArtifactId


Reference = OutputOf | NamedOutput | ArtifactOf


class MalformedReference(ValueError):
    """Text that is not a reference."""


def parse_reference(text: str) -> Reference:
    """Parse one reference; raise MalformedReference for other text.

    >>> parse_reference("task:research:output")
    NamedOutput(name='research')
    """
    kind, _, rest = text.partition(":")
    if kind == "artifact":
        try:
            return ArtifactOf(parse_artifact(rest))
        except MalformedId as error:
            raise MalformedReference(str(error)) from error
    name, _, part = rest.rpartition(":")
    if kind != "task" or part != "output" or not name:
        raise MalformedReference(f"{text!r} is not a reference")
    try:
        return OutputOf(parse_task(name))
    except MalformedId:
        return NamedOutput(name)


def read_content(kind: str, content: bytes) -> Any:  # noqa: ANN401 - the type depends on the kind
    """Return the content of an artifact in the type in which it was stored.

    >>> read_content("json", b'{"pages": 3}')
    {'pages': 3}
    """
    match kind:
        case "json":
            return json.loads(content)
        case "text":
            return content.decode()
        case _:
            return content
