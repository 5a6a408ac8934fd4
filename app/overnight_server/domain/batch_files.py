"""Parse a batch file, YAML or JSON, and remember the line of every field.

YAML is parsed with the types of JSON: `on` and `no` are strings, a date is a string, and a key may
occur only once. The file holds a graph, a list of tasks and graphs, an object with `dags` and
`tasks`, or one task. A YAML file may hold several such documents.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

    from overnight.errors import FieldError
    from overnight.models.dags import DagCreate
    from overnight.models.tasks import TaskCreate

Path = tuple[str | int, ...]
#: Returns the instant that a text such as `02:00` or `3h` means, or None for any other text.
NextInstant = Callable[[str], datetime | None]
# These fields also accept a local time of day and a duration from now, as the options of `add` do.
INSTANT_FIELDS = {"start_at", "available_at", "deadline_at", "deadline"}
MOST_VALUES = 1_000_000
DEEPEST = 64
TOO_LARGE = f"has more than {MOST_VALUES} values or more than {DEEPEST} levels"
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
    """The text cannot be parsed; `line` is where the parser stopped, if it is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class FileFault:
    """One fault of the file: its line, its field, what is wrong, and which values are allowed."""

    line: int | None
    field: str
    message: str
    legal: str = ""

    def line_text(self, file: str) -> str:
        """Return the fault in the format of compilers, which editors understand."""
        where = file if self.line is None else f"{file}:{self.line}"
        legal = f" (allowed: {self.legal})" if self.legal else ""
        return f"{where}: {self.field + ': ' if self.field else ''}{self.message}{legal}"


@dataclass(frozen=True)
class Document:
    """One YAML or JSON document of a batch file, and the line number of each of its fields."""

    value: Any
    lines: Mapping[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int | None:
        """Return the line of a field, or of the nearest object that contains it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


@dataclass(frozen=True)
class Entry:
    """One graph or task of the file, ready to submit; `path` leads to it inside the document."""

    content: "DagCreate | TaskCreate"
    document: Document
    path: Path

    @property
    def raw(self) -> Any:  # noqa: ANN401 - any value that JSON can hold
        """What the file says, before times such as `02:00` became instants."""
        value = self.document.value
        for part in self.path:
            value = value[part]
        return value

    def fault(self, name: str, message: str, legal: str = "") -> FileFault:
        """Return a fault of one field; `name` is dotted, as in messages of the service."""
        path = (*self.path, *(int(part) if part.isdigit() else part for part in name.split(".")))
        return FileFault(self.document.line_of(path), _dotted(path), message, legal)


def read(text: str) -> list[Document]:
    """Parse the text of a file; raise Unreadable if it is neither YAML nor JSON."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(
                text, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates
            )
        except (ValueError, RecursionError):
            pass  # YAML may begin with a bracket too, and its parser reports the line of a fault
        else:
            return [Document(value, _lines_if_any(text))]
    return list(_documents(text))


def entries(
    documents: Sequence[Document], *, source: str, next_instant: NextInstant
) -> tuple[list[Entry], list[FileFault]]:
    """Return the graphs and tasks of a file in their order, and every fault of the file.

    `source` is that of tasks which name none.
    """
    defaults = _Defaults(source, next_instant)
    valid: list[Entry] = []
    faults: list[FileFault] = []
    for document in documents:
        for path, value in _parts(document, faults):
            entry = _entry(document, path, value, faults, defaults)
            if entry is not None:
                valid.append(entry)
    if not valid and not faults:
        faults.append(FileFault(None, "", "holds no task", "a graph, or a list of tasks"))
    return valid, faults


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


def _parts(document: Document, faults: list[FileFault]) -> Iterator[tuple[Path, object]]:
    """Yield path and value of each graph and task of a document; add what is wrong to `faults`."""
    match document.value:
        case None:
            return
        case list() as items:
            yield from (((number,), item) for number, item in enumerate(items))
        case {"dags": _, **rest} as whole:
            for key in [key for key in rest if key != "tasks"]:
                line = document.line_of((str(key),))
                faults.append(FileFault(line, str(key), "is not a known field", "dags and tasks"))
            for key in ("dags", "tasks"):
                inner = whole.get(key, [])
                if not isinstance(inner, list):
                    line = document.line_of((key,))
                    faults.append(FileFault(line, key, "is not a list", "a list"))
                    continue
                yield from (((key, number), item) for number, item in enumerate(inner))
        case whole:
            yield (), whole


@dataclass(frozen=True)
class _Defaults:
    """What a task gets that the file does not say, and what its times of day mean."""

    source: str
    next_instant: NextInstant

    def task(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return a task with a source, and with `02:00` and `3h` as instants."""
        instants = {
            name: at.isoformat()
            for name in INSTANT_FIELDS & task.keys()
            if isinstance(task[name], str) and (at := self.next_instant(task[name])) is not None
        }
        return {"source": self.source, **task, **instants}

    def graph(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a graph whose tasks have a source where the file gives none."""
        tasks = value.get("tasks")
        if not isinstance(tasks, list):
            return value
        marked = [self.task(task) if isinstance(task, dict) else task for task in tasks]
        return {**value, "tasks": marked}


def _entry(
    document: Document,
    path: Path,
    value: object,
    faults: list[FileFault],
    defaults: _Defaults,
) -> Entry | None:
    """Return one graph or task; None if it is not valid, with its faults added to `faults`."""
    from overnight.models.dags import DagCreate
    from overnight.models.tasks import TaskCreate

    if not isinstance(value, dict):
        message, legal = "is neither a task nor a graph", "an object with a title"
        faults.append(FileFault(document.line_of(path), _dotted(path), message, legal))
        return None
    is_dag = "tasks" in value or path[:1] == ("dags",)
    parsed = (
        _validated(DagCreate, defaults.graph(value))
        if is_dag
        else _validated(TaskCreate, defaults.task(value))
    )
    is_valid = not isinstance(parsed, list)
    entry = Entry(TaskCreate(title="?") if isinstance(parsed, list) else parsed, document, path)
    wrong_fields = parsed if isinstance(parsed, list) else []
    # The edges are checked even if a field is wrong, so that all faults are reported at once.
    graph = _edges_only(value) if is_dag and not is_valid else parsed
    own = [entry.fault(wrong["field"], wrong["message"], wrong["legal"]) for wrong in wrong_fields]
    if isinstance(graph, DagCreate):
        own += [entry.fault(wrong.field, wrong.message, wrong.legal) for wrong in _faults_of(graph)]
    faults += sorted(own, key=lambda fault: fault.line or 0)
    return entry if is_valid else None


def _faults_of(graph: "DagCreate") -> "Sequence[FieldError]":
    from overnight.errors import InvalidGraph
    from overnight.graphs.shape import dependencies_of

    try:
        dependencies_of(graph)
    except InvalidGraph as error:
        return error.fields
    return ()


def _edges_only(value: dict[str, Any]) -> "DagCreate | None":
    """Return a graph with names and edges only, from one whose other fields may be wrong.

    Return None if a task has no name, because then its edges cannot be checked.
    """
    from pydantic import ValidationError

    from overnight.models.dags import DagCreate, DagEdge, DagTask

    def is_valid(kind: "type[DagTask | DagEdge]", fields: object) -> bool:
        try:
            kind.model_validate(fields)
        except ValidationError:
            return False
        return True

    try:
        tasks = []
        for task in value["tasks"]:
            name = {"name": task["name"]}
            parents = {key: task[key] for key in ("after", "depends_on") if key in task}
            tasks.append({**name, **parents} if is_valid(DagTask, {**name, **parents}) else name)
        edges = value.get("edges", [])
        edges = edges if all(is_valid(DagEdge, edge) for edge in edges) else []
        return DagCreate.model_validate({"title": "?", "tasks": tasks, "edges": edges})
    except (ValidationError, KeyError, TypeError):
        return None


def _validated(
    kind: "type[DagCreate | TaskCreate]", value: dict[str, Any]
) -> "DagCreate | TaskCreate | list[dict[str, str]]":
    """Return the model, or its faults with the messages of the service."""
    from pydantic import ValidationError

    from overnight.models.field_errors import without_consequences
    from overnight_server.domain.request_faults import describe_fault

    try:
        return kind.model_validate(value)
    except ValidationError as error:
        faults = without_consequences(error.errors(include_url=False, include_input=False))
        explained = [
            describe_fault({**fault, "loc": ("body", *fault["loc"])}, kind) for fault in faults
        ]
        return [{"legal": "", **fault} for fault in explained]


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _lines_if_any(text: str) -> Mapping[Path, int]:
    try:
        [document] = _documents(text)
    except (Unreadable, ValueError):
        return {}  # JSON that is not YAML, such as JSON indented by tabs
    return document.lines


def _refuse_constant(name: str) -> None:
    raise Unreadable(f"{name} is not a JSON number")


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise Unreadable(f"{key!r} is given twice")
        fields[key] = value
    return fields


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

    # The loader written in C, where there is one, parses a large batch much faster.
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: type[yaml.SafeLoader] = type(
        "Core", (_DepthLimit, base), {"yaml_implicit_resolvers": {}}
    )
    for name, (pattern, firsts) in CORE.items():
        loader.add_implicit_resolver(TAG + name, re.compile(pattern), firsts)
    return loader


class _DepthLimit:
    """Stops the parser at too many levels, because the loader in C would overflow its stack."""

    _depth = 0

    def descend_resolver(self, parent: Any, index: object) -> None:  # noqa: ANN401, ARG002
        """Count a level when the parser enters a node; raise Unreadable below the deepest."""
        self._depth += 1
        if self._depth > DEEPEST + 1:
            raise Unreadable(TOO_LARGE, parent.start_mark.line + 1)

    def ascend_resolver(self) -> None:
        """Count a level less when the parser leaves a node."""
        self._depth -= 1


class _Reader:
    """Converts nodes to values. Every use of an alias counts, so that the total is bounded."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self._left = MOST_VALUES

    def value(self, node: Any, path: Path, depth: int) -> object:  # noqa: ANN401 - yaml's own
        """Return the value of one node."""
        import yaml

        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise Unreadable(TOO_LARGE, line)
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
        fields: dict[str, object] = {}
        for key_node, inner in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise Unreadable("a key must be a string", line)
            if key == MERGE:
                sources = self.value(inner, (*path, MERGE), depth + 1)
                for source in sources if isinstance(sources, list) else [sources]:
                    if not isinstance(source, dict):
                        raise Unreadable(f"{MERGE} needs an object", line)
                    merged = {**source, **merged}
                continue
            if key in fields:
                raise Unreadable(f"{key!r} is given twice", line)
            self.lines[(*path, key)] = line
            fields[key] = self.value(inner, (*path, key), depth + 1)
        return {**merged, **fields}


def _scalar(kind: str, text: str, line: int) -> object:
    match kind:
        case "str":
            return text
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            # Python refuses to parse longer numbers, in JSON too.
            if len(text) > 4_000:  # noqa: PLR2004
                raise Unreadable("a number has too many digits", line)
            return _number(int, text, line)
        case "float":
            return _number(float, text, line)
        case _:
            raise Unreadable(f"the tag {kind} is not supported", line)


def _number(kind: type[int] | type[float], text: str, line: int) -> float:
    try:
        return kind(text)
    except ValueError:
        # Possible only with an explicit tag; untagged numbers match a pattern.
        raise Unreadable(f"{text!r} is not a number", line) from None
