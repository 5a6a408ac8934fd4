"""What starts Overnight elsewhere: the Procfile, the compose file and the image agree and are safe.

Read and checked here, without a server; test_procfile_starts.py runs what they say.
"""

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.routing import APIRoute

from overnight_server.api.routes import health
from overnight_server.settings import Settings, load
from tests.support.installation import build_wheel

ROOT = Path(__file__).parents[2]
OVERNIGHT = Path(sys.executable).with_name("overnight")
SERVERS = {"postgres", "redis"}
LOOPBACK = "127.0.0.1:"
# Everybody else logs in as overnight_service.
LOGINS = {"api": "overnight_api", "migrate": "overnight"}
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)([^}]*)\}")


def procfile() -> dict[str, list[str]]:
    """The Procfile's processes and the words of their commands."""
    rows = (ROOT / "Procfile").read_text().splitlines()
    return {name: shlex.split(command) for name, _, command in (row.partition(":") for row in rows)}


def compose_text() -> str:
    """The compose file without its comments."""
    return re.sub(r"(?m)^\s*#.*$", "", (ROOT / "docker-compose.yml").read_text())


COMPOSE: dict[str, Any] = yaml.safe_load(compose_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if name not in SERVERS}
PROCESSES = {name: service for name, service in OURS.items() if name != "migrate"}


def environment() -> Iterator[tuple[str, str, str]]:
    """Service, name and value of every variable the compose file sets."""
    for service, stated in SERVICES.items():
        for name, value in stated.get("environment", {}).items():
            yield service, name, str(value)


def seconds(duration: str) -> int:
    """Read a compose duration given in whole seconds."""
    return int(duration.removesuffix("s"))


def test_the_procfile_has_one_line_per_process() -> None:
    assert procfile() == {
        name: ["overnight", name]
        for name in (
            *(
                "api",
                "dispatcher",
                "worker",
                "maintenance",
                "beat",
                "agent-driver",
                "notifier",
                "flower",
            ),
        )
    }


def test_compose_runs_the_same_processes_as_the_procfile() -> None:
    commands = {name: ["overnight", *service["command"]] for name, service in PROCESSES.items()}

    assert commands == procfile()


@pytest.mark.parametrize("name", [*procfile(), "migrate", "doctor"])
def test_every_command_exists(name: str) -> None:
    asked = subprocess.run(
        [OVERNIGHT, name, "--help"], check=False, capture_output=True, text=True, timeout=60
    )

    assert asked.returncode == 0, asked.stderr
    assert f"overnight {name}" in asked.stdout


def test_every_setting_that_compose_names_is_known() -> None:
    existing = {f"OVERNIGHT_{name.upper()}" for name in Settings.model_fields}
    used = {name for _, name, _ in environment() if name.startswith("OVERNIGHT_")}

    assert {"OVERNIGHT_DATABASE_URL", "OVERNIGHT_REDIS_URL"} <= used
    assert used <= existing


@pytest.mark.parametrize("service", OURS)
def test_the_settings_of_every_service_are_accepted(service: str, tmp_path: Path) -> None:
    stated = {name: value for owner, name, value in environment() if owner == service}
    filled = {name: VARIABLE.sub(_given_or_default, value) for name, value in stated.items()}

    settings = load(filled, dotenv=tmp_path / "absent")

    assert settings.redis_url == "redis://:given@redis:6379/0"
    if service == "flower":
        assert settings.database_url is None
        return
    login = LOGINS.get(service, "overnight_service")
    assert settings.database_url == f"postgresql+psycopg2://{login}:given@postgres:5432/overnight"


def test_no_password_has_a_default() -> None:
    wanted = [(name, rest) for name, rest in VARIABLE.findall(compose_text()) if "PASS" in name]

    assert {name for name, _ in wanted} == {
        "API_LOGIN_PASSWORD",
        "POSTGRES_PASSWORD",
        "REDIS_PASSWORD",
        "SERVICE_LOGIN_PASSWORD",
        "FLOWER_PASSWORD",
    }
    assert [(name, rest) for name, rest in wanted if not rest.startswith(":?")] == []


def test_no_password_is_in_the_files() -> None:
    secret = re.compile(r"PASSWORD|SECRET|TOKEN|API_KEY")
    written = [
        (service, name)
        for service, name, value in environment()
        if (secret.search(name) and not VARIABLE.fullmatch(value))
        or re.search(r"://[^/@]*:[^/@]+@", VARIABLE.sub("", value))
    ]

    assert written == []
    assert not secret.search((ROOT / "Dockerfile").read_text())


def test_only_the_api_and_flower_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert published.keys() == {"api", "flower"}
    assert all(port.startswith(LOOPBACK) for ports in published.values() for port in ports)
    assert all("network_mode" not in service for service in SERVICES.values())


@pytest.mark.parametrize("name", ["api", "flower"])
def test_a_published_port_is_the_one_its_process_listens_on(name: str) -> None:
    [port] = SERVICES[name]["ports"]
    inside = port.rpartition(":")[2]

    assert SERVICES[name]["environment"][f"OVERNIGHT_{name.upper()}_PORT"] == inside
    assert f"http://{LOOPBACK}{inside}/" in SERVICES[name]["healthcheck"]["test"][-1]


def test_the_health_check_of_the_api_uses_an_existing_route() -> None:
    [asked] = re.findall(r"http://[^/]+(/[^']*)'", SERVICES["api"]["healthcheck"]["test"][-1])

    assert asked in {route.path for route in health.router.routes if isinstance(route, APIRoute)}


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_the_data_of_a_server_is_on_a_volume(name: str) -> None:
    [volume] = SERVICES[name]["volumes"]
    source, _, target = volume.partition(":")

    assert source in COMPOSE["volumes"]
    assert target.startswith("/")


def test_every_service_has_a_health_check_and_restarts() -> None:
    staying = {name: service for name, service in SERVICES.items() if name != "migrate"}

    assert all(service["healthcheck"]["test"] for service in staying.values())
    assert {service["restart"] for service in staying.values()} == {"unless-stopped"}
    assert SERVICES["migrate"]["restart"] == "no"


def test_no_process_starts_before_the_migration_has_finished() -> None:
    waits = {name: service["depends_on"] for name, service in OURS.items()}
    healthy, done = "service_healthy", "service_completed_successfully"

    assert waits["migrate"] == {"postgres": {"condition": healthy}}
    assert all(waits[name]["postgres"] == {"condition": healthy} for name in PROCESSES)
    assert all(waits[name]["migrate"] == {"condition": done} for name in PROCESSES)


def test_a_submit_does_not_wait_for_redis() -> None:
    without = {name for name, service in PROCESSES.items() if "redis" not in service["depends_on"]}

    assert without == {"api"}


def test_a_stopped_process_has_time_to_release_its_tasks() -> None:
    grace = Settings.model_fields["shutdown_grace"].default

    assert all(seconds(service["stop_grace_period"]) > 2 * grace for service in OURS.values())


def test_no_process_runs_with_privileges() -> None:
    assert all(service["cap_drop"] == ["ALL"] for service in OURS.values())
    assert all("no-new-privileges:true" in service["security_opt"] for service in OURS.values())
    assert all("privileged" not in service for service in SERVICES.values())


def test_the_image_runs_as_an_ordinary_user_on_pinned_requirements() -> None:
    steps = re.findall(r"(?m)^([A-Z]+) (.+)$", (ROOT / "Dockerfile").read_text())
    users = [value for step, value in steps if step == "USER"]
    installs = [value for step, value in steps if "pip install" in value]

    assert users == ["overnight"]
    assert "--require-hashes --requirement requirements/runtime.txt" in installs[0]
    assert all("--no-deps --no-build-isolation" in install for install in installs[1:])


def test_the_image_copies_only_files_that_exist_and_are_not_ignored() -> None:
    copied = _copied_into_the_image()
    ignored, *exceptions = [
        row for row in (ROOT / ".dockerignore").read_text().splitlines() if not row.startswith("#")
    ]

    assert ignored == "*"
    assert copied == {row.removeprefix("!") for row in exceptions if row.startswith("!")}
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_the_files_that_the_image_copies_are_enough_to_build_the_wheel(tmp_path: Path) -> None:
    for copied in _copied_into_the_image():
        target = tmp_path / copied
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / copied).is_dir():
            shutil.copytree(ROOT / copied, target)
        else:
            shutil.copy(ROOT / copied, target)

    wheel = build_wheel(tmp_path / "dist", source=tmp_path)

    with zipfile.ZipFile(wheel) as archive:
        assert {"overnight", "overnight_server", "overnight_worker"} <= {
            name.partition("/")[0] for name in archive.namelist()
        }


def _copied_into_the_image() -> set[str]:
    steps = re.findall(r"(?m)^COPY (.+)$", (ROOT / "Dockerfile").read_text())
    return {source for step in steps for source in step.split()[:-1]}


def _given_or_default(variable: re.Match[str]) -> str:
    return variable[2].removeprefix(":-") if variable[2].startswith(":-") else "given"
