"""All routes of the dashboard, which the API process adds behind its own."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from overnight_server.api.http.openapi import methods_of
from overnight_server.dashboard import screens as screen_modules
from overnight_server.dashboard import serve
from overnight_server.dashboard.assets import serve_asset
from overnight_server.dashboard.live import stream_changes
from overnight_server.dashboard.parts import parts_route
from overnight_server.dashboard.screen import PageRoute, Screen
from overnight_server.dashboard.sign_in import show_link, show_sign_in, sign_in, sign_out
from overnight_server.dashboard.visit import Visit


@cache
def screens() -> Sequence[Screen]:
    """Return the screen of every module of `dashboard.screens`."""
    names = sorted(module.name for module in iter_modules(screen_modules.__path__))
    modules = [import_module(f"{screen_modules.__name__}.{name}") for name in names]
    return [module.screen for module in modules]


def routes() -> list[Route]:
    """Return the routes in the order in which they are tried; the last one takes every path."""
    public = [
        Route("/static/{version}/{name}", serve_asset, methods=["GET"]),
        Route("/sign-in", show_sign_in, methods=["GET"]),
        Route("/sign-in", sign_in, methods=["POST"]),
        Route("/sign-in/{link}", show_link, methods=["GET"]),
        Route("/sign-out", sign_out, methods=["POST"]),
        Route("/live", stream_changes, methods=["GET"]),
    ]
    places = {
        is_admin: frozenset(screen.place for screen in screens() if is_admin >= screen.for_admins)
        for is_admin in (False, True)
    }
    served = [
        Route(route.path, serve.endpoint(route, places), methods=[route.method])
        for route in page_routes()
    ]
    return [*public, *served, Route("/{path:path}", _unknown(places), methods=METHODS)]


def page_routes() -> Sequence[PageRoute]:
    """Return the pages and acts of all screens, and their parts."""
    parts = {name: part for screen in screens() for name, part in screen.parts.items()}
    found = [route for screen in screens() for route in screen.routes]
    # A path without parameters comes before one that also matches it.
    return sorted([*found, parts_route(parts)], key=lambda route: "{" in route.path)


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def _unknown(places: serve.PlacesOf) -> serve.Endpoint:
    """Return what serves every other path: a page for browsers, an error for programs."""

    def no_page(_visit: Visit, path: str) -> Response:  # noqa: ARG001 - the parameter of the path
        raise HTTPException(404)

    serve_page = serve.endpoint(
        PageRoute("GET", "", "", for_admins=False, function=no_page), places
    )

    async def serve_unknown(request: Request) -> Response:
        if methods_of(request.app, request.url.path):
            raise HTTPException(405)
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return await serve_page(request)

    return serve_unknown
