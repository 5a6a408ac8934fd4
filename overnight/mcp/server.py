"""An MCP server that offers the queue to agents as tools; needs `overnight[mcp]`.

The tools use one user's key and the same API as every producer. An agent that is itself a running
task may also spawn subtasks and report progress; these two tools use the token of its claim, which
a `CurrentTask` holds.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import BaseModel, Field, ValidationError

from overnight.agent.run import ClaimedRun
from overnight.client.calls import without_none
from overnight.client.client import AsyncClient
from overnight.errors import FieldError, InvalidRequest, OvernightError, Refused, WaitTimedOut
from overnight.models.account import LogChunk
from overnight.models.explain import Explanation
from overnight.models.field_errors import Schema, bound_of, legal_values, message_of
from overnight.models.tasks import CancelResult, QueueStatus, Task, UserLimits
from overnight.version import VERSION

INSTRUCTIONS = """\
Overnight runs long tasks in the background, for instance through the night. Submit a task with
enqueue_task and read it with get_task. wait_task returns when the task has ended or the timeout is
over; a task that has not ended continues, so wait again or come back later. explain_task returns
why a task is not running, and read_log what it printed and logged. get_limits returns how many more
tasks you may submit.
"""
MAX_WAIT_SECONDS = 300
MAX_LISTED = 100
# Each up to 16 KB.
MAX_LOG_PARTS = 4
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDITIVE = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
DESTRUCTIVE = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
TaskId = Annotated[str, Field(description="The task's id: task_ and 26 letters and digits.")]


class CurrentTask(Protocol):
    """A running task that spawns subtasks and reports progress with its claim."""

    async def spawn(self, title: str, fields: dict[str, Any]) -> Task:
        """Add a subtask to the graph of the task."""

    async def progress(self, fraction: float | None, message: str | None) -> None:
        """Report the progress of the task."""


class TaskList(BaseModel):
    """Some of your tasks, newest first."""

    tasks: list[Task]


class TaskLog(BaseModel):
    """Parts of a task's log in order; continue after the id of the last one."""

    parts: list[LogChunk]


class Limits(BaseModel):
    """The limits of your plan, their use, and the number of running and waiting tasks."""

    plan: UserLimits
    queue: QueueStatus


class ProgressReported(BaseModel):
    """The progress report was sent."""

    reported: bool = True


class OvernightServer(MCPServer[Any]):
    """An MCP server whose error messages begin with the error code."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Run one tool; an error message is raised without the text that the library adds."""
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError:
            raise
        except ToolError as error:
            match error.__cause__:
                case ValidationError() as invalid:
                    schemas = {tool.name: tool.input_schema for tool in await self.list_tools()}
                    message = _describe(invalid, schemas[name])
                    raise ToolError(f"{InvalidRequest.code}: {message}") from invalid
                case ToolError() as refusal:
                    raise refusal from refusal.__cause__
            raise


def _describe(invalid: ValidationError, schema: Schema) -> str:
    """Return each wrong argument with what is wrong and which values are legal."""
    faults = (
        FieldError(
            ".".join(map(str, error["loc"])),
            message_of(error),
            legal_values(error["loc"], schema) or bound_of(error),
        )
        for error in invalid.errors(include_url=False, include_input=False)
    )
    return "; ".join(map(str, faults))


def build(client: AsyncClient, run: CurrentTask | None = None) -> MCPServer[Any]:
    """Return the server for one user's client; with a run, it has the tools of that run too."""
    server = OvernightServer("overnight", instructions=INSTRUCTIONS, version=VERSION)
    tools = UserTools(client)
    for tool, kind in (
        (tools.enqueue_task, ADDITIVE),
        (tools.get_task, READ_ONLY),
        (tools.list_tasks, READ_ONLY),
        (tools.wait_task, READ_ONLY),
        (tools.cancel_task, DESTRUCTIVE),
        (tools.explain_task, READ_ONLY),
        (tools.read_log, READ_ONLY),
        (tools.get_limits, READ_ONLY),
    ):
        server.tool(annotations=kind)(tool)
    if run is not None:
        run_tools = RunTools(run)
        server.tool(annotations=ADDITIVE)(run_tools.spawn_subtask)
        server.tool(annotations=ADDITIVE)(run_tools.report_progress)
    server.resource("task://{task_id}", mime_type="application/json")(tools.task_resource)
    return server


@dataclass(frozen=True)
class TaskClaim:
    """The running task that started the agent, and the token of its claim."""

    task_id: str
    token: str


async def serve(url: str, api_key: str, claim: TaskClaim | None = None) -> None:
    """Serve over standard input and output until the client disconnects.

    With a claim, an agent that a running task started also gets the tools of that run.
    """
    async with AsyncClient(url, api_key) as client:
        run = None if claim is None else ClaimedRun(client, claim.task_id, claim.token)
        await build(client, run).run_stdio_async()


@contextmanager
def tool_errors() -> Iterator[None]:
    """Raise errors of the client as tool errors that begin with the code."""
    try:
        yield
    except Refused as error:
        raise ToolError(f"{error.code}: {error.message}") from error
    except OvernightError as error:
        raise ToolError(str(error)) from error


Prompt = Annotated[str | None, Field(description="The prompt for an agent.")]
Type = Annotated[
    str | None,
    Field(description="The type, which selects the handler."),
]
Payload = Annotated[dict[str, Any] | None, Field(description="The handler's input.")]


class UserTools:
    """The tools of every agent with an API key."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def enqueue_task(
        self,
        title: Annotated[str, Field(description="The title, shown in lists and reports.")],
        *,
        prompt: Prompt = None,
        type: Type = None,  # noqa: A002 - the name on the wire
        payload: Payload = None,
        description: Annotated[str | None, Field(description="The description.")] = None,
        project_id: Annotated[
            str | None,
            Field(description="Tasks of one project do not run at the same time."),
        ] = None,
        priority: Annotated[
            int | None, Field(description="1 critical, 2 high, 3 normal, 4 low.")
        ] = None,
        timeout_seconds: Annotated[
            int | None, Field(description="The time limit of one run.")
        ] = None,
        max_cost_usd: Annotated[
            float | None, Field(description="What it may cost before it waits for an approval.")
        ] = None,
        tags: Annotated[Sequence[str] | None, Field(description="Tags for searching.")] = None,
        idempotency_key: Annotated[
            str | None, Field(description="A second call with the same key returns the first task.")
        ] = None,
    ) -> Task:
        """Submit a task; it runs when your limits and its position in the queue allow."""
        with tool_errors():
            return await self._client.tasks.create(
                title,
                prompt=prompt,
                type=type,
                payload=payload,
                description=description,
                project_id=project_id,
                priority=priority,
                timeout_seconds=timeout_seconds,
                max_cost_usd=max_cost_usd,
                tags=tags,
                idempotency_key=idempotency_key,
                source="mcp",
            )

    async def get_task(self, task_id: TaskId) -> Task:
        """Read one task: its state, output and error."""
        with tool_errors():
            return await self._client.tasks.get(task_id)

    async def list_tasks(
        self,
        *,
        status: Annotated[
            str | None,
            Field(description="Only tasks with this status, such as pending, running or failed."),
        ] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 20,
    ) -> TaskList:
        """List your tasks, newest first."""
        with tool_errors():
            tasks = self._client.tasks.list(status=status, limit=limit)
            return TaskList(tasks=[task async for task in tasks])

    async def wait_task(
        self,
        task_id: TaskId,
        *,
        timeout_seconds: Annotated[
            int,
            Field(
                ge=0,
                le=MAX_WAIT_SECONDS,
                description="The maximum wait in seconds; then the task is returned as it is.",
            ),
        ] = 60,
    ) -> Task:
        """Wait until a task has ended or the timeout is over, and return the task."""
        with tool_errors():
            try:
                return await self._client.tasks.wait(task_id, timeout=timeout_seconds, check=False)
            except WaitTimedOut as timed_out:
                return timed_out.task

    async def cancel_task(self, task_id: TaskId) -> CancelResult:
        """Cancel a task; a running task is requested to stop."""
        with tool_errors():
            return await self._client.tasks.cancel(task_id)

    async def explain_task(self, task_id: TaskId) -> Explanation:
        """Return every reason why a task is not running, and what can be done about it."""
        with tool_errors():
            return await self._client.tasks.explain(task_id)

    async def read_log(
        self,
        task_id: TaskId,
        *,
        after: Annotated[
            str | None,
            Field(
                description="Continue after this position; the default is the start.",
                pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$",
            ),
        ] = None,
    ) -> TaskLog:
        """Return what the runs of a task printed and logged, up to 64 KB at once."""
        with tool_errors():
            parts = await self._client.tasks.logs(task_id, after=after, limit=MAX_LOG_PARTS)
            return TaskLog(parts=parts)

    async def get_limits(self) -> Limits:
        """Return the limits of your plan, their use, and how many tasks run and wait."""
        with tool_errors():
            return Limits(plan=await self._client.limits(), queue=await self._client.queue_status())

    async def task_resource(self, task_id: str) -> str:
        """Read one task as JSON text."""
        with tool_errors():
            return (await self._client.tasks.get(task_id)).model_dump_json(indent=2)


class RunTools:
    """The tools for an agent that runs a task: add a subtask, and report progress.

    They are offered in addition to `TaskTools`.
    """

    def __init__(self, run: CurrentTask) -> None:
        self._run = run

    async def spawn_subtask(
        self,
        title: Annotated[str, Field(description="The title.")],
        *,
        prompt: Prompt = None,
        type: Type = None,  # noqa: A002 - the name on the wire
        payload: Payload = None,
    ) -> Task:
        """Add a subtask to the graph of the task that you run."""
        fields = {"prompt": prompt, "type": type, "payload": payload}
        with tool_errors():
            return await self._run.spawn(title, without_none(fields))

    async def report_progress(
        self,
        *,
        fraction: Annotated[
            float | None, Field(ge=0, le=1, description="The part that is done, from 0 to 1.")
        ] = None,
        message: Annotated[str | None, Field(description="What you are doing.")] = None,
    ) -> ProgressReported:
        """Report the progress of the task that you run."""
        with tool_errors():
            await self._run.progress(fraction, message)
        return ProgressReported()
