"""Runs schemathesis with all its checks against the API and its OpenAPI document."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import schemathesis
from schemathesis.engine import events, from_schema

from tests.support.live_api import LiveApi
from tests.support.seeded_data import API, TASKS, SeededUser

SEED = 20_260
# The probability that a path parameter is an existing id; otherwise it is a random text.
EXISTING_IDS = 0.7
# The statuses that a request which violates the document may get.
REFUSALS = [400, 401, 403, 404, 405, 406, 408, 409, 412, 413, 415, 422, 428, 429]
# Errors that a request which matches the document may get, because JSON Schema cannot express the
# rule. Each is a code, or a code and a pattern of the wrong field.
ALLOWED_ERRORS = {
    # The design fixes the status 400 for a task that has ended.
    f"DELETE {TASKS}/{{task_id}}": {"TASK_ALREADY_COMPLETED"},
    "POST /api/queue/{task_id}/cancel": {"TASK_ALREADY_COMPLETED"},
    # Different idempotency keys in the header and the body.
    f"POST {TASKS}": {"INVALID_REQUEST idempotency_key"},
    f"POST {TASKS}/{{task_id}}/fork": {"INVALID_REQUEST idempotency_key"},
    # Fields that an action requires or excludes.
    f"POST {TASKS}/bulk": {
        f"INVALID_REQUEST {name}"
        for name in (
            "idempotency_key",
            "filter",
            "filter.status",
            "status",
            "everything",
            "priority",
        )
    },
    # Unknown names, cycles, and different idempotency keys.
    f"POST {API}/dags": {"INVALID_GRAPH", "INVALID_REQUEST idempotency_key"},
    f"POST {API}/dags/plan": {"INVALID_GRAPH"},
    f"POST {API}/dags/{{dag_id}}/triggers": {"INVALID_GRAPH", "INVALID_REQUEST when"},
    f"POST {API}/plan": {"INVALID_GRAPH", "INVALID_REQUEST edges"},
    # The ETag is that of an older version.
    f"PATCH {TASKS}/{{task_id}}": {"PRECONDITION_FAILED"},
    # Times and templates have a syntax of their own, and what is submitted is checked like a task.
    **{
        f"{method} {API}/schedules{rest}": {
            "PRECONDITION_FAILED",
            "INVALID_GRAPH",
            *(f"INVALID_REQUEST {name}" for name in ("body", "name", "task", "when", "zone")),
            *(f"INVALID_REQUEST {name}" for name in ("since", "until")),
            "INVALID_REQUEST task.*",
            "INVALID_REQUEST graph.*",
        }
        for method, rest in (
            ("POST", ""),
            ("POST", "/preview"),
            ("GET", ""),
            ("PATCH", "/{schedule_id}"),
            ("GET", "/{schedule_id}"),
            ("GET", "/{schedule_id}/next"),
            ("POST", "/{schedule_id}/run"),
            ("POST", "/{schedule_id}/backfill"),
        )
    },
    # One field excludes another.
    f"POST {API}/dead-letters/{{task_id}}/resolve": {"INVALID_REQUEST changes"},
    f"POST {API}/admin/pause": {"INVALID_REQUEST pool"},
    f"POST {API}/admin/resume": {"INVALID_REQUEST pool"},
    f"GET {API}/events": {"INVALID_REQUEST dag_id"},
    # The name of another channel, and what the deployment can send; a channel must be in use.
    **{
        f"{method} {API}/notifications/{rest}": {
            f"INVALID_REQUEST {name}"
            for name in ("address", "channel", "delivery", "kind", "name", "zone")
        }
        for method, rest in (
            ("POST", "channels"),
            ("PATCH", "channels/{channel}"),
            ("POST", "channels/{channel}/test"),
            ("POST", "channels/{channel}/rotate"),
            ("POST", "channels/{channel}/replay"),
            ("POST", "deliveries/{notification_id}/replay"),
            ("PUT", "report-time"),
        )
    },
    # It closes at another time than it opens, in a time zone that exists.
    f"PUT {API}/users/me/window": {"INVALID_REQUEST closes", "INVALID_REQUEST zone"},
    # The name of another user.
    f"POST {API}/admin/users": {"INVALID_REQUEST name"},
    # A time zone that does not exist.
    f"PATCH {API}/admin/users/{{user_id}}": {"INVALID_REQUEST zone"},
    # What is legal depends on the scheme or another field, and a task or a preset is needed.
    f"POST {API}/hooks": {
        *("INVALID_TEMPLATE", "INVALID_REQUEST header"),
        *("INVALID_REQUEST secret", "INVALID_REQUEST task", "INVALID_REQUEST graph"),
    },
    f"POST {API}/rules": {"INVALID_TEMPLATE"},
    f"PATCH {API}/hooks/{{hook_id}}": {
        *("INVALID_TEMPLATE", "INVALID_REQUEST header", "INVALID_REQUEST graph"),
    },
    f"POST {API}/hooks/{{hook_id}}/rotate": {"INVALID_REQUEST secret"},
    # The legal content depends on another field.
    f"POST {TASKS}/{{task_id}}/artifacts": {"INVALID_REQUEST content"},
    # Ids of tasks that exist and may be waited for.
    f"POST {TASKS}/{{task_id}}/spawn": {"INVALID_REQUEST depends_on"},
    f"POST {TASKS}/{{task_id}}/suspend": {"INVALID_REQUEST tasks"},
    # The first of its entries is the program.
    f"PUT {API}/admin/agent-profiles/{{profile}}": {"INVALID_REQUEST argv"},
}
# Errors of every route that creates tasks: unknown references, deadlines in the past, locks, and
# options that have no effect on the task's runner.
ALLOWED_TASK_ERRORS = {
    f"INVALID_REQUEST {name}"
    for name in (
        *("context_refs", "deadline_at", "locks"),
        *("agent", "limits", "network", "parallel", "ref", "repo", "runner"),
    )
}


# Messages about values that are valid JSON and that Postgres cannot store, in any field.
UNSTORABLE = (
    "holds a NUL character",
    "is a number beyond 64 bits",
    "is nested deeper than",
    "must lie between the years",
)


@dataclass
class ConformanceReport:
    """The failures of a run, the statuses of each operation, and the number of calls."""

    faults: list[str] = field(default_factory=list)
    statuses: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    calls: int = 0

    @property
    def never_served(self) -> list[str]:
        """The operations that never responded with a success."""
        return sorted(
            name
            for name, statuses in self.statuses.items()
            if not any(200 <= status < 300 for status in statuses)
        )


def conform(
    served: LiveApi,
    seeded_data: SeededUser,
    *,
    phases: Sequence[str],
    examples: int,
) -> ConformanceReport:
    """Send valid and invalid requests; return every response that violates the document."""
    config = schemathesis.Config.from_dict(_config(served, seeded_data, phases, examples))
    schema = schemathesis.openapi.from_url(
        f"{served.url}{API}/openapi.json", config=config, headers={"X-API-Key": served.key}
    )
    report = ConformanceReport()
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished():
                _record(event, report)
            case events.NonFatalError():
                report.faults.append(f"{event.label}: {event.value}")
            case events.FatalError():
                raise event.exception
            case _:
                pass
    return report


def _record(event: events.ScenarioFinished, report: ConformanceReport) -> None:
    interactions = event.recorder.interactions
    for name, interaction in interactions.items():
        report.calls += 1
        if interaction.response is not None:
            operation = event.recorder.cases[name].value.operation.label
            report.statuses[operation].add(interaction.response.status_code)
    for name, checks in event.recorder.checks.items():
        for check in checks:
            if check.failure_info is None:
                continue
            failure = check.failure_info.failure
            response = interactions[name].response if name in interactions else None
            if check.name == "positive_data_acceptance" and _is_allowed(
                str(failure.operation), response
            ):
                continue
            text = "" if response is None else f"{response.status_code} {response.text[:600]}"
            sample = check.failure_info.code_sample[:2000]
            report.faults.append(
                f"{failure.operation}: {check.name}: {failure.message}\n{sample}\n{text}\n"
            )


def _is_allowed(operation: str, response: Any) -> bool:
    """Return whether an error is one of those that JSON Schema cannot express."""
    if response is None:
        return False
    problem = response.json()
    allowed = ALLOWED_ERRORS.get(operation, set()) | ALLOWED_TASK_ERRORS
    wrong = [
        error
        for error in problem.get("errors", ())
        if not any(
            fnmatchcase(f"{problem['code']} {error['field']}", pattern) for pattern in allowed
        )
        and not any(text in error["message"] for text in UNSTORABLE)
    ]
    return problem["code"] in allowed or ("errors" in problem and not wrong)


def _config(
    served: LiveApi, seeded_data: SeededUser, phases: Sequence[str], examples: int
) -> dict[str, Any]:
    return {
        "seed": SEED,
        "base-url": served.url,
        "auth": {"openapi": {name: {kind: served.key} for name, kind in KEYS.items()}},
        "continue-on-failure": True,
        # No check is about time, and other tests may keep the machine busy.
        "request-timeout": 60,
        "generation": {
            "max-examples": examples,
            "deterministic": True,
            "no-shrink": True,
            "database": "none",
        },
        "phases": {
            name: {"enabled": name in phases}
            for name in ("examples", "coverage", "fuzzing", "stateful")
        },
        "checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}},
        "dictionaries": {
            name: {"values": values} for name, values in _dictionaries(seeded_data).items()
        },
        "parameters": {f"path.{name}": _from_dictionary(name) for name in seeded_data.own},
        "operations": [*_operations(seeded_data)],
    }


KEYS = {"bearer": "bearer", "key": "api_key"}
# The part of a path that is for admins, and the prefix of the dictionaries for it.
ROLES = {"": "", "/admin": "admin_"}


def _from_dictionary(dictionary: str, probability: float = EXISTING_IDS) -> dict[str, Any]:
    return {"dictionary": dictionary, "probability": probability}


def _dictionaries(seeded_data: SeededUser) -> dict[str, list[str]]:
    return {
        **seeded_data.own,
        **{f"foreign_{name}": values for name, values in seeded_data.foreign.items()},
        # Each of these can be resolved once: users and admins get their own.
        "approve": seeded_data.awaiting[::4],
        "stop": seeded_data.awaiting[1::4],
        "admin_approve": seeded_data.awaiting[2::4],
        "admin_stop": seeded_data.awaiting[3::4],
        "dead_lettered": seeded_data.dead_lettered[::2],
        "admin_dead_lettered": seeded_data.dead_lettered[1::2],
        "rejected": seeded_data.rejected,
        "locked": seeded_data.locked,
        "editions": ["*"],
        "ended": seeded_data.ended,
    }


def _method(action: str) -> str:
    return "GET" if action == "children" else "POST"


def _operations(seeded_data: SeededUser) -> list[Mapping[str, Any]]:
    """Return the configuration of single operations: their own run, or objects in a given state."""
    return [
        # Admin operations act on other users, so that the calling admin is not disabled.
        {
            "include-path-regex": "^/api/v1/admin/(?!locks|approvals|dead-letters)",
            "parameters": {
                f"path.{name}": _from_dictionary(f"foreign_{name}") for name in seeded_data.foreign
            },
        },
        *(
            {
                "include-name": f"{_method(action)} {TASKS}/{{task_id}}/{action}",
                "parameters": {"path.task_id": task},
                "headers": {"Authorization": f"Bearer {token}"},
            }
            for action, (task, token) in seeded_data.runs.items()
        ),
        *(
            {
                "include-path": f"{API}{role}/approvals/{{task_id}}/{action}",
                "parameters": {"path.task_id": _from_dictionary(prefix + action)},
            }
            for role, prefix in ROLES.items()
            for action in ("approve", "stop")
        ),
        *(
            {
                "include-path-regex": f"^{API}{role}/dead-letters/",
                "parameters": {"path.task_id": _from_dictionary(f"{prefix}dead_lettered")},
            }
            for role, prefix in ROLES.items()
        ),
        {
            "include-path": f"{TASKS}/{{task_id}}/overrule",
            "parameters": {"path.task_id": _from_dictionary("rejected")},
        },
        {
            "include-path": f"{API}/admin/locks/{{task_id}}/release",
            "parameters": {"path.task_id": _from_dictionary("locked")},
        },
        *(
            {
                "include-name": f"PATCH {route}",
                "parameters": {"header.If-Match": _from_dictionary("editions")},
                # 428 is the status for a missing precondition.
                "checks": {
                    "missing_required_header": {"expected-statuses": [400, 401, 403, 422, 428]}
                },
            }
            for route in (f"{TASKS}/{{task_id}}", f"{API}/schedules/{{schedule_id}}")
        ),
        {
            "include-name": f"DELETE {API}/schedules/{{schedule_id}}",
            "parameters": {"path.schedule_id": seeded_data.removable},
        },
        # The first frame of a stream is sent at once, the next one with the next event.
        {
            "include-path": f"{API}/events",
            "max-stream-events": 1,
            "parameters": {"query.task_id": _from_dictionary("task_id")},
        },
        {
            "include-path": f"{API}/dags/{{dag_id}}/retry",
            "parameters": {"path.dag_id": _from_dictionary("ended")},
        },
        # Long polls would only take time.
        {"include-path": f"{API}/agents/{{agent_id}}/claim", "parameters": {"query.wait": 0}},
        {"include-path-regex": "/wait$", "parameters": {"query.timeout": 0}},
    ]
