"""The HTTP requests of a pull agent, for tests of each of them."""

from dataclasses import dataclass
from typing import Any

from httpx2 import Response

from tests.support.api_user import ApiUser

AGENTS = "/api/v1/agents"
TASKS = "/api/v1/tasks"


@dataclass
class PullAgent:
    """A registered agent and the user whose API key it has."""

    api_user: ApiUser
    id: str

    def claim(self, wait: int = 0) -> Response:
        """Request a claim."""
        return self.api_user.request("POST", f"{AGENTS}/{self.id}/claim", params={"wait": wait})

    def work(self) -> dict[str, Any]:
        """Request a claim that must succeed; return its body."""
        answer = self.claim()
        assert answer.status_code == 200, answer.text
        claimed: dict[str, Any] = answer.json()
        return claimed

    def begin(self) -> dict[str, Any]:
        """Claim and start."""
        work = self.work()
        answer = self.report(work, "start")
        assert answer.status_code == 200, answer.text
        return work

    def report(self, work: dict[str, Any], what: str, **body: Any) -> Response:
        """Send a request about a claim with its token and without an API key."""
        headers = {"Authorization": f"Bearer {work['token']}"}
        path = f"{TASKS}/{work['task_id']}/{what}"
        return self.api_user.http.post(path, headers=headers, json=body)


def register_agent(api_user: ApiUser, name: str = "laptop", **fields: Any) -> PullAgent:
    """Register an agent."""
    answer = api_user.request("POST", AGENTS, json={"name": name, **fields})
    assert answer.status_code in (200, 201), answer.text
    return PullAgent(api_user, answer.json()["id"])
