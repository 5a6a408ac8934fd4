"""References to what other work left behind: a task's output, or an artifact."""

from dataclasses import dataclass

from overnight_server.domain.ids import ArtifactId, MalformedId, TaskId, parse_artifact, parse_task

LEGAL = "task:<id or name>:output or artifact:<id>"


@dataclass(frozen=True)
class OutputOf:
    """The output of a task, known by its id."""

    task_id: TaskId


@dataclass(frozen=True)
class OutputOfNamed:
    """The output of a task of the same graph, known by the name it has there."""

    name: str


@dataclass(frozen=True)
class ArtifactOf:
    """An artifact."""

    artifact_id: ArtifactId


Reference = OutputOf | OutputOfNamed | ArtifactOf


class MalformedReference(ValueError):
    """Text that refers to nothing we know how to find."""


def read_reference(text: str) -> Reference:
    """Read one reference, or raise MalformedReference.

    >>> read_reference("task:research:output")
    OutputOfNamed(name='research')
    """
    kind, _, rest = text.partition(":")
    if kind == "artifact":
        try:
            return ArtifactOf(parse_artifact(rest))
        except MalformedId as error:
            raise MalformedReference(str(error)) from error
    named, _, part = rest.rpartition(":")
    if kind != "task" or part != "output" or not named:
        raise MalformedReference(f"{text!r} is not a reference")
    try:
        return OutputOf(parse_task(named))
    except MalformedId:
        return OutputOfNamed(named)
