"""Secrets by reference: legal names, their users, and masking in text."""

import io
import sys
from uuid import UUID

import pytest

from overnight_server import mask
from overnight_server.domain.ids import UserId
from overnight_server.mask import add_secret, mask_secrets, mask_text
from overnight_worker.secrets import SecretMissing, resolve

ADA, BOB = UserId(UUID(int=1)), UserId(UUID(int=2))


@pytest.fixture(autouse=True)
def no_masked_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test without masked secrets."""
    monkeypatch.setattr(mask, "_secrets", set())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "stderr", io.StringIO())


def test_references_are_replaced_at_any_depth_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_GIT", "a long secret")
    payload = {"a": ["secret:GIT", {"b": "secret:GIT"}], "c": "my secret:GIT", "d": 7, "e": None}

    resolved = resolve(payload, ADA)

    assert resolved == {
        "a": ["a long secret", {"b": "a long secret"}],
        "c": "my secret:GIT",
        "d": 7,
        "e": None,
    }
    assert payload["a"] == ["secret:GIT", {"b": "secret:GIT"}]


def test_a_users_secret_takes_precedence_over_the_common_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_GIT", "everybody's own")
    monkeypatch.setenv(f"SECRET_GIT__{str(ADA).replace('-', '_')}", "only for ada")

    assert resolve("secret:GIT", ADA) == "only for ada"
    assert resolve("secret:GIT", BOB) == "everybody's own"


@pytest.mark.parametrize("name", ["NOBODYS", "SHORT", "PATH", "OVERNIGHT_DATABASE_URL"])
def test_only_variables_with_the_prefix_of_secrets_can_be_referenced(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SECRET_SHORT", "1234567")
    monkeypatch.setenv("OVERNIGHT_DATABASE_URL", "postgresql://me:hidden@here/there")

    with pytest.raises(SecretMissing, match=f"SECRET_{name}") as refusal:
        resolve(f"secret:{name}", ADA)

    assert refusal.value.error_class == "auth_failure"
    assert "1234567" not in str(refusal.value)


@pytest.mark.parametrize(
    "text", ["secret:", "secret:git", "secret:GIT ", "secret:A-B", "SECRET:GIT"]
)
def test_other_texts_are_not_replaced(text: str) -> None:
    assert resolve(text, ADA) == text


def test_the_secret_of_another_user_cannot_be_referenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference cannot contain a user id; otherwise a guessed id would reveal a secret."""
    bobs = f"GIT__{BOB}".replace("-", "_")
    monkeypatch.setenv(f"SECRET_{bobs}", "only for bob")

    with pytest.raises(SecretMissing):
        resolve("secret:GIT", ADA)
    for name in (bobs, bobs.upper()):
        assert resolve(f"secret:{name}", ADA) == f"secret:{name}"


def test_a_missing_secret_of_the_owner_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_GIT", "everybody's own")

    with pytest.raises(SecretMissing) as refusal:
        resolve("secret:GIT", ADA, own_only=True)

    variable = f"SECRET_GIT__{str(ADA).replace('-', '_')}"
    assert f"no secret GIT of the task's owner; set {variable} to 8" in str(refusal.value)


def test_a_secret_is_masked_in_every_encoding_and_in_names() -> None:
    add_secret('pa"ss/word+1')
    add_secret('pa"ss/word+1 and more')

    assert mask_text('x pa"ss/word+1 y') == "x *** y"
    assert mask_text('pa"ss/word+1 and more') == "***"
    assert mask_text("q=pa%22ss%2Fword%2B1") == "q=***"
    assert mask_text('{"a": "pa\\"ss/word+1"}') == '{"a": "***"}'
    assert mask_text("cGEic3Mvd29yZCsx") == "***"
    assert mask_secrets({'pa"ss/word+1': ['pa"ss/word+1', 1]}) == {"***": ["***", 1]}


def test_secrets_are_masked_in_printed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = io.StringIO()
    monkeypatch.setattr(sys, "stdout", spoken)
    monkeypatch.setenv("SECRET_GIT", "a long secret")

    for _ in range(2):
        resolve("secret:GIT", ADA)
    print("with a long secret")  # noqa: T201 - that is the point
    sys.stdout.flush()

    assert spoken.getvalue() == "with ***\n"
