"""Adds the HTTP agents of a chaos run to its deployment: one for each producer."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from overnight_server.control import http_agents
from overnight_server.control.agents import PullAgentDescription
from overnight_server.control.keys import Caller
from tests.chaos.agent_process import SECRET, SLOTS
from tests.chaos.load import Producer
from tests.chaos.stack import ChaosStack
from tests.chaos.tasks import REMOTE

LEASE: Final = timedelta(seconds=4)


def add_agents(stack: ChaosStack, producers: Sequence[Producer]) -> None:
    """Give each producer an agent for its tasks of the type `remote`."""
    for producer, port in zip(producers, stack.agent_ports, strict=False):
        http_agents.add(
            stack.deployment.owner,
            Caller(producer.user_id, "", ("*",), is_admin=True),
            PullAgentDescription(REMOTE, types=[REMOTE], slots=SLOTS, stale_after=LEASE),
            f"http://127.0.0.1:{port}",
            secret=SECRET,
            min_lease=timedelta(0),
        )
