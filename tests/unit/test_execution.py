"""How a command runs: what the request, the agent profile and the plan decide together."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from overnight.errors import InvalidRequest
from overnight.models.execution import NetworkAllow
from overnight_server.domain.execution import Execution, command_options, decide, models_of
from overnight_server.domain.plans import CommandLimits

PLAN = CommandLimits(2048, 256, 1024, network=True)
NO_NETWORK = CommandLimits(2048, 256, 1024, network=False)
PROFILE: dict[str, Any] = {
    "argv": ["claude", "--model", "{model}"],
    "env": {"KEY": "secret:KEY"},
    "network": {"allow": ["api.example.com"]},
    "limits": {"memory_mb": 4096},
    "models": ["large", "small"],
    "mounts": [{"source": "/opt/claude", "target": "/opt/claude"}],
    "push": True,
}


def asked(**fields: Any) -> dict[str, Any]:
    empty = {"agent": None, "argv": None, "env": {}, "network": None, "limits": None}
    return {**empty, **fields}


def test_a_command_has_defaults() -> None:
    execution = decide(asked(argv=["ls"]), None, PLAN)

    assert execution.argv == ("ls",)
    assert (execution.network, execution.env, execution.agent) == ((), {}, None)
    assert (execution.limits.memory_mb, execution.limits.grace_seconds) == (2048, 10.0)


def test_a_profile_decides_what_the_task_leaves_open() -> None:
    execution = decide(asked(agent="claude", env={"MINE": "1"}), PROFILE, PLAN)

    assert execution.argv == ("claude", "--model", "{model}")
    assert (execution.env, execution.own_env) == ({"KEY": "secret:KEY"}, {"MINE": "1"})
    assert execution.network == ("api.example.com",)
    assert execution.limits.memory_mb == 4096
    assert execution.models == ("large", "small")
    assert execution.mounts == (("/opt/claude", "/opt/claude"),)
    assert execution.push


def test_what_is_stored_is_read_again() -> None:
    execution = decide(asked(agent="claude"), PROFILE, PLAN)

    assert Execution.of(json.loads(json.dumps(execution.stored()))) == execution


@pytest.mark.parametrize(
    ("request_fields", "profile", "plan", "models", "field"),
    [
        ({}, None, PLAN, [], "spec.argv"),
        ({"argv": ["x", "{model}"]}, None, PLAN, [], "spec.model"),
        ({"argv": ["x"], "limits": {"memory_mb": 4096}}, None, PLAN, [], "limits.memory_mb"),
        ({"argv": ["x"], "network": {"allow": ["a.b"]}}, None, NO_NETWORK, [], "network"),
        ({"agent": "claude", "argv": ["x"]}, PROFILE, PLAN, [], "spec.argv"),
        ({"agent": "claude"}, PROFILE, PLAN, ["huge"], "spec.model"),
        ({"agent": "claude"}, {"argv": ["x", "{model}"]}, PLAN, [], "spec.model"),
        ({"agent": "claude", "network": {"allow": ["evil.org"]}}, PROFILE, PLAN, [], "network"),
        ({"agent": "claude", "limits": {"memory_mb": 9000}}, PROFILE, PLAN, [], "limits.memory_mb"),
    ],
)
def test_what_is_not_allowed_is_refused_by_its_field(
    request_fields: dict[str, Any],
    profile: dict[str, Any] | None,
    plan: CommandLimits,
    models: list[str],
    field: str,
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decide(asked(**request_fields), profile, plan, models)

    assert [each.field for each in refused.value.fields] == [field]
    assert refused.value.fields[0].legal


def test_a_task_may_ask_for_less_than_its_profile_allows() -> None:
    fewer = asked(agent="claude", network="off", limits={"memory_mb": 512, "grace_seconds": 0})

    execution = decide(fewer, PROFILE, NO_NETWORK)

    assert execution.network == ()
    assert (execution.limits.memory_mb, execution.limits.grace_seconds) == (512, 0)


def test_the_options_of_a_spec_are_checked() -> None:
    assert command_options({"argv": ["ls"], "model": "x"}) == {"argv": ["ls"], "env": {}}
    for wrong in ({"argv": "ls"}, {"argv": []}, {"env": {"OVERNIGHT_X": "1"}}, {"env": {"1": ""}}):
        with pytest.raises(InvalidRequest, match=r"spec\.(argv|env)"):
            command_options(wrong)


def test_the_models_of_a_spec_are_found_in_all_places() -> None:
    constraints = {"model_preferences": ["b"], "fallback_models": ["c"]}

    assert models_of({"model": "a", "constraints": constraints}) == ["a", "b", "c"]
    assert models_of({}) == []


@pytest.mark.parametrize("host", ["a.b", "git.example.com:22", "git.example.com:65535", "x-1.y:1"])
def test_a_host_may_have_a_port(host: str) -> None:
    assert NetworkAllow(allow=(host,)).allow == (host,)


@pytest.mark.parametrize(
    "host", ["a", "a.b:", "a.b:0", "a.b:65536", "a.b:022", "a.b:http", "a.b/x", "-a.b", "a.b:1:2"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        NetworkAllow(allow=(host,))
