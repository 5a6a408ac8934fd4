"""The base install: what `import overnight` needs, and what it must not need."""

import subprocess
import sys
from pathlib import Path

import overnight

# Dependencies of the extras; the base install has httpx2 and pydantic, and typer for the command.
EXTRAS = (
    "alembic",
    "celery",
    "fastapi",
    "kombu",
    "psycopg2",
    "pydantic_settings",
    "redis",
    "sqlalchemy",
    "starlette",
    "structlog",
    "uvicorn",
)
ROOT = Path(overnight.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if not {"celery", "mcp"} & set(path.relative_to(ROOT).parts)
)


def _run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)


def test_every_module_can_be_imported_without_the_extras() -> None:
    done = _run(
        "import importlib, sys\n"
        f"for name in {EXTRAS!r}: sys.modules[name] = None\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
    )

    assert "overnight.client.client" in MODULES
    assert (done.returncode, done.stderr) == (0, "")


def test_the_errors_need_neither_httpx_nor_pydantic() -> None:
    done = _run(
        "import sys\n"
        "for name in ('httpx2', 'pydantic'): sys.modules[name] = None\n"
        "from overnight.errors import TaskNotFound\n"
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_wire_model_is_exported_by_the_models_package() -> None:
    done = _run(
        "import overnight.models as models\n"
        "assert all(getattr(models, name) for name in models.__all__)\n"
        "from overnight.models import TaskCreate, TaskResponse\n"
        "from overnight.models.base import RequestModel, ResponseModel\n"
        "def below(kind):\n"
        "    return {kind.__name__} | {name for each in kind.__subclasses__()"
        " for name in below(each)}\n"
        "wire = (below(RequestModel) | below(ResponseModel)) - {'RequestModel', 'ResponseModel'}\n"
        "assert wire <= set(models.__all__), wire - set(models.__all__)\n"
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_public_names_are_loaded_on_first_use() -> None:
    done = _run(
        "import sys, overnight\n"
        "assert 'httpx2' not in sys.modules\n"
        "assert all(getattr(overnight, name) for name in overnight.__all__)\n"
        "assert set(overnight.__all__) <= set(dir(overnight))\n"
    )

    assert (done.returncode, done.stderr) == (0, "")
