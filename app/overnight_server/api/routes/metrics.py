"""Route of the metrics, for Prometheus."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from overnight.errors import Forbidden
from overnight.models.scopes import METRICS
from overnight_server.api.http.authentication import Access
from overnight_server.api.http.dependencies import Injected
from overnight_server.api.http.exposition import MEDIA_TYPE, expose
from overnight_server.api.http.thread_route import ThreadRoute
from overnight_server.control.keys import Caller

router = APIRouter(route_class=ThreadRoute, tags=["metrics"])
MetricsReader = Annotated[Caller, Depends(Access(METRICS))]
EXAMPLE = "# TYPE overnight_slots gauge\novernight_slots 8.0\n"


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "The metrics in the text format of Prometheus.",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": EXAMPLE}},
        }
    },
)
def read_metrics(deps: Injected, caller: MetricsReader) -> Response:
    """Return the metrics of the deployment, for an admin with the scope `metrics:read`."""
    if not caller.is_admin:
        raise Forbidden(METRICS)
    return Response(expose(deps.db, deps.settings), media_type=MEDIA_TYPE)
