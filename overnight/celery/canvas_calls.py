"""Sends calls of chain, group and chord of a durable app to it; other apps stay as they are.

Celery's canvas has no hook for this: the three classes are changed once, in this process, when the
first app becomes durable.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import Celery
from celery.canvas import _chain, chord, group

Submit = Callable[[Any, Any, Any, dict[str, Any]], Any]
Find = Callable[[Celery, Any], Submit | None]
_find: list[Find] = []


def lead_canvas_calls(find: Find) -> None:
    """Ask `find(app, part)` for what submits a canvas; None leaves it to Celery."""
    if not _find:
        for kind in (_chain, chord, group):
            _replace_apply_async(kind)
    _find[:] = [find]


def _replace_apply_async(kind: Any) -> None:
    original = kind.apply_async

    @wraps(original)
    def apply_async(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        app = self.app
        submit = _find[0](app, self)
        if submit is None or app.conf.task_always_eager:
            return original(self, args, kwargs, **options)
        return submit(self, args, kwargs, options)

    kind.apply_async = apply_async
