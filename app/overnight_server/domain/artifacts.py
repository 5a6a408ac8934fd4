"""What artifacts hold."""

import json
from typing import Any


def read_content(kind: str, content: bytes) -> Any:  # noqa: ANN401 - whatever was kept
    """Return an artifact's content as its maker gave it.

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
