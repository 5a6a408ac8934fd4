"""Error messages for wrong arguments name the argument and legal values."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from overnight_server.cli.terminal.failures import Code
from tests.support.command import run
from tests.support.stub_service import KEY, Service, stub_service


@pytest.fixture(autouse=True)
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A fake API server that the environment points to."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OVERNIGHT_")]:
        monkeypatch.delenv(name)
    with stub_service() as served:
        monkeypatch.setenv("OVERNIGHT_URL", served.url)
        monkeypatch.setenv("OVERNIGHT_API_KEY", KEY)
        yield served


@pytest.mark.parametrize("value", ["", "  \n"])
def test_the_error_for_an_empty_prompt_names_the_argument(value: str) -> None:
    refused = run("queue", value)

    assert refused.exit_code == Code.USAGE
    assert refused.stderr.startswith("Error: PROMPT is empty.\n")


@pytest.mark.parametrize(
    "arguments",
    [("add", "x", "--deadline", "8x"), ("bulk", "retry", "--created-after", "8x")],
)
def test_the_error_for_an_invalid_instant_lists_the_formats(arguments: tuple[str, ...]) -> None:
    refused = run(*arguments)

    assert refused.exit_code == Code.USAGE
    message = " ".join(refused.stderr.split())
    assert "'8x' is not an instant; write 8h, 07:00 or 2030-01-31T07:00Z" in message


@pytest.mark.parametrize(
    ("arguments", "route", "has_tasks"),
    [
        (("bulk", "show", "nothing"), "bulk", False),
        (("trigger", "remove", "nothing"), "triggers", False),
        (("get", "nothing"), "tasks", True),
    ],
)
def test_only_messages_about_tasks_mention_graphs(
    service: Service, arguments: tuple[str, ...], route: str, *, has_tasks: bool
) -> None:
    for path in (f"GET /api/v1/{route}", f"GET /api/v1/tasks/{route}"):
        service.on(path, (200, []))

    refused = run(*arguments)

    assert "Write the whole id for an older one" in refused.stderr
    assert ("GRAPH/TASK" in refused.stderr) == has_tasks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("add", "x", "--max-attempts", "900"),
            "--max-attempts: '900' is too large; write a number from 1 to 100",
        ),
        (
            ("add", "x", "--max-attempts", "many"),
            "--max-attempts: 'many' is not a whole number; write a number from 1 to 100",
        ),
        (
            ("add", "x", "--max-cost", "-1"),
            "--max-cost: '-1' is too small; write a number of at least 0",
        ),
        (
            ("user", "plan", "ada", "gold"),
            "PLAN: 'gold' is not one of 'free', 'pro', 'team', 'enterprise'.",
        ),
        (
            ("add", "x", "--timeout", "0s"),
            "--timeout: '0s' is too short; the shortest duration is 1s",
        ),
        (("add", "x", "--type", ""), "type: is empty; legal: text from 1 to 100 characters"),
    ],
)
def test_the_error_for_a_wrong_value_names_the_option_and_legal_values(
    arguments: tuple[str, ...], message: str
) -> None:
    refused = run(*arguments)

    assert refused.exit_code == Code.USAGE
    assert refused.stderr.splitlines()[0] == f"Error: {message}"
