"""Route of the OpenAPI document."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from overnight_server.api.http.authentication import ANYBODY_WITH_A_KEY
from overnight_server.api.http.openapi import without_admin_paths
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.keys import Caller

router = APIRouter(route_class=ThreadRoute, prefix="/api/v1", tags=["description"])

EXAMPLE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"example": {"openapi": "3.1.0", "paths": {}}}}}
}


@router.get("/openapi.json", responses=EXAMPLE)
def read_description(
    request: Request, caller: Annotated[Caller, Depends(ANYBODY_WITH_A_KEY)]
) -> dict[str, Any]:
    """Return the OpenAPI document of the routes that the caller may know: those for admins if so.

    It needs a key of any scope.
    """
    document: dict[str, Any] = request.app.openapi()
    return document if caller.is_operator else without_admin_paths(document)
