"""Imports the modules with Python handlers that the settings name."""

import importlib
import sys
import traceback
from collections.abc import Iterable
from typing import Final

from celery._state import get_current_app

from overnight.handlers.registry import registered
from overnight_server.telemetry import LogEvent, emit
from overnight_worker import working_directory

ECHO: Final = "overnight_worker.echo_handler"
DEMO: Final = "overnight_worker.demo_handlers"
CANNOT_IMPORT: Final = 3


class HandlersNotLoaded(Exception):
    """A module with handlers could not be imported; the message names the module and the cause."""

    def __init__(self, module: str, cause: BaseException) -> None:
        last_line = traceback.format_exception_only(cause)[-1].strip()
        super().__init__(f"OVERNIGHT_HANDLERS: cannot import {module!r}: {last_line}")
        self.module = module


def load_handlers(modules: Iterable[str], *, demo: bool = False) -> tuple[str, ...]:
    """Import `echo`, with `demo` the demo handlers, and these modules; return all task types."""
    all_modules = [ECHO, *([DEMO] if demo else []), *modules]
    working_directory.find_first()
    celery = get_current_app()
    for module in all_modules:
        _import(module)
    types = _types(modules)
    # A module may have made a Celery app of its own, which makes itself the current one.
    celery.set_current()
    emit(LogEvent.HANDLERS_LOADED, modules=all_modules, types=types)
    return types


def _types(modules: Iterable[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(registered()))
    except (Exception, SystemExit) as error:
        # A library found its handlers only now, and one of them is wrong.
        raise HandlersNotLoaded(", ".join(modules), error) from error


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise HandlersNotLoaded(module, error) from error


def main() -> int:
    """Import the modules given as arguments; print the first that fails and return exit code 3."""
    try:
        load_handlers(sys.argv[1:])
    except HandlersNotLoaded as error:
        sys.stdout.write(f"{error}\n")
        return CANNOT_IMPORT
    return 0


if __name__ == "__main__":
    sys.exit(main())
