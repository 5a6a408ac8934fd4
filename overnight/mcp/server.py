"""The queue as tools for agents, over the Model Context Protocol; needs `overnight[mcp]`.

Whatever an agent does here it does with one user's key, through the same API as every producer. An
agent that is itself a running task may besides grow its own graph and say how far it is; that goes
by the claim it runs under, which `Run` stands for.
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
from overnight.client.client import AsyncClient
from overnight.errors import FieldError, InvalidRequest, OvernightError, Refused, WaitTimedOut
from overnight.models.explain import Explanation
from overnight.models.field_errors import Schema, bound_of, legal_values, message_of
from overnight.models.tasks import CancelResult, QueueStatus, Task, UserLimits
from overnight.version import VERSION

INSTRUCTIONS = """\
Overnight runs long work through the night. Queue a task with enqueue_task, and look at it with
get_task. wait_task answers when the task has ended, or after a while; a task that has not ended
goes on, so wait again or come back later. explain_task says why a task is not running. get_limits
says how much more you may queue.
"""
LONGEST_WAIT_SECONDS = 300
MOST_LISTED = 100
LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
TaskId = Annotated[str, Field(description="The task's id, task_ and 26 letters and digits.")]


class Run(Protocol):
    """What a running task may do with its own claim."""

    async def spawn(self, title: str, fields: dict[str, Any]) -> Task:
        """Queue a subtask in the task's own graph."""

    async def progress(self, fraction: float | None, message: str | None) -> None:
        """Tell watchers how far the work is."""


class TaskList(BaseModel):
    """Some of your tasks, newest first."""

    tasks: list[Task]


class Limits(BaseModel):
    """What your plan allows, how much of it is used, and how much runs and waits."""

    plan: UserLimits
    queue: QueueStatus


class Said(BaseModel):
    """That something was passed on."""

    said: bool = True


class PlainServer(MCPServer[Any]):
    """A server whose refusals begin with their code, as those of the service do."""

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Carry out one call; what is wrong with it is told without what the library adds."""
        try:
            return await super().call_tool(name, arguments, context)
        except UnexpectedToolError:
            raise
        except ToolError as error:
            match error.__cause__:
                case ValidationError() as wrong:
                    known = {tool.name: tool.input_schema for tool in await self.list_tools()}
                    message = _in_words(wrong, known[name])
                    raise ToolError(f"{InvalidRequest.code}: {message}") from wrong
                case ToolError() as ours:
                    raise ours from ours.__cause__
            raise


def _in_words(wrong: ValidationError, schema: Schema) -> str:
    """Name each argument at fault, what is wrong with it and what would do."""
    told = (
        str(
            FieldError(
                ".".join(map(str, fault["loc"])),
                message_of(fault),
                legal_values(fault["loc"], schema) or bound_of(fault),
            )
        )
        for fault in wrong.errors(include_url=False, include_input=False)
    )
    return "; ".join(told)


def build(client: AsyncClient, run: Run | None = None) -> MCPServer[Any]:
    """Return the server for one user's client; with a run, also what that run may do."""
    server = PlainServer("overnight", instructions=INSTRUCTIONS, version=VERSION)
    desk = Desk(client)
    for tool, kind in (
        (desk.enqueue_task, ADDS),
        (desk.get_task, LOOKS),
        (desk.list_tasks, LOOKS),
        (desk.wait_task, LOOKS),
        (desk.cancel_task, ENDS),
        (desk.explain_task, LOOKS),
        (desk.get_limits, LOOKS),
    ):
        server.tool(annotations=kind)(tool)
    if run is not None:
        bench = Bench(run)
        server.tool(annotations=ADDS)(bench.spawn_subtask)
        server.tool(annotations=ADDS)(bench.report_progress)
    server.resource("task://{task_id}", mime_type="application/json")(desk.task_resource)
    return server


@dataclass(frozen=True)
class Held:
    """The task that an agent runs inside of, and the token of its claim."""

    task_id: str
    token: str


async def serve(url: str, api_key: str, held: Held | None = None) -> None:
    """Serve over standard input and output until the other side hangs up.

    An agent inside a running task may also do what that run may.
    """
    async with AsyncClient(url, api_key) as client:
        run = None if held is None else ClaimedRun(client, held.task_id, held.token)
        await build(client, run).run_stdio_async()


@contextmanager
def told() -> Iterator[None]:
    """Word what the service refuses as the error of a tool, code first."""
    try:
        yield
    except Refused as error:
        raise ToolError(f"{error.code}: {error.message}") from error
    except OvernightError as error:
        raise ToolError(str(error)) from error


Prompt = Annotated[str | None, Field(description="What an agent is asked to do.")]
Type = Annotated[str | None, Field(description="Which handler runs it; left out, the default one.")]
Payload = Annotated[dict[str, Any] | None, Field(description="What the handler works on.")]


class Desk:
    """What any agent with a key may do."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def enqueue_task(
        self,
        title: Annotated[str, Field(description="What people read in lists and reports.")],
        *,
        prompt: Prompt = None,
        type: Type = None,  # noqa: A002 - the word the wire uses
        payload: Payload = None,
        description: Annotated[str | None, Field(description="More about it.")] = None,
        project_id: Annotated[
            str | None, Field(description="Tasks of one project run one after the other.")
        ] = None,
        priority: Annotated[
            int | None, Field(description="1 critical, 2 high, 3 normal, 4 low.")
        ] = None,
        timeout_seconds: Annotated[
            int | None, Field(description="How long one run may take.")
        ] = None,
        max_cost_usd: Annotated[
            float | None, Field(description="What it may cost before it pauses and asks.")
        ] = None,
        tags: Annotated[Sequence[str] | None, Field(description="Words to find it by.")] = None,
        idempotency_key: Annotated[
            str | None, Field(description="A second call with the same key gives the first task.")
        ] = None,
    ) -> Task:
        """Queue a task; it runs when your limits and its turn allow, maybe tonight."""
        with told():
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
        """Read one task: where it stands, what came of it, what went wrong."""
        with told():
            return await self._client.tasks.get(task_id)

    async def list_tasks(
        self,
        *,
        status: Annotated[
            str | None,
            Field(description="Only those in this status, such as pending, running or failed."),
        ] = None,
        limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 20,
    ) -> TaskList:
        """List your tasks, newest first."""
        with told():
            found = self._client.tasks.list(status=status, limit=limit)
            return TaskList(tasks=[task async for task in found])

    async def wait_task(
        self,
        task_id: TaskId,
        *,
        timeout_seconds: Annotated[
            int, Field(ge=0, le=LONGEST_WAIT_SECONDS, description="How long to wait at most.")
        ] = 60,
    ) -> Task:
        """Wait until a task has ended, or for a while, and read it as it then stands."""
        with told():
            try:
                return await self._client.tasks.wait(task_id, timeout=timeout_seconds, check=False)
            except WaitTimedOut as late:
                return late.task

    async def cancel_task(self, task_id: TaskId) -> CancelResult:
        """End a task; one that runs is asked to stop."""
        with told():
            return await self._client.tasks.cancel(task_id)

    async def explain_task(self, task_id: TaskId) -> Explanation:
        """Tell every reason a task is not running, and what can be done about it."""
        with told():
            return await self._client.tasks.explain(task_id)

    async def get_limits(self) -> Limits:
        """Tell what your plan allows, how much of it is used, and how much runs and waits."""
        with told():
            return Limits(plan=await self._client.limits(), queue=await self._client.queue_status())

    async def task_resource(self, task_id: str) -> str:
        """Read one task as a document."""
        with told():
            return (await self._client.tasks.get(task_id)).model_dump_json(indent=2)


class Bench:
    """What an agent that is a running task may do besides."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def spawn_subtask(
        self,
        title: Annotated[str, Field(description="What people read.")],
        *,
        prompt: Prompt = None,
        type: Type = None,  # noqa: A002 - the word the wire uses
        payload: Payload = None,
    ) -> Task:
        """Queue a subtask in the graph of the task you are running."""
        fields = {"prompt": prompt, "type": type, "payload": payload}
        given = {name: value for name, value in fields.items() if value is not None}
        with told():
            return await self._run.spawn(title, given)

    async def report_progress(
        self,
        *,
        fraction: Annotated[
            float | None, Field(ge=0, le=1, description="How much is done, from 0 to 1.")
        ] = None,
        message: Annotated[str | None, Field(description="What you are doing.")] = None,
    ) -> Said:
        """Tell watchers how far the task you are running is."""
        with told():
            await self._run.progress(fraction, message)
        return Said()
