"""What follows from an HTTP agent's answers, and which addresses it may have."""

import hashlib
import hmac

import pytest

from overnight.client.agents import name_of
from overnight.errors import InvalidRequest
from overnight.models.http_agents import TaskAnswer
from overnight_server.agent_driver.agent_rows import parse_key, show_key
from overnight_server.agent_driver.answers import (
    NotSent,
    Rejected,
    TaskAbsent,
    UnreadableAnswer,
    after_absence,
    after_submission,
    after_unreadable,
    result_of,
)
from overnight_server.agent_driver.signature import signature
from overnight_server.domain.ids import new_task_id
from overnight_server.domain.public_addresses import is_public
from overnight_server.domain.results import Busy, Deferred, Died, Raised, Returned
from overnight_server.outbound import addresses
from overnight_server.outbound.addresses import AddressRefused, allowed_machines, parse_base
from tests.support.sample_run import RUN

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34"]
PRIVATE = [
    "127.0.0.1",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a00:1",
    "2002:a00:1::",
    "2001:0:a00:1::",
    "fe80::1%eth0",
    "fec0::1",
    "::169.254.169.254",
    "::ffff:0:169.254.169.254",
    "192.0.2.1",
    # Services of clouds.
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_called(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_inside_a_network_may_not_be_called_for_users(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(AddressRefused, match="only an operator"):
        allowed_machines([address], private_allowed=False)
    assert allowed_machines([address], private_allowed=True) == [address]


def test_the_own_machine_may_not_be_called_by_its_public_address_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "is_public", lambda _: True)

    with pytest.raises(AddressRefused, match="only an operator"):
        allowed_machines(["127.0.0.1"], private_allowed=False)
    assert allowed_machines(["198.51.100.1"], private_allowed=False) == ["198.51.100.1"]


def test_of_several_addresses_only_the_public_ones_are_called() -> None:
    found = ["10.0.0.1", PUBLIC[0]]

    assert allowed_machines(found, private_allowed=False) == [PUBLIC[0]]


@pytest.mark.parametrize(
    ("url", "parsed", "netloc"),
    [
        ("http://Agent.example/", "http://agent.example", "agent.example"),
        ("https://agent.example:443/base/", "https://agent.example/base", "agent.example"),
        ("http://[::1]:9000", "http://[::1]:9000", "[::1]:9000"),
    ],
)
def test_a_url_is_stored_in_one_form(url: str, parsed: str, netloc: str) -> None:
    address = parse_base(url)

    assert (address.url, address.netloc) == (parsed, netloc)


@pytest.mark.parametrize(
    "url",
    [
        "agent.example",
        "ftp://agent.example",
        "http://",
        "http://user:password@agent.example",
        "http://agent.example/?query",
        "http://agent.example/#part",
        "http://agent.example:99999",
        "http://agent.example:0",
        "http://agent.example/a b",
        "http://[::1",
        "http://-agent.example",
        "http://agent..example",
        f"http://{'a' * 64}.example",
        f"http://{'a.' * 150}example",
        "http://ag<ent>.example",
        "http://ag\u00e9nt.example",
    ],
)
def test_a_url_that_is_no_agents_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="url"):
        parse_base(url)


def test_the_connection_goes_to_the_checked_machine() -> None:
    assert parse_base("https://agent.example/base").at("::1") == "https://[::1]:443/base"


def test_a_key_names_the_task_and_the_claim() -> None:
    task_id = new_task_id()

    assert parse_key(show_key(task_id, 3)) == (task_id, 3)
    assert [parse_key(text) for text in ("", "3", "task_1:2", f"{show_key(task_id, 3)}x")] == (
        [None] * 4
    )


def test_a_signature_is_what_the_guide_says() -> None:
    signed = b"17.POST./task." + b"body"

    expected = hmac.new(b"secret", signed, hashlib.sha256).hexdigest()

    assert signature("secret", 17, "POST", "/task", b"body") == f"v1={expected}"


@pytest.mark.parametrize(
    ("status", "error_class", "retryable"),
    [
        (301, "agent_refused", False),
        (400, "agent_refused", False),
        (401, "auth_failure", False),
        (403, "auth_failure", False),
        (429, "agent_refused", False),
        (500, "agent_error", True),
        (503, "agent_error", True),
    ],
)
def test_a_refused_task_is_retried_only_if_the_agent_is_at_fault(
    status: int, error_class: str, *, retryable: bool
) -> None:
    result = after_submission(Rejected(status, "why"))

    assert isinstance(result, Raised)
    assert (result.error_class, result.retryable) == (error_class, retryable)
    assert result.message == f"the agent answered {status}: why"


def test_a_busy_agent_ends_nothing_and_an_unreachable_one_is_retried() -> None:
    assert after_submission(Rejected(409)) == Busy(ran_seconds=0.0)
    assert after_submission(NotSent("refused")) == Raised(
        "agent_unreachable", "refused", retryable=True, ran_seconds=0.0
    )


@pytest.mark.parametrize(
    ("was_accepted", "boot_id", "has_crashed"),
    [
        (False, "same", False),
        (True, "same", True),
        (False, "other", True),
        (True, "other", True),
        (False, None, True),
    ],
)
def test_only_the_process_that_never_took_a_task_says_that_it_did_not_begin(
    boot_id: str | None, *, was_accepted: bool, has_crashed: bool
) -> None:
    result = after_absence(TaskAbsent("same"), was_accepted=was_accepted, boot_id=boot_id)

    assert isinstance(result, Died) is has_crashed


def test_too_large_an_answer_is_final_and_an_unreadable_one_is_not() -> None:
    assert after_unreadable(UnreadableAnswer("x", too_large=True)).retryable is False
    assert after_unreadable(UnreadableAnswer("x")).retryable is None


def _answer(**fields: object) -> TaskAnswer:
    return TaskAnswer.model_validate({"boot_id": "b", **fields})


def test_the_states_of_an_agent_become_results() -> None:
    completed = result_of(_answer(state="completed", output=[1], cost_usd=2.0), RUN)
    failed = result_of(_answer(state="failed", error="bad", error_class="crash"), RUN)
    limited = result_of(_answer(state="failed", error_class="rate_limit", retry_after=9), RUN)
    cancelled = result_of(_answer(state="cancelled"), RUN)

    assert completed == Returned(output=[1], cost_usd=2.0)
    assert failed == Raised("crash", "bad")
    assert limited == Deferred(9.0, "rate_limit")
    assert cancelled == Raised("agent_cancelled", "the agent cancelled the task")


def test_a_name_is_made_from_the_url() -> None:
    assert name_of("http://user@agent.example:9000/base") == "agent.example-9000"
    assert name_of("http://[::1]:9000") == "1-9000"
