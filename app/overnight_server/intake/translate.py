"""From a task as it came over the wire to a task as intake takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from overnight.errors import InvalidRequest
from overnight.models import tasks
from overnight.models.dags import DagTask
from overnight.models.queue import QueueSubmit
from overnight_server.domain.capabilities import agent_capability
from overnight_server.domain.priority import score
from overnight_server.domain.references import LEGAL
from overnight_server.domain.retry import Escalation, RetryPolicy, Strategy
from overnight_server.intake.submit import NewTask
from overnight_server.settings import Settings

MAX_KEY = 255
MAX_TITLE = 120
UNTITLED = "a prompt"
MAX_PROJECT = 100
# What an object that describes a project may call it by, the surest first.
PROJECT_NAMES = ("id", "project_id", "name", "path")


def new_task(body: tasks.TaskCreate, settings: Settings, key: str | None) -> NewTask:
    """Fill in what the sender left to the service."""
    if body.workflow_id is not None:
        legal = "left out, for where this task belongs is settled"
        raise InvalidRequest("workflow_id", "names another graph", legal=legal)
    task = NewTask(
        title=body.title,
        type=body.type or settings.default_type,
        description=body.description,
        payload=body.payload,
        spec=body.spec if body.prompt is None else {**body.spec, "prompt": body.prompt},
        project_id=body.project_id,
        priority=score(body.priority) if body.priority_score is None else body.priority_score,
        priority_boost_per_minute=body.priority_boost_per_minute,
        timeout_seconds=body.timeout_seconds,
        max_attempts=body.max_attempts or settings.max_attempts,
        retry=retry_policy(body.retry, settings),
        required_capabilities=_capabilities(body),
        locks=body.locks,
        idempotency_key=key,
        deadline_at=body.deadline_at,
        tags=body.tags,
        source=body.source,
        max_cost_usd=body.max_cost_usd,
        estimated_cost_usd=body.estimated_cost_usd,
        name=body.name if isinstance(body, DagTask) else None,
        context_refs=_references(body),
        role=body.role,
    )
    return task if body.created_by is None else replace(task, created_by=body.created_by)


def prompted_task(body: QueueSubmit, settings: Settings, source: str | None) -> NewTask:
    """Make a task of a prompt; what else was said travels in the spec to whoever runs it."""
    told = ("prompt", "model", "session_id", "project", "env", "thinking", "source_job")
    asked = body.model_dump(include=set(told), exclude_none=True)
    first_line = next((line.strip() for line in body.prompt.splitlines() if line.strip()), "")
    return NewTask(
        title=first_line[:MAX_TITLE] or UNTITLED,
        type=settings.default_type,
        spec=asked,
        project_id=_project_id(body.project),
        timeout_seconds=body.timeout_seconds,
        max_attempts=settings.max_attempts,
        retry=retry_policy(None, settings),
        source=source or NewTask.source,
        created_by=f"cron:{body.source_job}" if body.source_job else NewTask.created_by,
    )


def retry_policy(asked: tasks.RetryPolicy | None, settings: Settings) -> RetryPolicy:
    """Lay what the sender asked for over the policy of the deployment."""
    given = set() if asked is None else asked.model_fields_set
    asked = asked or tasks.RetryPolicy()
    strategy = Strategy(asked.strategy if "strategy" in given else settings.retry_strategy)
    house_delay = (
        settings.retry_quadratic_base_sec
        if strategy is Strategy.QUADRATIC
        else settings.retry_initial_delay_sec
    )
    return RetryPolicy(
        strategy=strategy,
        initial_delay_sec=(
            house_delay if asked.initial_delay_sec is None else asked.initial_delay_sec
        ),
        backoff_multiplier=(
            asked.backoff_multiplier
            if "backoff_multiplier" in given
            else settings.retry_backoff_multiplier
        ),
        max_delay_sec=(
            asked.max_delay_sec if "max_delay_sec" in given else settings.retry_max_delay_sec
        ),
        jitter=asked.jitter if "jitter" in given else settings.retry_jitter,
        retry_on=asked.retry_on if "retry_on" in given else settings.retry_on,
        no_retry_on=asked.no_retry_on if "no_retry_on" in given else settings.no_retry_on,
        escalate_after=(
            asked.escalate_after if "escalate_after" in given else settings.escalate_after
        ),
        escalate=Escalation(asked.escalate if "escalate" in given else settings.escalate),
        poison_attempts=settings.poison_attempts,
        poison_distinct_agents=settings.poison_distinct_agents,
    )


def _project_id(project: str | Mapping[str, object] | None) -> str | None:
    """Return the one word for a project by which its tasks are kept apart."""
    if project is None or isinstance(project, str):
        return project
    for name in PROJECT_NAMES:
        value = project.get(name)
        if isinstance(value, str) and 0 < len(value) <= MAX_PROJECT:
            return value
    return None


def _capabilities(body: tasks.TaskCreate) -> tuple[str, ...]:
    """Return what a worker must offer; naming an agent is asking for a capability of that name."""
    if body.agent_name is None:
        return body.required_capabilities
    return (*body.required_capabilities, agent_capability(body.agent_name))


def _references(body: tasks.TaskCreate) -> Sequence[str]:
    """Return what the task reads; the design documents name the field inside `spec`."""
    inside = body.spec.get("context_refs", [])
    if not isinstance(inside, list) or not all(isinstance(one, str) for one in inside):
        raise InvalidRequest("spec.context_refs", "is not a list of references", legal=LEGAL)
    return tuple(dict.fromkeys([*body.context_refs, *inside]))


def idempotency_key(given: str | None, header: str | None) -> str | None:
    """Return the key of a create, from its header or its body; two that differ are refused."""
    if header is None:
        return given
    # What a header can carry besides printable ASCII depends on every proxy on its way.
    if not 1 <= len(header) <= MAX_KEY or not (header.isascii() and header.isprintable()):
        legal = f"from 1 to {MAX_KEY} printable ASCII characters; others go in the body's field"
        raise InvalidRequest("Idempotency-Key", "is no key", legal=legal)
    if given not in (None, header):
        legal = "one of the two, or the same in both"
        raise InvalidRequest("idempotency_key", "differs from Idempotency-Key", legal=legal)
    return header
