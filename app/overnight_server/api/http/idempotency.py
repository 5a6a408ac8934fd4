"""How a header says that a request may come twice: its description, shared by all creates."""

from typing import Annotated

from fastapi import Header

from overnight_server.intake.translate_request import MAX_KEY_LENGTH

# Described here and judged in intake, where a refusal says what would do. Blanks at the ends do
# not survive the way of a header.
_FORM = rf"^[!-~]([ -~]{{0,{MAX_KEY_LENGTH - 2}}}[!-~])?$"
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="The same key again answers 200 with what it made the first time.",
        json_schema_extra={"pattern": _FORM},
    ),
]
