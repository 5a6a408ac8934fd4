"""The example of an HTTP agent as a module, for agents of tests that are built on it."""

import importlib.util
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "examples" / "agents" / "http_agent.py"


def load_example() -> Any:
    """Return the module `examples/agents/http_agent.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("http_agent", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
