"""Models of HTTP agents: how one is added, and what an agent answers to the agent driver."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from overnight.models.agents import AgentRegister, JsonValue, RegisteredAgent, RunFailure
from overnight.models.base import ResponseModel
from overnight.models.field_types import JsonObject, Text

MIN_SECRET = 16
# The longest boot id, task key or URL that is stored or compared.
MAX_ID = 200
BootId = Annotated[Text, Field(min_length=1, max_length=MAX_ID)]
ENDED_STATES = frozenset({"completed", "failed", "cancelled"})


class HttpAgentAdd(AgentRegister):
    """An agent that the service calls at its own address."""

    url: Annotated[Text, Field(min_length=8, max_length=2000)] = Field(
        description="The address of the agent, such as https://agent.example.com:9000; paths such"
        " as /task are added to it."
    )
    secret: Annotated[Text, Field(min_length=MIN_SECRET, max_length=1000)] | None = Field(
        None,
        description="The secret that signs requests to the agent; a random one is made if it is"
        " left out.",
    )


class HttpAgentAdded(RegisteredAgent):
    """An added HTTP agent, with its secret, which cannot be shown again."""

    secret: str = Field(description="The secret that signs requests to the agent.")


class HealthAnswer(ResponseModel):
    """What an agent answers to `GET /health`."""

    status: Literal["idle", "busy"] = Field(
        "idle", description="busy if the agent would refuse another task."
    )
    boot_id: BootId = Field(description="A value that is new with every start of the agent.")
    tasks: list[Annotated[Text, Field(max_length=MAX_ID)]] = Field(
        default=[], max_length=10_000, description="The keys of the tasks that it works on."
    )


class AbsenceAnswer(ResponseModel):
    """What an agent answers, with status 404, about a task that it does not have."""

    boot_id: BootId = Field(description="The boot id of the agent.")


class TaskAnswer(RunFailure):
    """What an agent answers to `GET /task/{key}` about a task that it has."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    state: Literal["queued", "working", "completed", "failed", "cancelled"] = Field(
        description="completed, failed and cancelled are final."
    )
    boot_id: BootId = Field(description="The boot id of the agent.")
    progress: JsonObject | None = Field(None, description="The latest progress report.")
    output: JsonValue = Field(None, description="The output of a completed task.")
    summary: Text | None = Field(None, max_length=10_000, description="The result in one line.")
    files_changed: list[Annotated[Text, Field(max_length=4096)]] | None = Field(
        None, max_length=10_000, description="The files that the run changed."
    )

    @property
    def has_ended(self) -> bool:
        """Whether the task has ended at the agent."""
        return self.state in ENDED_STATES

    def result_fields(self) -> dict[str, Any]:
        """Return the fields of a report of completion."""
        names = ("output", "summary", "files_changed", "cost_usd", "tokens")
        return {name: getattr(self, name) for name in names}
