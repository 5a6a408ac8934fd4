"""How the output of a task is validated, and what the next attempt learns of a rejected one."""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from overnight.models.base import RequestModel, ResponseModel
from overnight.models.execution import Argv
from overnight.models.field_types import DAY_SECONDS, JsonObject, Text, WholeNumber
from overnight.validator_definition import check_pattern, check_schema

MAX_OUTPUT_BYTES: Final = 1024 * 1024
MAX_VALIDATORS: Final = 10
# How much of a rejected output the next attempt gets.
FEEDBACK_BYTES: Final = 8 * 1024
# The fields that each method has, and whether it must have them.
FIELDS: Final[dict[str, dict[str, bool]]] = {
    "size": {"max_bytes": True, "min_bytes": False},
    "json-schema": {"schema": True},
    "regex": {"pattern": True},
    "test-pass": {"argv": True, "timeout_seconds": False},
    "none": {},
}


def _known_method(method: object) -> object:
    if method == "llm-judge":
        raise ValueError("llm-judge is not available yet")
    return method


Method = Annotated[
    Literal["size", "json-schema", "regex", "test-pass", "none"], BeforeValidator(_known_method)
]


class OutputValidator(RequestModel):
    """One check of a task's output; each method has fields of its own."""

    model_config = ConfigDict(validate_default=True, serialize_by_alias=True)

    method: Method = Field(
        description="size, json-schema, regex, test-pass (a command in the workspace of a run"
        " with the runner command) or none."
    )
    max_bytes: WholeNumber | None = Field(
        None, ge=1, le=MAX_OUTPUT_BYTES, description="size: the largest output, as JSON."
    )
    min_bytes: WholeNumber | None = Field(
        None, ge=0, le=MAX_OUTPUT_BYTES, description="size: the smallest output, as JSON."
    )
    json_schema: JsonObject | None = Field(
        None,
        alias="schema",
        description="json-schema: the JSON schema (2020-12) of the output; a $ref names a place in"
        " it.",
    )
    pattern: Text | None = Field(
        None,
        min_length=1,
        max_length=2000,
        description="regex: a regular expression of Python, which must be found in the output: in"
        " its text, its field text, or its JSON.",
    )
    argv: Argv | None = Field(
        None,
        description="test-pass: the program and its arguments; it must end with exit code 0.",
    )
    timeout_seconds: WholeNumber | None = Field(
        None, ge=1, le=DAY_SECONDS, description="test-pass: how long it may take."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_missing_schema(cls, value: object) -> object:
        # pydantic would report the default of an alias under another name.
        if isinstance(value, dict) and value.get("method") == "json-schema":
            return {"schema": None, **value}
        return value

    @field_validator("*")
    @classmethod
    def _belongs_to_method(cls, value: object, info: ValidationInfo) -> object:
        method, name = info.data.get("method"), info.field_name or ""
        if method is None or name == "method":
            return value
        field = "schema" if name == "json_schema" else name
        fields = FIELDS[method]
        if value is None and fields.get(field):
            raise ValueError(f"is missing, and the method {method} needs it")
        if value is not None and field not in fields:
            raise ValueError(f"has no meaning for the method {method}")
        return value

    @field_validator("json_schema")
    @classmethod
    def _legal_schema(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema is not None:
            check_schema(schema)
        return schema

    @field_validator("pattern")
    @classmethod
    def _legal_pattern(cls, pattern: str | None) -> str | None:
        return None if pattern is None else check_pattern(pattern)

    def stored(self) -> dict[str, Any]:
        """Return the validator as a task's spec has it."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Feedback(ResponseModel):
    """Why the output of an earlier attempt was rejected; the next attempt may do better."""

    attempt: int = Field(description="The number of that claim of the task, from 1.")
    validator: str | None = Field(
        description="The method that rejected it; null if the handler or agent itself did."
    )
    message: str = Field(description="What is wrong with the output.")
    output: str | None = Field(
        None, description="The rejected output as text, at most 8 KB of it; null if there is none."
    )
