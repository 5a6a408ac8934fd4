"""Explain: reasons from pools, their workers, capabilities and types."""

from overnight_server.control.drain import drain
from overnight_server.gate.claim import ClaimSettings
from tests.integration.test_explain import only
from tests.support.deployment import CLAIM_TTL, LIVENESS, POOL, Deployment


def test_without_a_worker_nothing_starts(deployment: Deployment) -> None:
    user = deployment.user()
    task = deployment.task(user)

    assert only(deployment, user, task).code == "no_worker"

    deployment.agent(agent_id="leaving")
    drain(deployment.dispatcher, "leaving")
    reason = only(deployment, user, task)
    assert reason.code == "no_worker"
    assert reason.message.startswith(
        "the only live worker drains (leaving) and accepts no new tasks:"
        " ask an operator to let one accept tasks again"
    )
    assert reason.details["draining"] == ["leaving"]


def test_a_missing_capability_is_named_pool_by_pool(deployment: Deployment) -> None:
    deployment.agent()
    deployment.agent(agent_id="gpu-host", pool="gpu", capabilities=["gpu"])
    user = deployment.user()
    task = deployment.task(user, required_capabilities=["gpu", "big"])

    reason = only(deployment, user, task)

    assert reason.code == "no_capable_agent"
    assert reason.details["missing"] == {POOL: ["big", "gpu"], "gpu": ["big"]}
    assert "gpu lacks big; ask an operator to start a worker that offers" in reason.message


def test_a_capability_counts_only_if_all_workers_of_a_pool_have_it(deployment: Deployment) -> None:
    deployment.agent()
    deployment.agent(agent_id="gpu-host", capabilities=["gpu"])
    user = deployment.user()
    task = deployment.task(user, required_capabilities=["gpu"])

    reason = only(deployment, user, task)

    assert reason.details["mixed_pools"] == [POOL]
    assert "give those workers a pool of their own" in reason.message


def test_a_type_known_only_to_other_pools_names_them(deployment: Deployment) -> None:
    deployment.agent(types=["echo"])
    deployment.agent(agent_id="studio", pool="films", types=["film"])
    user = deployment.user()
    film = deployment.task(user, type="film", required_capabilities=[])
    drain(deployment.dispatcher, "studio")

    reason = only(deployment, user, film)

    assert reason.code == "handler"
    assert reason.message.startswith(
        "the workers of default have no handler for the type 'film', only those of films"
        " (draining) have one:"
    )
    assert reason.details == {
        "type": "film",
        "known_by": ["films"],
        "types": {POOL: ["echo"]},
        "mixed_pools": [],
    }


def test_a_type_known_to_some_workers_of_a_pool_is_reported(deployment: Deployment) -> None:
    deployment.agent(types=["echo"])
    deployment.agent(agent_id="newer", types=["echo", "film"])
    user = deployment.user()
    film = deployment.task(user, type="film")

    reason = only(deployment, user, film)

    assert reason.details["mixed_pools"] == [POOL]
    assert "not all workers of default have a handler for the type 'film'" in reason.message


def test_a_full_pool_reports_its_busy_slots(deployment: Deployment) -> None:
    deployment.agent(slots=1)
    user = deployment.user()
    deployment.running(user)
    task = deployment.task(user)

    reason = only(deployment, user, task)

    assert reason.code == "slots"
    assert reason.details["pools"] == [{"pool": POOL, "busy": 1, "slots": 1}]


def test_the_cap_on_all_slots_is_a_separate_reason(deployment: Deployment) -> None:
    deployment.agent()
    user = deployment.user()
    deployment.running(user)
    task = deployment.task(user)

    reason = only(deployment, user, task, ClaimSettings(CLAIM_TTL, LIVENESS, slots_max=1))

    assert (reason.code, dict(reason.details)) == ("slots_max", {"busy": 1, "slots_max": 1})
