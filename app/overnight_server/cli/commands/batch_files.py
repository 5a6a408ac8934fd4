"""Reading a batch file: YAML or JSON, kept with the lines its fields stand on.

YAML is read as JSON would be: `on` and `no` are words, a date is text, a key stands once. The file
holds a graph, a list of tasks and graphs, an object with `dags` and `tasks`, or one task; YAML may
hold several such documents.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

    from overnight.errors import FieldError
    from overnight.models.dags import DagCreate
    from overnight.models.tasks import TaskCreate

Path = tuple[str | int, ...]
MOST_VALUES = 1_000_000
DEEPEST = 64
TOO_MUCH = "holds more, or is nested deeper, than any batch"
CORE = {
    "null": (r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    "int": (r"^[-+]?[0-9]+$", list("-+0123456789")),
    "float": (
        r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$",
        list("-+.0123456789"),
    ),
}
MERGE = "<<"
TAG = "tag:yaml.org,2002:"


class Unreadable(Exception):
    """Text that is no batch at all; `line` is where that was noticed, if anywhere."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class Wrong:
    """One fault: the line and the field it stands in, what is wrong, and what would do."""

    line: int | None
    field: str
    message: str
    legal: str = ""

    def told(self, file: str) -> str:
        """Say it as compilers do, so that editors find the place."""
        where = file if self.line is None else f"{file}:{self.line}"
        legal = f" (legal: {self.legal})" if self.legal else ""
        return f"{where}: {self.field + ': ' if self.field else ''}{self.message}{legal}"


@dataclass(frozen=True)
class Document:
    """One value of the file, and the line of everything in it."""

    value: Any
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int | None:
        """Return the line of a field, or of the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


@dataclass(frozen=True)
class Entry:
    """One graph or one task of the file, ready to be sent; `place` is where it stands."""

    what: "DagCreate | TaskCreate"
    document: Document
    place: Path

    def wrong(self, name: str, message: str, legal: str = "") -> Wrong:
        """Return a fault in one of its fields, named as the service names fields."""
        path = (*self.place, *(int(part) if part.isdigit() else part for part in name.split(".")))
        return Wrong(self.document.line_of(path), _dotted(path), message, legal)


def read(text: str) -> list[Document]:
    """Read the text of a file."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_each_once)
        except (ValueError, RecursionError):
            pass  # YAML, too, may begin with a bracket, and says where a fault is
        else:
            return [Document(value, _lines_if_any(text))]
    return list(_documents(text))


def entries(documents: Sequence[Document]) -> tuple[list[Entry], list[Wrong]]:
    """Return the graphs and tasks of a file in their order, and everything wrong with it."""
    found: list[Entry] = []
    wrong: list[Wrong] = []
    for document in documents:
        for place, value in _parts(document, wrong):
            entry = _entry(document, place, value, wrong)
            if entry is not None:
                found.append(entry)
    if not found and not wrong:
        wrong.append(Wrong(None, "", "holds no task", "a graph, or a list of tasks"))
    return found, wrong


def schema() -> dict[str, Any]:
    """Return the JSON schema of a batch file, for editors."""
    from pydantic.json_schema import models_json_schema

    from overnight.models.dags import DagCreate
    from overnight.models.tasks import TaskCreate

    _, whole = models_json_schema([(DagCreate, "validation"), (TaskCreate, "validation")])
    dag, task = {"$ref": "#/$defs/DagCreate"}, {"$ref": "#/$defs/TaskCreate"}
    both = {
        "type": "object",
        "properties": {
            "dags": {"type": "array", "items": dag},
            "tasks": {"type": "array", "items": task},
        },
        "required": ["dags"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A batch for `overnight batch`",
        "anyOf": [dag, {"type": "array", "items": {"anyOf": [dag, task]}}, both, task],
        **whole,
    }


def _parts(document: Document, wrong: list[Wrong]) -> Iterator[tuple[Path, object]]:
    match document.value:
        case None:
            return
        case list() as items:
            yield from (((number,), item) for number, item in enumerate(items))
        case {"dags": _, **rest} as whole:
            for key in [key for key in rest if key != "tasks"]:
                place = document.line_of((str(key),))
                wrong.append(Wrong(place, str(key), "is not a known field", "dags and tasks"))
            for key in ("dags", "tasks"):
                inner = whole.get(key, [])
                if not isinstance(inner, list):
                    wrong.append(Wrong(document.line_of((key,)), key, "is no list", "a list"))
                    continue
                yield from (((key, number), item) for number, item in enumerate(inner))
        case whole:
            yield (), whole


def _entry(document: Document, place: Path, value: object, wrong: list[Wrong]) -> Entry | None:
    from overnight.models.dags import DagCreate
    from overnight.models.tasks import TaskCreate

    if not isinstance(value, dict):
        message, legal = "is neither a task nor a graph", "an object with a title"
        wrong.append(Wrong(document.line_of(place), _dotted(place), message, legal))
        return None
    is_dag = "tasks" in value or place[:1] == ("dags",)
    made = _made(DagCreate if is_dag else TaskCreate, value)
    entry = Entry(TaskCreate(title="?") if isinstance(made, list) else made, document, place)
    told = made if isinstance(made, list) else []
    # What can be read of a graph is looked at even so, or its faults would come one by one.
    graph = _rough(value) if is_dag and isinstance(made, list) else made
    faults = [entry.wrong(fault["field"], fault["message"], fault["legal"]) for fault in told]
    if isinstance(graph, DagCreate):
        faults += [
            entry.wrong(fault.field, fault.message, fault.legal) for fault in _faults_of(graph)
        ]
    wrong += sorted(faults, key=lambda fault: fault.line or 0)
    return None if isinstance(made, list) else entry


def _faults_of(graph: "DagCreate") -> "Sequence[FieldError]":
    from overnight.errors import InvalidGraph
    from overnight.graphs.shape import dependencies_of

    try:
        dependencies_of(graph)
    except InvalidGraph as error:
        return error.fields
    return ()


def _rough(value: dict[str, Any]) -> "DagCreate | None":
    """Return who waits for whom in a graph with faulty fields, as far as that can be read.

    Without the name of every task nothing could be said about the others.
    """
    from pydantic import ValidationError

    from overnight.models.dags import DagCreate, DagEdge, DagTask

    def readable(kind: "type[DagTask | DagEdge]", fields: object) -> bool:
        try:
            kind.model_validate(fields)
        except ValidationError:
            return False
        return True

    try:
        tasks = []
        for task in value["tasks"]:
            named = {"name": task["name"]}
            waiting = {key: task[key] for key in ("after", "depends_on") if key in task}
            tasks.append({**named, **waiting} if readable(DagTask, {**named, **waiting}) else named)
        edges = value.get("edges", [])
        sound = all(readable(DagEdge, edge) for edge in edges)
        return DagCreate.model_validate(
            {"title": "?", "tasks": tasks, "edges": edges if sound else []}
        )
    except (ValidationError, KeyError, TypeError):
        return None


def _made(
    kind: "type[DagCreate | TaskCreate]", value: dict[str, Any]
) -> "DagCreate | TaskCreate | list[dict[str, str]]":
    """Return the model, or its faults in the words of the service."""
    from pydantic import ValidationError

    from overnight.models.dags import DagCreate
    from overnight.models.field_errors import without_consequences
    from overnight_server.api.http.validation_errors import describe_fault

    try:
        return kind.model_validate(_from_here(value) if kind is DagCreate else _marked(value))
    except ValidationError as error:
        faults = without_consequences(error.errors(include_url=False, include_input=False))
        told = [describe_fault({**fault, "loc": ("body", *fault["loc"])}, kind) for fault in faults]
        return [{"legal": "", **fault} for fault in told]


def _from_here(value: dict[str, Any]) -> dict[str, Any]:
    """Say through which door the tasks come, where the file does not."""
    tasks = value.get("tasks")
    if not isinstance(tasks, list):
        return value
    return {**value, "tasks": [_marked(one) if isinstance(one, dict) else one for one in tasks]}


def _marked(task: dict[str, Any]) -> dict[str, Any]:
    return {"source": "cli", **task}


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _lines_if_any(text: str) -> Mapping[Path, int]:
    try:
        [document] = _documents(text)
    except (Unreadable, ValueError):
        return {}  # JSON that YAML cannot read, such as one indented by tabs
    return document.lines


def _refuse_constant(name: str) -> None:
    raise Unreadable(f"{name} is no JSON number")


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise Unreadable(f"{key!r} is given twice")
        found[key] = value
    return found


def _documents(text: str) -> Iterator[Document]:
    import yaml

    try:
        for node in yaml.compose_all(text, Loader=_loader()):
            reader = _Reader()
            yield Document(reader.value(node, (), 0), reader.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(
            f"is neither YAML nor JSON: {error.problem or error.context}",
            None if mark is None else mark.line + 1,
        ) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise Unreadable(f"is neither YAML nor JSON: {error}") from error


@cache
def _loader() -> "type[yaml.SafeLoader]":
    import yaml

    # The one written in C where there is one: a large batch then takes a moment, not minutes.
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: type[yaml.SafeLoader] = type("Core", (_Shallow, base), {"yaml_implicit_resolvers": {}})
    for name, (pattern, firsts) in CORE.items():
        loader.add_implicit_resolver(TAG + name, re.compile(pattern), firsts)
    return loader


class _Shallow:
    """Ends the reading of what is nested too deep: the loader in C would overrun its stack."""

    _depth = 0

    def descend_resolver(self, parent: Any, index: object) -> None:  # noqa: ANN401, ARG002
        """Hear that a node begins; there is nothing to resolve by where it stands."""
        self._depth += 1
        if self._depth > DEEPEST + 1:
            raise Unreadable(TOO_MUCH, parent.start_mark.line + 1)

    def ascend_resolver(self) -> None:
        """Hear that a node has ended."""
        self._depth -= 1


class _Reader:
    """Turns nodes into values; an alias is read each time, so the whole is bounded."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self._left = MOST_VALUES

    def value(self, node: Any, path: Path, depth: int) -> object:  # noqa: ANN401 - yaml's own
        """Return what one node stands for."""
        import yaml

        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise Unreadable(TOO_MUCH, line)
        match node:
            case yaml.SequenceNode():
                items = enumerate(node.value)
                return [self.value(item, (*path, number), depth + 1) for number, item in items]
            case yaml.MappingNode():
                return self._mapping(node, path, depth)
            case _:
                return _scalar(node.tag.removeprefix(TAG), node.value, line)

    def _mapping(self, node: Any, path: Path, depth: int) -> dict[str, object]:  # noqa: ANN401
        merged: dict[str, object] = {}
        own: dict[str, object] = {}
        for key_node, inner in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise Unreadable("a key must be a word", line)
            if key == MERGE:
                given = self.value(inner, (*path, MERGE), depth + 1)
                for one in given if isinstance(given, list) else [given]:
                    if not isinstance(one, dict):
                        raise Unreadable(f"{MERGE} takes an object", line)
                    merged = {**one, **merged}
                continue
            if key in own:
                raise Unreadable(f"{key!r} is given twice", line)
            self.lines[(*path, key)] = line
            own[key] = self.value(inner, (*path, key), depth + 1)
        return {**merged, **own}


def _scalar(kind: str, text: str, line: int) -> object:
    match kind:
        case "str":
            return text
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            # As many digits as Python reads at once; JSON would be refused likewise.
            if len(text) > 4_000:  # noqa: PLR2004
                raise Unreadable("a number has too many digits", line)
            return _number(int, text, line)
        case "float":
            return _number(float, text, line)
        case _:
            raise Unreadable(f"the tag {kind} is not understood here", line)


def _number(kind: type[int] | type[float], text: str, line: int) -> float:
    try:
        return kind(text)
    except ValueError:
        # Only where a tag asks for it: the file's own numbers are known by their look.
        raise Unreadable(f"{text!r} is no number", line) from None
