"""The settings: names, defaults, ranges, sources, refusals, and what is shown of them."""

import doctest
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pydantic
import pytest

from overnight.models.queue import QueueSubmit
from overnight.models.tasks import TaskCreate
from overnight_server import mask
from overnight_server.intake.translate_request import new_task, prompted_task
from overnight_server.settings import Settings, SettingsError, current, field_types, load, page
from overnight_server.settings.sources import COMMAND_VARIABLES, RETIRED
from overnight_worker.input_files import VARIABLES
from overnight_worker.sandbox import EVENTS_VARIABLE

SHORT = {"OVERNIGHT_ALLOW_SHORT_CLOCKS": "true"}
SERIALIZATION = "OVERNIGHT_PER_USER_SERIALIZATION"


@pytest.fixture(autouse=True)
def _empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for env in [env for env in os.environ if env.startswith(("OVERNIGHT_", "AG_"))]:
        monkeypatch.delenv(env)


def problems(environ: Mapping[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(environ)
    return str(caught.value).splitlines()


def origin(settings: Settings, name: str) -> str:
    [row] = [row for row in settings.masked() if row.name == name]
    return row.origin


@pytest.mark.parametrize(
    ("name", "default", "legal"),
    [
        ("poll_interval", 5.0, "seconds from 1 to 30"),
        ("timeout_check_interval", 60.0, "seconds from 30 to 300"),
        ("max_pending_per_user", 50, "a whole number from 10 to 200"),
        ("claim_ttl", 60.0, "seconds from 30 to 300"),
        ("per_user_serialization_enabled", True, "true or false"),
        ("per_user_serialization_scope", "project", "one of project, user, none"),
        ("per_user_serialization_lock_timeout_seconds", 3600.0, "seconds from 60 to 86400"),
        ("slots_max", None, "a whole number from 1 to 100000"),
        ("queue_max_size", 1_000_000, "a whole number from 1 to 100000000"),
        ("max_tasks_per_dag", 1000, "a whole number from 1 to 100000"),
        ("max_attempts", 3, "a whole number from 1 to 100"),
        ("priority", 50, "a whole number from 0 to 100"),
        ("priority_boost_per_minute", 0.1, "a number from 0 to 10"),
        ("heartbeat_interval", 10.0, "seconds from 1 to 60"),
        ("lease_seconds", 30.0, "seconds from 5 to 600"),
        ("lease_check_interval", 5.0, "seconds from 1 to 60"),
        ("promote_interval", 5.0, "seconds from 1 to 60"),
        ("trigger_interval", 5.0, "seconds from 1 to 60"),
        ("bulk_interval", 2.0, "seconds from 1 to 60"),
        ("agent_stale_after_sec", 90.0, "seconds from 5 to 3600"),
        ("agent_claim_ttl_sec", 60.0, "seconds from 30 to 300"),
        ("agent_max_concurrent_tasks", 2, "a whole number from 1 to 1000"),
        ("retry_strategy", "exponential", "one of exponential, quadratic, fixed, immediate"),
        ("retry_initial_delay_sec", 10.0, "seconds from 1 to 86400"),
        ("retry_backoff_multiplier", 2.0, "a number from 1 to 100"),
        ("retry_max_delay_sec", 300.0, "seconds from 1 to 604800"),
        ("retry_quadratic_base_sec", 5.0, "seconds from 1 to 86400"),
        ("retry_jitter", True, "true or false"),
        ("cancel_grace", 30.0, "seconds from 1 to 600"),
        ("shutdown_grace", 5.0, "seconds from 1 to 600"),
        ("worker_liveness", 15.0, "seconds from 5 to 300"),
        ("home", Path(".overnight"), "a path"),
        ("handlers", (), "names separated by commas"),
        ("log_format", "logfmt", "one of logfmt, json"),
        ("pool", "default", "text"),
        ("concurrency", 2, "a whole number from 1 to 256"),
        ("default_type", "echo", "text"),
        ("api_port", 0, "a whole number from 0 to 65535"),
    ],
)
def test_a_setting_has_the_default_and_the_range_of_the_contract(
    name: str, default: object, legal: str
) -> None:
    settings = load({})

    [row] = [row for row in settings.masked() if row.name == name]
    assert getattr(settings, name) == default
    assert row.legal == legal


@pytest.mark.parametrize(
    ("env", "text", "name", "value"),
    [
        ("OVERNIGHT_POLL_INTERVAL", "2.5", "poll_interval", 2.5),
        ("OVERNIGHT_POLL_INTERVAL", "30s", "poll_interval", 30.0),
        ("OVERNIGHT_CANCEL_GRACE", "1m30s", "cancel_grace", 90.0),
        ("OVERNIGHT_CANCEL_GRACE", "1500ms", "cancel_grace", 1.5),
        ("OVERNIGHT_STALE_CLAIMING_THRESHOLD", "45", "claim_ttl", 45.0),
        ("OVERNIGHT_DIRECTOR_URL", "https://localhost:8443/", "url", "https://localhost:8443"),
        ("AG_QUEUE_MAX_SIZE", "50", "queue_max_size", 50),
        ("AG_QUEUE_MAX_ATTEMPTS", "5", "max_attempts", 5),
        ("AG_QUEUE_DISPATCH_TIMEOUT", "30s", "dispatch_timeout", 30.0),
        ("AG_QUEUE_DIR", "/srv/queue", "home", Path("/srv/queue")),
        (
            "OVERNIGHT_HANDLERS",
            "app.agents, extra.more,",
            "handlers",
            ("app.agents", "extra.more"),
        ),
        ("OVERNIGHT_LOG_FORMAT", "JSON", "log_format", "json"),
        ("OVERNIGHT_SLOTS_MAX", "4", "slots_max", 4),
        ("OVERNIGHT_SLOTS", '{"max": 4}', "slots_max", 4),
        ("OVERNIGHT_SLOTS_MAX", "", "slots_max", None),
        ("OVERNIGHT_PER_USER_SERIALIZATION_ENABLED", "no", "per_user_serialization_enabled", False),
        (SERIALIZATION, '{"enabled": false}', "per_user_serialization_enabled", False),
        (
            SERIALIZATION,
            '{"enabled":true,"lock_timeout_seconds":300}',
            "per_user_serialization_lock_timeout_seconds",
            300.0,
        ),
        ("OVERNIGHT_RETRY", '{"strategy": "fixed"}', "retry_strategy", "fixed"),
        ("OVERNIGHT_RETRY", '{"retry_on": ["crash"]}', "retry_on", ("crash",)),
        ("OVERNIGHT_REDIS_URL", "rediss://:pw@h:6380/1", "redis_url", "rediss://:pw@h:6380/1"),
    ],
)
def test_a_value_is_read_under_any_of_its_names(
    env: str, text: str, name: str, value: object
) -> None:
    assert getattr(load({env: text}), name) == value


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_a_database_address_names_the_installed_driver(scheme: str) -> None:
    settings = load({"OVERNIGHT_DATABASE_URL": f"{scheme}://app:p%40ss@db:5432/overnight"})

    assert settings.database_url == "postgresql+psycopg2://app:p%40ss@db:5432/overnight"


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"OVERNIGHT_POLL_INTERVAL": "99"},
            "OVERNIGHT_POLL_INTERVAL=99: must be seconds from 1 to 30 (nearest: 30)",
        ),
        (
            {"OVERNIGHT_POLL_INTERVAL": "500ms"},
            "OVERNIGHT_POLL_INTERVAL=500ms: must be seconds from 1 to 30 (nearest: 1)",
        ),
        (
            {"OVERNIGHT_POLL_INTERVAL": "nan"},
            "OVERNIGHT_POLL_INTERVAL=nan: must be seconds from 1 to 30",
        ),
        (
            {"OVERNIGHT_POLL_INTERVAL": "inf"},
            "OVERNIGHT_POLL_INTERVAL=inf: must be seconds from 1 to 30 (nearest: 30)",
        ),
        (
            {"OVERNIGHT_CONCURRENCY": "2.6"},
            "OVERNIGHT_CONCURRENCY=2.6: must be a whole number from 1 to 256 (nearest: 3)",
        ),
        (
            {"OVERNIGHT_MAX_PENDING_PER_USER": "soon"},
            "OVERNIGHT_MAX_PENDING_PER_USER=soon: must be a whole number from 10 to 200",
        ),
        (
            {"OVERNIGHT_LOG_FORMAT": "jsn"},
            "OVERNIGHT_LOG_FORMAT=jsn: must be one of logfmt, json (nearest: json)",
        ),
        (
            {"AG_QUEUE_MAX_SIZE": "0"},
            "AG_QUEUE_MAX_SIZE=0: must be a whole number from 1 to 100000000 (nearest: 1)",
        ),
        (
            {"OVERNIGHT_RETRY_JITTER": "perhaps"},
            "OVERNIGHT_RETRY_JITTER=perhaps: must be true or false",
        ),
        (
            {"OVERNIGHT_DATABASE_URL": "mysql://app:hunter2@db/x"},
            (
                "OVERNIGHT_DATABASE_URL=mysql://app:***@db/x: "
                "must be a postgresql:// or postgres:// address"
            ),
        ),
        (
            {"OVERNIGHT_REDIS_URL": "hunter2"},
            "OVERNIGHT_REDIS_URL=***: must be a redis:// or rediss:// address",
        ),
        (
            {"OVERNIGHT_URL": "localhost:8443"},
            "OVERNIGHT_URL=localhost:8443: must be an http:// or https:// address",
        ),
        (
            {SERIALIZATION: '{"scope": "planet"}'},
            (
                f"per_user_serialization.scope in {SERIALIZATION}=planet: "
                "must be one of project, user, none (nearest: project)"
            ),
        ),
        ({SERIALIZATION: "true"}, f"{SERIALIZATION}=true: must be a JSON object"),
        ({SERIALIZATION: "{"}, f"{SERIALIZATION}={{: must be a JSON object"),
        (
            {SERIALIZATION: '{"enable": true}'},
            (
                f"per_user_serialization.enable in {SERIALIZATION}: "
                "no such setting (nearest: per_user_serialization_enabled)"
            ),
        ),
        (
            {"OVERNIGHT_POL_INTERVAL": "5"},
            "OVERNIGHT_POL_INTERVAL: no such setting (nearest: OVERNIGHT_POLL_INTERVAL)",
        ),
        (
            {"OVERNIGHT_API_KEYFILE": "hunter2"},
            "OVERNIGHT_API_KEYFILE: no such setting (nearest: OVERNIGHT_API_KEY_FILE)",
        ),
        (
            {"OVERNIGHT_API_KEY_FILE": "nowhere"},
            "OVERNIGHT_API_KEY_FILE=nowhere: must be a readable file (No such file or directory)",
        ),
        (
            {"OVERNIGHT_API_KEY_FILE": "nowhere", "OVERNIGHT_API_KEY": "hunter2"},
            "OVERNIGHT_API_KEY_FILE and OVERNIGHT_API_KEY are both set: unset one of them",
        ),
        (
            {"OVERNIGHT_CONFIG_FILE": "nowhere"},
            (
                "OVERNIGHT_CONFIG_FILE=nowhere: must be a readable JSON file "
                "(No such file or directory)"
            ),
        ),
        (
            {"OVERNIGHT_HEARTBEAT_INTERVAL": "20"},
            (
                "OVERNIGHT_HEARTBEAT_INTERVAL=20 and OVERNIGHT_LEASE_SECONDS=30: three heartbeats "
                "must fit into one lease (heartbeat at most 10, or lease at least 60)"
            ),
        ),
        (
            {"OVERNIGHT_RUN_MEMORY_MB": "512"},
            (
                "OVERNIGHT_MAX_MEMORY_PER_CHILD_MB=1024 and OVERNIGHT_RUN_MEMORY_MB=512: a pool "
                "process must be replaced before its memory exceeds what a run may use "
                "(process at most 512, or run at least 1024)"
            ),
        ),
        (
            {"OVERNIGHT_RETRY_INITIAL_DELAY_SEC": "10m"},
            (
                "OVERNIGHT_RETRY_INITIAL_DELAY_SEC=600 and OVERNIGHT_RETRY_MAX_DELAY_SEC=300: "
                "the first delay must not exceed the longest"
            ),
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_the_legal_values(
    environ: dict[str, str], line: str
) -> None:
    assert problems(environ) == [line]


def test_all_problems_are_reported_at_once_without_secrets() -> None:
    lines = problems(
        {
            "OVERNIGHT_POLL_INTERVAL": "99",
            "OVERNIGHT_NONSENSE": "hunter2",
            "OVERNIGHT_DATABASE_URL": "oracle://a:hunter2@h",
            "OVERNIGHT_REDIS_URL_FILE": "/nowhere",
        }
    )

    assert len(lines) == 4
    assert "hunter2" not in "".join(lines)


def test_what_a_worker_tells_a_command_is_no_setting_and_no_mistake() -> None:
    told = {EVENTS_VARIABLE, *VARIABLES.values()}

    load(dict.fromkeys(told, "x"))

    assert told == COMMAND_VARIABLES


def test_environment_names_without_the_prefix_are_ignored() -> None:
    assert load({"PATH": "/bin", "AGENT_URL": "x", "OVERNIGHTLY": "y"}) == Settings()


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_retired_setting_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    settings = load({f"OVERNIGHT_{name.upper()}": "30"})

    assert settings == Settings()
    assert f"WARN queue=setting_ignored setting=OVERNIGHT_{name.upper()}" in caplog.text
    assert RETIRED[name] in caplog.text


def test_a_task_without_a_priority_of_its_own_gets_that_of_the_settings() -> None:
    settings = load({"OVERNIGHT_PRIORITY": "70", "OVERNIGHT_PRIORITY_BOOST_PER_MINUTE": "0.5"})
    requests = [{}, {"priority": 3}, {"priority_score": 9, "priority_boost_per_minute": 0.1}]

    tasks = [new_task(TaskCreate(title="x", **fields), settings, None) for fields in requests]
    prompt = prompted_task(QueueSubmit(prompt="x"), settings, None)

    found = [(task.priority, task.priority_boost_per_minute) for task in (*tasks, prompt)]
    assert found == [(70, 0.5), (50, 0.5), (9, 0.1), (70, 0.5)]


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("lease_seconds", 2.0),
        ("heartbeat_interval", 0.5),
        ("claim_ttl", 2.0),
        ("timeout_check_interval", 1.0),
        ("poll_interval", 0.2),
    ],
)
def test_short_durations_need_the_setting_for_tests_and_drills(name: str, seconds: float) -> None:
    environ = {
        "OVERNIGHT_LEASE_SECONDS": "30",
        "OVERNIGHT_HEARTBEAT_INTERVAL": "0.5",
        f"OVERNIGHT_{name.upper()}": str(seconds),
    }

    assert getattr(load(environ | SHORT), name) == seconds
    assert any(f"OVERNIGHT_{name.upper()}={seconds}" in line for line in problems(environ))


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("OVERNIGHT_POLL_INTERVAL", "0"),
        ("OVERNIGHT_POLL_INTERVAL", "-1"),
        ("OVERNIGHT_POLL_INTERVAL", "31"),
        ("OVERNIGHT_MAX_PENDING_PER_USER", "9"),
    ],
)
def test_the_setting_for_short_durations_removes_no_other_limit(env: str, text: str) -> None:
    [line] = problems({env: text} | SHORT)

    assert line.startswith(f"{env}={text}: must be ")


def test_three_heartbeats_must_fit_even_into_a_short_lease() -> None:
    [line] = problems({"OVERNIGHT_LEASE_SECONDS": "2"} | SHORT)

    assert "OVERNIGHT_HEARTBEAT_INTERVAL=10 and OVERNIGHT_LEASE_SECONDS=2" in line


@pytest.mark.parametrize(
    ("env", "name", "text", "value"),
    [
        ("OVERNIGHT_DATABASE_URL_FILE", "database_url", "postgres://u:p@h/d", "psycopg2://u:p@h/d"),
        ("OVERNIGHT_REDIS_URL_FILE", "redis_url", "redis://h:6379", "redis://h:6379"),
        ("OVERNIGHT_API_KEY_FILE", "api_key", "s3cret", "s3cret"),
        ("OVERNIGHT_FLOWER_PASSWORD_FILE", "flower_password", "s3cret", "s3cret"),
    ],
)
def test_a_secret_can_be_read_from_a_file(
    tmp_path: Path, env: str, name: str, text: str, value: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{text}\n")

    settings = load({env: str(secret)})

    assert getattr(settings, name).endswith(value)
    assert origin(settings, name) == "file"


def test_the_environment_overrides_dotenv_and_dotenv_the_config_file(tmp_path: Path) -> None:
    everywhere = {"max_attempts": 4, "concurrency": 4, "slots": {"max": 4}}
    (tmp_path / "overnight.json").write_text(json.dumps(everywhere))
    (tmp_path / ".env").write_text(
        "OVERNIGHT_CONFIG_FILE=overnight.json\n"
        "OVERNIGHT_MAX_ATTEMPTS=5\n"
        "AG_QUEUE_MAX_SIZE=5\n"
        "export OVERNIGHT_CONCURRENCY='5'\n"
        "OVERNIGHT_FLOWER_PASSWORD=with$money\n"
        "SOMETHING_ELSE=1\n"
    )

    settings = load({"OVERNIGHT_MAX_ATTEMPTS": "6", "OVERNIGHT_CONCURRENCY": ""})

    assert (settings.max_attempts, origin(settings, "max_attempts")) == (6, "env")
    assert (settings.concurrency, origin(settings, "concurrency")) == (5, ".env")
    assert (settings.queue_max_size, origin(settings, "queue_max_size")) == (5, ".env")
    assert (settings.slots_max, origin(settings, "slots_max")) == (4, "file")
    assert (settings.priority, origin(settings, "priority")) == (50, "default")
    assert settings.flower_password == "with$money"


def test_the_main_name_overrides_an_alias_and_a_group() -> None:
    settings = load(
        {
            "OVERNIGHT_MAX_ATTEMPTS": "6",
            "AG_QUEUE_MAX_ATTEMPTS": "5",
            "OVERNIGHT_SLOTS": '{"max": 1}',
            "OVERNIGHT_SLOTS_MAX": "2",
        }
    )

    assert (settings.max_attempts, settings.slots_max) == (6, 2)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[]", "OVERNIGHT_CONFIG_FILE=c.json: must hold one JSON object"),
        ("{", "OVERNIGHT_CONFIG_FILE=c.json: must be a readable JSON file (cannot be read)"),
        ('{"homme": "x"}', "homme in c.json: no such setting (nearest: home)"),
        (
            '{"poll_interval": 99}',
            "poll_interval in c.json=99: must be seconds from 1 to 30 (nearest: 30)",
        ),
    ],
)
def test_a_wrong_config_file_is_refused(tmp_path: Path, content: str, line: str) -> None:
    (tmp_path / "c.json").write_text(content)

    assert problems({"OVERNIGHT_CONFIG_FILE": "c.json"}) == [line]


def test_a_config_file_may_use_the_names_of_any_document(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(
        json.dumps(
            {
                "per_user_serialization": {"enabled": True, "lock_timeout_seconds": 300},
                "stale_claiming_threshold": 90,
                "director_url": "https://localhost:8443",
                "retry": {"strategy": "quadratic", "no_retry_on": ["cancelled"]},
                "slots_max": None,
            }
        )
    )

    settings = load({"OVERNIGHT_CONFIG_FILE": "c.json"})

    assert settings.per_user_serialization_lock_timeout_seconds == 300
    assert settings.claim_ttl == 90
    assert settings.url == "https://localhost:8443"
    assert settings.retry_strategy == "quadratic"
    assert settings.no_retry_on == ("cancelled",)


def test_an_unknown_name_in_dotenv_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OVERNIGHT_HOMME=x\n")

    assert problems({}) == ["OVERNIGHT_HOMME in .env: no such setting (nearest: OVERNIGHT_HOME)"]


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        Settings().pool = "other"  # type: ignore[misc]


def test_the_settings_class_itself_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERNIGHT_POOL", "other")

    assert Settings().pool == "default"
    assert load({}).pool == "default"
    assert load().pool == "other"


def test_current_settings_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    current.cache_clear()
    try:
        first = current()
        monkeypatch.setenv("OVERNIGHT_POOL", "other")

        assert current() is first
        assert load().pool == "other"
    finally:
        current.cache_clear()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_description_that_is_a_sentence(name: str) -> None:
    description = Settings.model_fields[name].description

    assert description
    assert description.endswith(".")


def test_the_committed_page_of_settings_is_the_generated_one() -> None:
    assert set(page.HEADINGS) <= set(Settings.model_fields)
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), (
        "run `python -m overnight_server.settings`"
    )


@pytest.mark.parametrize("module", [field_types, mask])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    tried = doctest.testmod(module)  # type: ignore[arg-type]

    assert tried.attempted > 0
    assert tried.failed == 0
