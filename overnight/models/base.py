"""The base classes of all request and response bodies."""

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_JSON_SCHEMA_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


class RequestModel(BaseModel):
    """Base of request bodies: an unknown field is an error, because a typo must not be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the bounds of every field with JSON Schema keywords.

        pydantic writes its own keywords (`ge`, `le`) for a field with a validator that runs before
        the type check, such as `WholeNumber`.
        """
        schema = handler(core)
        for field in handler.resolve_ref_schema(schema).get("properties", {}).values():
            for node in (field, *field.get("anyOf", ())):
                for bound in _JSON_SCHEMA_BOUNDS.keys() & node.keys():
                    node[_JSON_SCHEMA_BOUNDS[bound]] = node.pop(bound)
        return schema


class ResponseModel(BaseModel):
    """Base of responses: an unknown field is ignored, because a newer service may send more."""

    model_config = ConfigDict(extra="ignore", frozen=True, from_attributes=True)
