"""Children that a running task spawns, and artifacts that it stores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from overnight.errors import InvalidRequest
from overnight.models.field_errors import validate
from overnight.models.json_values import check_json, check_text
from overnight.models.tasks import TaskBody

MAX_KEY_LENGTH = 100
# The key of a spawn without one is this prefix and the number of the call, from 1.
NUMBERED_KEY_PREFIX = "#"

Kind = Literal["bytes", "json", "text"]


@dataclass(frozen=True)
class ChildRequest:
    """A child that a handler wants to spawn."""

    key: str
    task: TaskBody
    depends_on: Sequence[str] = ()

    @property
    def name(self) -> str | None:
        """The child's name in the graph: its key, if the handler gave one."""
        return None if self.key.startswith(NUMBERED_KEY_PREFIX) else self.key


@dataclass(frozen=True)
class ArtifactContent:
    """The content of an artifact as it is stored."""

    kind: Kind
    raw: bytes


def child_request(key: str, depends_on: Sequence[str], fields: Mapping[str, Any]) -> ChildRequest:
    """Return a checked request for a child; raises InvalidRequest as the service would."""
    if "idempotency_key" in fields:
        raise InvalidRequest("idempotency_key", "a child is identified by its key", legal="key=…")
    values = {name: value for name, value in fields.items() if value is not None}
    return ChildRequest(key, validate(TaskBody, values), tuple(depends_on))


def check_key(key: str) -> str:
    """Return the key; raises InvalidRequest if a child or an artifact cannot have it."""
    if not 1 <= len(key) <= MAX_KEY_LENGTH or key.startswith(NUMBERED_KEY_PREFIX) or ":" in key:
        legal = (
            f"1 to {MAX_KEY_LENGTH} characters without a colon, the first not {NUMBERED_KEY_PREFIX}"
        )
        raise InvalidRequest("key", f"{key!r} is not a legal key", legal=legal)
    return check_text(key)


def artifact_content(content: str | bytes | None, json_value: object) -> ArtifactContent:
    """Return the content to store: text, bytes, or a JSON value; raises InvalidRequest."""
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


def artifact_value(content: ArtifactContent) -> Any:  # noqa: ANN401 - any stored value
    """Return the content of an artifact as the value that was stored."""
    match content.kind:
        case "json":
            return json.loads(content.raw)
        case "text":
            return content.raw.decode()
        case _:
            return content.raw
