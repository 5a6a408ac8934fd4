"""What a running task adds to its graph: children, and artifacts for others to read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from overnight.errors import InvalidRequest
from overnight.models.field_errors import validate
from overnight.models.json_values import check_json, check_text
from overnight.models.tasks import TaskCreate

FINAL = frozenset({"completed", "dead_lettered", "cancelled"})
MAX_KEY = 100
# Opens the keys of calls that give none: their number, from 1.
NUMBERED_KEY_PREFIX = "#"

Kind = Literal["bytes", "json", "text"]


@dataclass(frozen=True)
class Child:
    """A task that this one spawned, and what has become of it."""

    id: str
    key: str
    title: str
    type: str
    state: str
    output: Any = None
    failure_reason: str | None = None
    error: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state in FINAL

    @property
    def succeeded(self) -> bool:
        """Whether it has completed, so that `output` is what its handler returned."""
        return self.state == "completed"


@dataclass(frozen=True)
class ChildRequest:
    """A child as its parent asks for it."""

    key: str
    task: TaskCreate
    depends_on: Sequence[str] = ()

    @property
    def name(self) -> str | None:
        """What the graph may call it: its key, if its parent gave one."""
        return None if self.key.startswith(NUMBERED_KEY_PREFIX) else self.key


@dataclass(frozen=True)
class ArtifactContent:
    """An artifact's content as it is kept."""

    kind: Kind
    raw: bytes


def child_request(key: str, depends_on: Sequence[str], fields: Mapping[str, Any]) -> ChildRequest:
    """Judge what a handler asks for, with the words the service would use for a create."""
    if "idempotency_key" in fields:
        raise InvalidRequest("idempotency_key", "a child is identified by its key", legal="key=…")
    given = {name: value for name, value in fields.items() if value is not None}
    return ChildRequest(key, validate(TaskCreate, given), tuple(depends_on))


def check_key(key: str) -> str:
    """Return a key that a handler may give to a child, or refuse it."""
    if not 1 <= len(key) <= MAX_KEY or key.startswith(NUMBERED_KEY_PREFIX) or ":" in key:
        legal = f"1 to {MAX_KEY} characters without a colon, the first not {NUMBERED_KEY_PREFIX}"
        raise InvalidRequest("key", f"{key!r} is no key", legal=legal)
    return check_text(key)


def artifact_content(content: str | bytes | None, json_value: object) -> ArtifactContent:
    """Return what an artifact shall hold: text, bytes, or a value as JSON."""
    if content is None:
        try:
            text = json.dumps(json_value, allow_nan=False, ensure_ascii=False)
            check_json(json.loads(text))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(
                "json", f"cannot be written as JSON: {error}", legal="a JSON value"
            ) from None
        return ArtifactContent("json", _utf8("json", text))
    if json_value is not None:
        raise InvalidRequest("content", "is given beside json", legal="one of the two")
    if isinstance(content, bytes):
        return ArtifactContent("bytes", content)
    return ArtifactContent("text", _utf8("content", content))


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            field, "holds half a character", legal="text that UTF-8 can write"
        ) from None


def artifact_value(content: ArtifactContent) -> Any:  # noqa: ANN401 - whatever was kept
    """Return an artifact's content as its maker gave it."""
    match content.kind:
        case "json":
            return json.loads(content.raw)
        case "text":
            return content.raw.decode()
        case _:
            return content.raw
