"""The style sheet, the scripts and the icon, under addresses that contain a hash of their content.

A browser keeps them for a year. All files share one hash, so that modules import each other by
relative addresses.
"""

import hashlib
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}


@cache
def contents() -> dict[str, bytes]:
    """Return the files by name."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}


@cache
def version() -> str:
    """Return the hash that all addresses contain."""
    digest = hashlib.sha256()
    for name, content in contents().items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def address_of(name: str) -> str:
    """Return the address of a file; raise KeyError if there is none of this name."""
    contents()[name]
    return f"/static/{version()}/{name}"


async def serve_asset(request: Request) -> Response:
    """Serve one file; everybody may read it, because it holds no data."""
    name = request.path_params["name"]
    if request.path_params["version"] != version() or name not in contents():
        raise HTTPException(404)
    return Response(contents()[name], media_type=MEDIA_TYPES[Path(name).suffix], headers=HEADERS)
