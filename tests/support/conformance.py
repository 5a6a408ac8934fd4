"""The API held to its own description by schemathesis, with every check it has."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from schemathesis.engine import events, from_schema

from tests.support.seeded_data import API, TASKS, SeededUser
from tests.support.serving import Served

SEED = 20_260
# How often a path names something that is there; else it names whatever comes to mind.
TRUE_NAMES = 0.7
# Refused before it is looked at: too large, or made from what has changed since.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 422, 428, 429]
# Answers to requests that are as described and yet are lawful, because what is wrong with them
# no description of single fields can say. Each is a code, or a code and the field at fault.
LAWFUL = {
    # Fixed by the design: too late is 400.
    f"DELETE {TASKS}/{{task_id}}": {"TASK_ALREADY_COMPLETED"},
    "POST /api/queue/{task_id}/cancel": {"TASK_ALREADY_COMPLETED"},
    # A key in the header and another one in the body.
    f"POST {TASKS}": {"INVALID_REQUEST idempotency_key"},
    f"POST {TASKS}/{{task_id}}/fork": {"INVALID_REQUEST idempotency_key"},
    # What an action needs besides, and what it has no use for.
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
    # Names that nothing has, circles, and a key in the header beside another one.
    f"POST {API}/dags": {"INVALID_GRAPH", "INVALID_REQUEST idempotency_key"},
    f"POST {API}/dags/plan": {"INVALID_GRAPH"},
    f"POST {API}/dags/{{dag_id}}/triggers": {"INVALID_GRAPH", "INVALID_REQUEST when"},
    f"POST {API}/plan": {"INVALID_GRAPH", "INVALID_REQUEST edges"},
    # An edit of what the task no longer is.
    f"PATCH {TASKS}/{{task_id}}": {"PRECONDITION_FAILED"},
    # One field forbids another.
    f"POST {API}/dead-letters/{{task_id}}/resolve": {"INVALID_REQUEST changes"},
    f"POST {API}/admin/pause": {"INVALID_REQUEST pool"},
    f"POST {API}/admin/resume": {"INVALID_REQUEST pool"},
    f"GET {API}/events": {"INVALID_REQUEST dag_id"},
    # Somebody else has the name.
    f"POST {API}/admin/users": {"INVALID_REQUEST name"},
    # Only the tables of the world know which zones there are.
    f"PATCH {API}/admin/users/{{user_id}}": {"INVALID_REQUEST zone"},
    # What the content is, is said by another field.
    f"POST {TASKS}/{{task_id}}/artifacts": {"INVALID_REQUEST content"},
    # Names of tasks, and which of them may be waited for.
    f"POST {TASKS}/{{task_id}}/spawn": {"INVALID_REQUEST depends_on"},
    f"POST {TASKS}/{{task_id}}/suspend": {"INVALID_REQUEST tasks"},
}
# References to what is not there, deadlines that have passed, and a prompt that is given twice:
# wherever a task is made.
OF_TASKS = {
    "INVALID_REQUEST context_refs",
    "INVALID_REQUEST deadline_at",
    "INVALID_REQUEST locks",
}


# What JSON Schema calls text or a number and Postgres cannot keep, wherever it stands.
UNKEEPABLE = (
    "holds a NUL character",
    "is a number beyond 64 bits",
    "is nested deeper than",
    "must lie between the years",
)


@dataclass
class Found:
    """What a run of the tool came to."""

    faults: list[str] = field(default_factory=list)
    statuses: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    calls: int = 0

    @property
    def never_served(self) -> list[str]:
        """The operations that never answered with what was asked for."""
        return sorted(
            name
            for name, seen in self.statuses.items()
            if not any(200 <= status < 300 for status in seen)
        )


def conform(
    served: Served,
    seeded_data: SeededUser,
    *,
    phases: Sequence[str],
    examples: int,
) -> Found:
    """Send what the description allows and what it forbids, and tell every answer it does not."""
    config = schemathesis.Config.from_dict(_config(served, seeded_data, phases, examples))
    schema = schemathesis.openapi.from_url(f"{served.url}{API}/openapi.json", config=config)
    found = Found()
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished():
                _judge(event, found)
            case events.NonFatalError():
                found.faults.append(f"{event.label}: {event.value}")
            case events.FatalError():
                raise event.exception
            case _:
                pass
    return found


def _judge(event: events.ScenarioFinished, found: Found) -> None:
    answers = event.recorder.interactions
    for name, answer in answers.items():
        found.calls += 1
        if answer.response is not None:
            operation = event.recorder.cases[name].value.operation.label
            found.statuses[operation].add(answer.response.status_code)
    for name, checks in event.recorder.checks.items():
        for check in checks:
            if check.failure_info is None:
                continue
            failure = check.failure_info.failure
            response = answers[name].response if name in answers else None
            if check.name == "positive_data_acceptance" and _is_lawful(failure.operation, response):
                continue
            told = "" if response is None else f"{response.status_code} {response.text[:600]}"
            sample = check.failure_info.code_sample[:2000]
            found.faults.append(
                f"{failure.operation}: {check.name}: {failure.message}\n{sample}\n{told}\n"
            )


def _is_lawful(operation: str, response: Any) -> bool:
    """Whether a refusal of what is as described is one of those that no description can tell."""
    if response is None:
        return False
    problem = response.json()
    lawful = LAWFUL.get(operation, set()) | OF_TASKS
    wrong = [
        one
        for one in problem.get("errors", ())
        if f"{problem['code']} {one['field']}" not in lawful
        and not any(words in one["message"] for words in UNKEEPABLE)
    ]
    return problem["code"] in lawful or ("errors" in problem and not wrong)


def _config(
    served: Served, seeded_data: SeededUser, phases: Sequence[str], examples: int
) -> dict[str, Any]:
    return {
        "seed": SEED,
        "base-url": served.url,
        "auth": {"openapi": {name: {kind: served.key} for name, kind in KEYS.items()}},
        "continue-on-failure": True,
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
        "parameters": {f"path.{name}": _of(name) for name in seeded_data.named},
        "operations": [*_operations(seeded_data)],
    }


KEYS = {"bearer": "bearer", "key": "api_key"}


def _of(dictionary: str, probability: float = TRUE_NAMES) -> dict[str, Any]:
    return {"dictionary": dictionary, "probability": probability}


def _dictionaries(seeded_data: SeededUser) -> dict[str, list[str]]:
    return {
        **seeded_data.named,
        **{f"foreign_{name}": values for name, values in seeded_data.foreign.items()},
        "approve": seeded_data.awaiting[::2],
        "stop": seeded_data.awaiting[1::2],
        "buried": seeded_data.buried,
        "locked": seeded_data.locked,
        "editions": ["*"],
        "ended": seeded_data.ended,
    }


def _method(saying: str) -> str:
    return "GET" if saying == "children" else "POST"


def _operations(seeded_data: SeededUser) -> list[Mapping[str, Any]]:
    """What single operations need: a run of their own, or things in the right state."""
    return [
        # What admins do they do to others, so that the one who asks can go on asking.
        {
            "include-path-regex": "^/api/v1/admin/(?!locks)",
            "parameters": {f"path.{name}": _of(f"foreign_{name}") for name in seeded_data.foreign},
        },
        *(
            {
                "include-name": f"{_method(saying)} {TASKS}/{{task_id}}/{saying}",
                "parameters": {"path.task_id": task},
                "headers": {"Authorization": f"Bearer {token}"},
            }
            for saying, (task, token) in seeded_data.runs.items()
        ),
        *(
            {
                "include-path": f"{API}/approvals/{{task_id}}/{word}",
                "parameters": {"path.task_id": _of(word)},
            }
            for word in ("approve", "stop")
        ),
        {
            "include-path-regex": "^/api/v1/dead-letters/",
            "parameters": {"path.task_id": _of("buried")},
        },
        {
            "include-path": f"{API}/admin/locks/{{task_id}}/release",
            "parameters": {"path.task_id": _of("locked")},
        },
        {
            "include-name": f"PATCH {TASKS}/{{task_id}}",
            "parameters": {"header.If-Match": _of("editions")},
            # The status that was made for just this.
            "checks": {"missing_required_header": {"expected-statuses": [400, 401, 403, 422, 428]}},
        },
        # The first words of a stream come at once; the next when something happens.
        {
            "include-path": f"{API}/events",
            "max-stream-events": 1,
            "parameters": {"query.task_id": _of("task_id")},
        },
        {
            "include-path": f"{API}/dags/{{dag_id}}/retry",
            "parameters": {"path.dag_id": _of("ended")},
        },
        # Waits are real, and nothing would come of them.
        {"include-path": f"{API}/agents/{{agent_id}}/claim", "parameters": {"query.wait": 0}},
        {"include-path-regex": "/wait$", "parameters": {"query.timeout": 0}},
    ]
