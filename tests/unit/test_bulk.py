"""What a bulk action applies to, in which order it goes, and how refusals are counted."""

from datetime import datetime, timedelta

import pytest
import typer

from overnight.errors import InvalidRequest, NotRetryable
from overnight.models.bulk import FilterFields, TaskFilter
from overnight_server.api import reference
from overnight_server.cli.terminal.arguments import past_instant
from overnight_server.domain.bulk import APPLIES_TO, Action, is_newest_first, reason_of
from overnight_server.domain.lifecycle import FINAL, State


def test_every_action_applies_to_some_state_and_none_to_completed() -> None:
    assert set(APPLIES_TO) == set(Action)
    assert all(APPLIES_TO.values())
    assert not any(State.COMPLETED in states for states in APPLIES_TO.values())
    assert APPLIES_TO[Action.RETRY] < FINAL
    assert not APPLIES_TO[Action.CANCEL] & FINAL
    assert APPLIES_TO[Action.REPRIORITISE] < APPLIES_TO[Action.CANCEL]


def test_only_retries_start_with_the_oldest_task() -> None:
    assert [action for action in Action if not is_newest_first(action)] == [Action.RETRY]


def test_a_refusal_is_counted_by_its_reason() -> None:
    assert reason_of(NotRetryable("running")) == "NOT_RETRYABLE"
    assert reason_of(InvalidRequest("task_id", "waits", legal="none")) == "UPSTREAM_ENDED"


def test_the_client_knows_every_field_of_the_filter() -> None:
    assert set(FilterFields.__annotations__) == set(TaskFilter.model_fields)


def test_the_bulk_filter_has_the_fields_of_the_list_filter() -> None:
    listing = reference.openapi_document()["paths"]["/api/v1/tasks"]["get"]
    parameters = {
        parameter["name"] for parameter in listing["parameters"] if parameter["in"] == "query"
    }

    assert parameters - {"limit", "before"} == set(TaskFilter.model_fields)


def test_a_duration_is_counted_back_from_now() -> None:
    now = datetime.now().astimezone()

    assert timedelta(hours=7.9) < now - past_instant("8h") < timedelta(hours=8.1)
    assert timedelta() <= now - past_instant("07:00") <= timedelta(hours=25)
    assert past_instant("2030-01-31T07:00Z").year == 2030
    with pytest.raises(typer.BadParameter):
        past_instant("yesterday")
