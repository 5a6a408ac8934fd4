"""The installed distribution: beside a user's own code, and with the small set of dependencies."""

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.installation import (
    ROOT,
    SITE_PACKAGES,
    Installation,
    build_source_archive,
    build_wheel,
    expose,
    unpack,
)

#: Modules of the user's project with the names of the repository's folders and of libraries.
PROJECT = {
    "app.py": "NAME = 'app.py is hidden by app/'",
    "app/__init__.py": "NAME = 'the app of the user'",
    "app/local/__init__.py": "NAME = 'the app.local of the user'",
    "workers/__init__.py": "NAME = 'the workers of the user'",
    "beat_schedule.py": "NAME = 'the beat_schedule of the user'",
    "tests/__init__.py": "NAME = 'the tests of the user'",
    **{
        f"{library}.py": f"raise RuntimeError('the service imported {library}.py of the user')"
        for library in ("celery", "kombu", "redis", "sqlalchemy", "uvicorn", "yaml")
    },
    "my_handlers.py": """
        import app, app.local, beat_schedule, tests, workers
        from overnight import Context, handler

        @handler("names")
        def names(ctx: Context) -> list[str]:
            return [part.NAME for part in (app, app.local, workers, beat_schedule, tests)]
    """,
    ".env": "OVERNIGHT_HANDLERS=my_handlers\n",
}
NAMES = [
    "the app of the user",
    "the app.local of the user",
    "the workers of the user",
    "the beat_schedule of the user",
    "the tests of the user",
]
ASK_THE_CLIENT = """
import sys
sys.path.remove("")  # this program is the user's; only the libraries must be the real ones
from overnight import Client
with Client() as client:
    print([str(task.state) for task in client.tasks.list()])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that installers build from the source archive: every file passed through both."""
    archive = build_source_archive(tmp_path_factory.mktemp("archive"))
    project = unpack(archive, tmp_path_factory.mktemp("unpacked"))
    return build_wheel(tmp_path_factory.mktemp("wheel"), source=project)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    for name, text in PROJECT.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(textwrap.dedent(text))
    return directory


class Editable(Installation):
    """The editable install that these tests run in."""

    def __init__(self) -> None:
        self.bin = Path(sys.executable).parent


@pytest.fixture(params=["wheel", "editable"])
def installation(
    request: pytest.FixtureRequest, wheel: Path, tmp_path: Path, project: Path
) -> Iterator[Installation]:
    installed = Editable()
    if request.param == "wheel":
        installed = Installation(tmp_path / "venv", wheel, SITE_PACKAGES)
    yield installed
    installed.run("overnight", "down", cwd=project)


@pytest.mark.timeout(300)  # a whole start and stop of nine processes
def test_a_project_with_our_folder_names_runs_its_own_handlers(
    installation: Installation, project: Path
) -> None:
    installation.run("overnight", "up", "--detach", cwd=project)

    added = installation.run(
        *("overnight", "add", "who is who", "--type", "names", "--wait", "--json"), cwd=project
    )
    listed = installation.run("python", "-c", ASK_THE_CLIENT, cwd=project)
    served = json.loads((project / ".overnight" / "connection.json").read_text())["api_url"]
    page = httpx2.get(f"{served}/sign-in").text
    [style] = re.findall(r'href="(/static/[^"]+\.css)"', page)

    assert json.loads(added.stdout)["output"] == NAMES
    assert listed.stdout == "['completed']\n"
    assert httpx2.get(f"{served}{style}").status_code == httpx2.codes.OK
    assert list((project / ".overnight").glob("logs/worker.log"))


@pytest.fixture(scope="module")
def small(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel with its own dependencies and no extra."""
    directory = tmp_path_factory.mktemp("small")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    third_party = expose(directory / "third_party", project["dependencies"])
    assert not (third_party / "celery").exists()
    return Installation(directory / "venv", wheel, third_party)


def test_the_small_install_has_the_client_and_the_handler_decorator(
    small: Installation, tmp_path: Path
) -> None:
    imports = "from overnight import AsyncClient, Client, dag, handler; import overnight.testing"

    small.run("python", "-W", "error", "-c", imports, cwd=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    ["--version", "--help", "add --help", "list --help", "config show", "completion bash"],
)
def test_the_small_install_has_the_users_commands(
    small: Installation, tmp_path: Path, arguments: str
) -> None:
    assert small.run("overnight", *arguments.split(), cwd=tmp_path).stdout


def test_a_users_command_of_the_small_install_looks_for_a_server(
    small: Installation, tmp_path: Path
) -> None:
    done = small.run("overnight", "list", cwd=tmp_path, check=False)

    assert "No server is configured" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        ("up", "overnight[embedded]"),
        ("worker", "overnight[server]"),
        ("mcp", "overnight[mcp]"),
    ],
)
def test_a_command_of_the_service_names_the_extra_it_needs(
    small: Installation, tmp_path: Path, arguments: str, extra: str
) -> None:
    refused = small.run("overnight", *arguments.split(), cwd=tmp_path, check=False)

    assert refused.returncode != 0
    assert f"pip install '{extra}'" in refused.stderr
    assert "Traceback" not in refused.stderr
