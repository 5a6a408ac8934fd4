"""The lines of the deployment: exact wording, order, quoting, masking and routing."""

import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from uuid import UUID

import pytest

from overnight_server import telemetry
from overnight_server.mask import is_secret_name, mask_text, mask_value
from overnight_server.telemetry import LogEvent, configure, emit, get

TEN = "2025-01-17T10:00:00Z"
Speak = Callable[..., Callable[[], list[str]]]


@pytest.fixture
def log_line() -> Iterator[Speak]:
    root = logging.getLogger()
    before = root.level

    def begin(
        log_format: str = "logfmt", level: str = "info", role: str = "api"
    ) -> Callable[[], list[str]]:
        stream = io.StringIO()
        configure(log_format, level, role, stream=stream, stamp=lambda: TEN)
        return lambda: stream.getvalue().splitlines()

    yield begin
    root.setLevel(before)
    telemetry._format.choose("logfmt", "", telemetry.utc_stamp)


@pytest.mark.parametrize(
    ("event", "fields", "line"),
    [
        (
            LogEvent.TASK_ADDED,
            {"source": "scheduler", "queue_id": "queue-abc12345", "depth": 5},
            "INFO queue=task_added queue_id=queue-abc12345 depth=5 source=scheduler",
        ),
        (
            LogEvent.DISPATCH,
            {"queue_id": "queue-abc12345", "agent": "https://localhost:9000"},
            "INFO queue=dispatch queue_id=queue-abc12345 agent=https://localhost:9000",
        ),
        (
            LogEvent.DISPATCH_SUCCESS,
            {"queue_id": "queue-abc12345", "task_id": "task-xyz789"},
            "INFO queue=dispatch_success queue_id=queue-abc12345 task_id=task-xyz789",
        ),
        (
            LogEvent.DISPATCH_FAILED,
            {"queue_id": "queue-def67890", "error": "agent busy", "attempt": "1/3", "final": None},
            'WARN queue=dispatch_failed queue_id=queue-def67890 error="agent busy" attempt=1/3',
        ),
        (
            LogEvent.DISPATCH_FAILED,
            {"queue_id": "queue-d", "error": "timeout", "attempt": "3/3", "final": True},
            'WARN queue=dispatch_failed queue_id=queue-d error="timeout" attempt=3/3 final=true',
        ),
        (
            LogEvent.SUBMIT_REJECTED,
            {"reason": "queue_full", "depth": 50},
            "WARN queue=submit_rejected reason=queue_full depth=50",
        ),
    ],
)
def test_an_event_is_written_exactly_as_documented(
    log_line: Speak, event: LogEvent, fields: dict[str, object], line: str
) -> None:
    lines = log_line()

    emit(event, **fields)

    assert lines() == [f"{TEN} {line}"]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("one\ntwo", '"one\\ntwo"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
        ("\u2028", '"\\u2028"'),
        ("für", "für"),
        (False, "false"),
        (2.50, "2.5"),
        (("a", "b"), "a,b"),
        ({"a": 1}, '"{\\"a\\": 1}"'),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (HTTPStatus.OK, "200"),
    ],
)
def test_a_value_is_quoted_only_if_necessary(log_line: Speak, value: object, written: str) -> None:
    lines = log_line()

    emit(LogEvent.SUBMIT_REJECTED, reason=value)

    assert lines() == [f"{TEN} WARN queue=submit_rejected reason={written}"]


def test_undeclared_fields_follow_the_declared_ones(log_line: Speak) -> None:
    lines = log_line()

    emit(LogEvent.SUBMIT_REJECTED, user_id="u1", depth=1, reason="full")

    assert lines() == [f"{TEN} WARN queue=submit_rejected reason=full depth=1 user_id=u1"]


def test_json_lines_carry_the_same_keys_and_the_role(log_line: Speak) -> None:
    lines = log_line("json", role="dispatcher")

    emit(LogEvent.DISPATCH_FAILED, queue_id="q", error="timeout", attempt="3/3", final=True)

    assert json.loads(lines()[0]) == {
        "ts": TEN,
        "level": "WARN",
        "role": "dispatcher",
        "queue": "dispatch_failed",
        "queue_id": "q",
        "error": "timeout",
        "attempt": "3/3",
        "final": True,
    }


@pytest.mark.parametrize("log_format", ["logfmt", "json"])
def test_lines_of_libraries_have_the_same_format(log_line: Speak, log_format: str) -> None:
    lines = log_line(log_format, "warn")

    logging.getLogger("celery.worker").warning("lost %s", "redis://app:hunter2@cache/0")
    logging.getLogger("celery.worker").info("not asked for")

    [line] = lines()
    expected = {
        "logfmt": f'{TEN} WARN logger=celery.worker msg="lost redis://app:***@cache/0"',
        "json": json.dumps(
            {
                "ts": TEN,
                "level": "WARN",
                "role": "api",
                "logger": "celery.worker",
                "msg": "lost redis://app:***@cache/0",
            }
        ),
    }
    assert line == expected[log_format]


def test_log_handlers_of_libraries_are_removed(log_line: Speak) -> None:
    loud = logging.getLogger("uvicorn")
    loud.addHandler(logging.StreamHandler(io.StringIO()))
    loud.propagate = False

    lines = log_line()
    loud.info("started")

    assert loud.handlers == []
    assert lines() == [f'{TEN} INFO logger=uvicorn msg="started"']


def test_configuring_twice_writes_each_line_once(log_line: Speak) -> None:
    first = log_line()
    second = log_line()

    emit(LogEvent.BROKER_BACK, seconds=3)

    assert first() == []
    assert second() == [f"{TEN} INFO queue=broker_back seconds=3"]


def test_an_exception_stays_on_one_line_without_its_passwords(log_line: Speak) -> None:
    lines = log_line()

    error = ConnectionError("no answer from postgresql://app:hunter2@db/overnight")
    get("overnight_server.store").error("gave up", exc_info=error)
    logging.getLogger("sqlalchemy").error("gave up", exc_info=error)

    assert len(lines()) == 2
    for line in lines():
        assert "ConnectionError: no answer from postgresql://app:***@db/overnight" in line
        assert "hunter2" not in line


def test_a_logger_binds_fields(log_line: Speak) -> None:
    lines = log_line()

    get("overnight_server.local").bind(port=5432).info("100% ready")

    assert lines() == [f'{TEN} INFO logger=overnight_server.local msg="100% ready" port=5432']


def test_lines_are_formatted_and_masked_before_logging_is_configured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    emit(LogEvent.STALE_RESULT, queue_id="q", epoch=2, token="abc")

    [record] = caplog.records
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARN "
        r"queue=stale_result queue_id=q epoch=2 token=\*\*\*",
        record.getMessage(),
    )


def test_an_unknown_level_or_format_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown log level 'loud'"):
        configure("logfmt", "loud", "api")
    with pytest.raises(ValueError, match="unknown log format 'xml'"):
        configure("xml", "info", "api")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("token", True),
        ("claim_token", True),
        ("password", True),
        ("client_secret", True),
        ("api_key", True),
        ("X-Api-Key", True),
        ("Authorization", True),
        ("tokens_used", False),
        ("lock_key", False),
        ("idempotency_key", False),
        ("secretary", False),
    ],
)
def test_a_field_is_secret_by_its_name(name: str, *, secret: bool) -> None:
    assert is_secret_name(name) is secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("postgresql+psycopg2://u:p@ss@h/db", "postgresql+psycopg2://u:***@h/db"),
        ("http://h/a@b:c", "http://h/a@b:c"),
        ("https://localhost:9000", "https://localhost:9000"),
        ("host=h password=pw dbname=d", "host=h password=*** dbname=d"),
        ("Authorization: Bearer abcdefghij", "Authorization: Bearer ***"),
        ("AUTHORIZATION: BASIC abcdefghij", "AUTHORIZATION: BASIC ***"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_only_passwords_are_masked_in_a_text(text: str, shown: str) -> None:
    assert mask_text(text) == shown


def test_a_password_is_masked_in_every_spelling_of_its_name() -> None:
    """Patterns that ignore case take some letters beyond ASCII for letters of ASCII."""
    characters = map(chr, range(sys.maxunicode + 1))
    letters = [one for one in characters if re.fullmatch("[a-z]", one, re.IGNORECASE)]
    names = ("password=", "passwd=", "bearer ", "basic ")
    spellings = [
        name[:place] + letter + name[place + 1 :]
        for name in names
        for place, usual in enumerate(name)
        for letter in letters
        if re.fullmatch(usual, letter, re.IGNORECASE)
    ]

    shown = [mask_text(f"{spelling}abcdefghij") for spelling in spellings]

    assert "pas\u017fword=" in spellings
    assert shown == [f"{spelling}***" for spelling in spellings]


@pytest.mark.parametrize(
    "text", ["x" * 1_000_000, "://" * 300_000, "a:" * 500_000, "password='" * 100_000]
)
def test_masking_a_long_text_takes_linear_time(text: str) -> None:
    """With quadratic time this test would not end: one such line would stop its process."""
    assert len(mask_text(f"{text} ://u:pw@h")) <= len(text) + 20


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "new row\nDETAIL:  Failing row contains (1, a).\n (b), null).\n\n[SQL: x]",
            "new row\nDETAIL:  Failing row contains ***.\n\n[SQL: x]",
        ),
        (
            "duplicate key\nDETAIL:  Key (user_id, key)=(1, mine (2)) already exists.\n\n[SQL: x]",
            "duplicate key\nDETAIL:  Key (user_id, key)=***\n\n[SQL: x]",
        ),
        (
            "syntax error\nLINE 1: SELECT 'mine'\n               ^\n",
            "syntax error\nLINE 1: ***\n               ^\n",
        ),
        (
            "invalid input syntax for type json\nCONTEXT:  JSON data, line 1: {mine\n",
            "invalid input syntax for type json\nCONTEXT:  JSON data, line 1: ***\n",
        ),
        ("one line: Failing row contains (1).", "one line: Failing row contains (1)."),
    ],
)
def test_data_that_a_database_error_quotes_is_not_logged(text: str, shown: str) -> None:
    assert mask_value("error", text) == shown
    assert mask_value("error", ValueError(text)) == shown


def test_an_exception_given_as_a_field_shows_no_password(log_line: Speak) -> None:
    lines = log_line()

    emit(LogEvent.SWEEP_FAILED, sweep="reap", error=OSError("redis://app:hunter2@cache:6379/0"))

    assert "redis://app:***@cache:6379/0" in lines()[-1]


def test_secrets_are_masked_at_any_depth() -> None:
    given = {"headers": [{"authorization": "x"}, {"via": "redis://a:b@c"}], "password": None}

    assert mask_value("request", given) == {
        "headers": [{"authorization": "***"}, {"via": "redis://a:***@c"}],
        "password": None,
    }


@pytest.mark.parametrize("event", LogEvent)
def test_every_event_has_a_level_and_a_meaning(event: LogEvent) -> None:
    assert event.level in {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR}
    assert event.meaning.endswith(".")
    assert len(set(event.fields)) == len(event.fields)


def test_the_page_of_log_events_is_up_to_date() -> None:
    assert telemetry.PAGE.read_text(encoding="utf-8") == telemetry.page(), (
        "run `python -m overnight_server.telemetry`"
    )
