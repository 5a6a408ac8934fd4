"""Translate the request models of `overnight.models` into `NewTask`, filling in defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from overnight.errors import InvalidRequest
from overnight.graphs.shape import dependencies_of
from overnight.models import tasks
from overnight.models.dags import DagCreate, DagTask
from overnight.models.field_errors import validate
from overnight.models.queue import QueueSubmit
from overnight_server.domain.capabilities import (
    COMMAND,
    PYTHON,
    RUNNER_PREFIX,
    agent_capability,
    runner_capability,
)
from overnight_server.domain.lock_keys import default_key, repository_key
from overnight_server.domain.priority import score
from overnight_server.domain.references import LEGAL
from overnight_server.domain.retry import Escalation, RetryRules, Strategy
from overnight_server.intake import execution, validation
from overnight_server.intake.caps import Caps
from overnight_server.intake.new_graph import Edge, NewGraph, NewTask
from overnight_server.settings import Settings

MAX_KEY_LENGTH = 255
MAX_TITLE_LENGTH = 120
DEFAULT_TITLE = "a prompt"
MAX_PROJECT_LENGTH = 100
# Fields of a prompt that the runner gets in the spec.
PROMPT_SPEC_FIELDS = {
    "prompt",
    "model",
    "session_id",
    "project",
    "env",
    "thinking",
    "source_job",
}
# Fields of a project object that identify it, in the order in which they are tried.
PROJECT_ID_FIELDS = ("id", "project_id", "name", "path")


def new_task(body: tasks.TaskBody, settings: Settings, key: str | None) -> NewTask:
    """Return the task that a request describes, with the defaults of the settings."""
    if body.workflow_id is not None:
        legal = "no workflow_id: the task belongs to the graph of the request"
        raise InvalidRequest("workflow_id", "cannot be set here", legal=legal)
    body = _with_constraints(body)
    runner = execution.runner_of(body)
    return NewTask(
        title=body.title,
        type=COMMAND if runner == COMMAND else body.type or settings.default_type,
        description=body.description,
        payload=body.payload,
        spec=_spec(body, runner),
        project_id=body.project_id,
        priority=_priority(body, settings),
        priority_boost_per_minute=_boost(body, settings),
        timeout_seconds=body.timeout_seconds,
        max_attempts=body.max_attempts or settings.max_attempts,
        retry=retry_policy(body.retry, settings),
        required_capabilities=_capabilities(body, runner),
        locks=_locks(body, settings),
        idempotency_key=key,
        deadline_at=body.deadline_at,
        start_at=body.start_at,
        tags=body.tags,
        source=body.source,
        max_cost_usd=body.max_cost_usd,
        estimated_cost_usd=body.estimated_cost_usd,
        name=body.name if isinstance(body, DagTask) else None,
        context_refs=_references(body),
        role=body.role,
        created_by=body.created_by,
        execution=execution.requested(body) if runner == COMMAND else None,
    )


def new_graph(body: DagCreate, settings: Settings) -> NewGraph:
    """Return the graph that a request describes; raise InvalidGraph if it has a cycle.

    Its edges include those that follow from references to outputs of other tasks.
    """
    links = dependencies_of(body)
    new_tasks = [new_task(task, settings, None) for task in body.tasks]
    edges = [Edge(link.parent, link.child, link.condition, link.on_unmet) for link in links]
    return NewGraph(new_tasks, edges, body.title, body.budget_usd)


def _spec(body: tasks.TaskBody, runner: str) -> dict[str, Any]:
    """Return the spec, with the fields of the request that are kept there."""
    prompt = {} if body.prompt is None else {"prompt": body.prompt}
    log = {"keep_log": True} if body.keep_log else {}
    return body.spec | prompt | log | validation.requested(body, runner)


def prompted_task(body: QueueSubmit, settings: Settings, source: str | None) -> NewTask:
    """Return a task for a prompt; its other fields go to the runner in the spec."""
    spec = body.model_dump(include=PROMPT_SPEC_FIELDS, exclude_none=True)
    first_line = next((line.strip() for line in body.prompt.splitlines() if line.strip()), "")
    return NewTask(
        title=first_line[:MAX_TITLE_LENGTH] or DEFAULT_TITLE,
        type=settings.default_type,
        spec=spec,
        project_id=_project_id(body.project),
        priority=settings.priority,
        priority_boost_per_minute=settings.priority_boost_per_minute,
        timeout_seconds=body.timeout_seconds,
        max_attempts=settings.max_attempts,
        retry=retry_policy(None, settings),
        source=source or NewTask.source,
        created_by=f"cron:{body.source_job}" if body.source_job else None,
    )


def retry_policy(requested: tasks.RetryPolicy | None, settings: Settings) -> RetryRules:
    """Return the requested policy; fields that the request does not set come from the settings."""
    given = set() if requested is None else requested.model_fields_set
    requested = requested or tasks.RetryPolicy()
    strategy = Strategy(requested.strategy if "strategy" in given else settings.retry_strategy)
    default_delay = (
        settings.retry_quadratic_base_sec
        if strategy is Strategy.QUADRATIC
        else settings.retry_initial_delay_sec
    )
    return RetryRules(
        strategy=strategy,
        initial_delay_sec=(
            default_delay if requested.initial_delay_sec is None else requested.initial_delay_sec
        ),
        backoff_multiplier=(
            requested.backoff_multiplier
            if "backoff_multiplier" in given
            else settings.retry_backoff_multiplier
        ),
        max_delay_sec=(
            requested.max_delay_sec if "max_delay_sec" in given else settings.retry_max_delay_sec
        ),
        jitter=requested.jitter if "jitter" in given else settings.retry_jitter,
        retry_on=requested.retry_on if "retry_on" in given else settings.retry_on,
        no_retry_on=requested.no_retry_on if "no_retry_on" in given else settings.no_retry_on,
        escalate_after=(
            requested.escalate_after if "escalate_after" in given else settings.escalate_after
        ),
        escalate=Escalation(requested.escalate if "escalate" in given else settings.escalate),
        poison_attempts=settings.poison_attempts,
        poison_distinct_agents=settings.poison_distinct_agents,
    )


def _priority(body: tasks.TaskBody, settings: Settings) -> int:
    if body.priority_score is not None:
        return body.priority_score
    return score(body.priority) if "priority" in body.model_fields_set else settings.priority


def _boost(body: tasks.TaskBody, settings: Settings) -> float:
    is_sent = "priority_boost_per_minute" in body.model_fields_set
    return body.priority_boost_per_minute if is_sent else settings.priority_boost_per_minute


def _project_id(project: str | Mapping[str, object] | None) -> str | None:
    """Return the text that identifies a project; tasks of one project share a lock."""
    if project is None or isinstance(project, str):
        return project
    for name in PROJECT_ID_FIELDS:
        value = project.get(name)
        if isinstance(value, str) and 0 < len(value) <= MAX_PROJECT_LENGTH:
            return value
    return None


def _with_constraints(body: tasks.TaskBody) -> tasks.TaskBody:
    """Return the request with the constraints of its spec applied to its fields.

    Raises InvalidRequest for an unknown constraint, and for one that differs from its field.
    """
    if "constraints" not in body.spec:
        return body
    given = body.spec["constraints"]
    if not isinstance(given, dict):
        raise InvalidRequest("spec.constraints", "is not a JSON object", legal="an object")
    try:
        constraints = validate(tasks.Constraints, given)
    except InvalidRequest as error:
        raise InvalidRequest.of_fields(
            [replace(each, field=f"spec.constraints.{each.field}") for each in error.fields]
        ) from None
    changes: dict[str, object] = {}
    for name, constraint in (
        ("max_cost_usd", "max_cost_usd"),
        ("timeout_seconds", "max_duration_sec"),
    ):
        value = getattr(constraints, constraint)
        if value is None:
            continue
        if getattr(body, name) not in (None, value):
            legal = "one of the two, or the same in both"
            raise InvalidRequest(
                f"spec.constraints.{constraint}", f"differs from {name}", legal=legal
            )
        changes[name] = value
    needs = dict.fromkeys([*body.required_capabilities, *constraints.required_capabilities])
    return body.model_copy(update={**changes, "required_capabilities": tuple(needs)})


def _locks(body: tasks.TaskBody, settings: Settings) -> tuple[str, ...]:
    """Return the declared locks; the repository of a task is one of them unless it is parallel."""
    if body.repo is None or body.parallel:
        return body.locks
    default = default_key(body.project_id, Caps.of(settings).lock_scope)
    declared = body.locks or ((default,) if default else ())
    return (*declared, repository_key(body.repo))


def _capabilities(body: tasks.TaskBody, runner: str) -> tuple[str, ...]:
    """Return the required capabilities; a named agent is one of them, and so is the runner."""
    if any(name.startswith(RUNNER_PREFIX) for name in body.required_capabilities):
        legal = "other names; the field runner chooses the runner"
        raise InvalidRequest("required_capabilities", "names a runner", legal=legal)
    named = () if body.agent_name is None else (agent_capability(body.agent_name),)
    # Only a worker validates outputs: the agents of users do not offer the runner Python.
    is_named = runner != PYTHON or validation.is_validated(body)
    of_runner = (runner_capability(runner),) if is_named else ()
    return tuple(dict.fromkeys([*body.required_capabilities, *named, *of_runner]))


def _references(body: tasks.TaskBody) -> Sequence[str]:
    """Return the references of a task, which may also stand inside its `spec`."""
    in_spec = body.spec.get("context_refs", [])
    if not isinstance(in_spec, list) or not all(isinstance(text, str) for text in in_spec):
        raise InvalidRequest("spec.context_refs", "is not a list of references", legal=LEGAL)
    return tuple(dict.fromkeys([*body.context_refs, *in_spec]))


def idempotency_key(in_body: str | None, header: str | None) -> str | None:
    """Return the idempotency key of a request, from its header or its body.

    Raises InvalidRequest if the two differ, or if the header is not a valid key.
    """
    if header is None:
        return in_body
    # Proxies may change other characters in a header.
    if not 1 <= len(header) <= MAX_KEY_LENGTH or not (header.isascii() and header.isprintable()):
        legal = f"1 to {MAX_KEY_LENGTH} printable ASCII characters; or send it in the body"
        raise InvalidRequest("Idempotency-Key", "is not a valid key", legal=legal)
    if in_body not in (None, header):
        legal = "one of the two, or the same in both"
        raise InvalidRequest("idempotency_key", "differs from Idempotency-Key", legal=legal)
    return header
