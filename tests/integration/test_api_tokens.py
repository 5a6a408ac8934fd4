"""JSON Web Tokens: one valid kind, and the same response to every other."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from overnight_server.control.token_keys import TokenKeys, UnreadableKeys
from overnight_server.control.tokens import JwtVerifier
from overnight_server.settings import SettingsError, load
from tests.support.api_user import NO_FILE, TASKS, ApiUser, serve_api
from tests.support.deployment import Deployment

ISSUER, AUDIENCE = "https://issuer.example", "overnight"
SECRET = "a secret of more than thirty-two bytes, made for tests"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def public_pem(key: Private) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def jwk(key: Private, kid: str, **more: str) -> dict[str, Any]:
    kind = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    [algorithm] = [made for form, made in kind.items() if isinstance(key, form)]
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, **more}


def claims(**changes: object) -> dict[str, object]:
    now = int(time.time())
    said: dict[str, object] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ada",
        "nbf": now - 1,
        "exp": now + 600,
        "scope": "openid tasks:read tasks:write",
        **changes,
    }
    return {name: value for name, value in said.items() if value is not None}


def signed(key: Any = RSA, algorithm: str = "RS256", headers: Any = None, **said: object) -> str:
    return jwt.encode(claims(**said), key, algorithm=algorithm, headers=headers)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def by_hand(header: dict[str, object], key: bytes = b"", **said: object) -> str:
    """Sign as no library would let us: with any header, and with any text as the secret."""
    body = f"{part(header)}.{part(claims(**said))}"
    signature = hmac.new(key, body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk(RSA, "one"), jwk(EC, "two"), jwk(ED, "three")]}))
    return path


@pytest.fixture
def api_user(deployment: Deployment, database_url: str, keys: Path) -> Iterator[ApiUser]:
    with opened(deployment, database_url, "RS256,ES256,EdDSA", KEYS=str(keys)) as api_user:
        deployment.run("UPDATE users SET name = 'ada' WHERE id = :id", id=api_user.user)
        yield api_user


def opened(deployment: Deployment, url: str, algorithms: str, **more: str) -> Any:
    environ = {"ALGORITHMS": algorithms, "ISSUER": ISSUER, "AUDIENCE": AUDIENCE, **more}
    return serve_api(deployment, url, **{f"OVERNIGHT_JWT_{name}": v for name, v in environ.items()})


def show(api_user: ApiUser, token: str, method: str = "GET", **options: Any) -> Any:
    return api_user.http.request(
        method, TASKS, headers={"Authorization": f"Bearer {token}"}, **options
    )


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(RSA, "RS256", "one"), (EC, "ES256", "two"), (ED, "EdDSA", "three")],
)
def test_a_token_signed_with_a_known_key_is_accepted(
    api_user: ApiUser, key: Private, algorithm: str, kid: str
) -> None:
    for subject in ("ada", str(api_user.user)):
        token = signed(key, algorithm, {"kid": kid}, sub=subject)

        made = show(api_user, token, "POST", json={"title": "a task"})

        assert made.status_code == 201, made.text
    listed = show(api_user, signed(key, algorithm, {"kid": kid}))
    assert listed.json() == api_user.request("GET", TASKS).json()
    # The API key remains valid too.
    assert len(listed.json()) == 2


def test_a_token_is_limited_to_its_scopes(api_user: ApiUser) -> None:
    reader = signed(headers={"kid": "one"}, scope="tasks:read email", scopes=None)
    nothing = signed(headers={"kid": "one"}, scope=None)
    listed = signed(headers={"kid": "one"}, scope=None, scopes=["tasks:read", 7, {"a": 1}])
    odd = signed(headers={"kid": "one"}, scope=None, scopes=7)

    assert show(api_user, reader).status_code == 200
    assert show(api_user, reader, "POST", json={"title": "a"}).status_code == 403
    assert show(api_user, listed).status_code == 200
    assert [show(api_user, item).status_code for item in (nothing, odd)] == [403, 403]


def test_a_token_alone_gives_no_admin_rights(api_user: ApiUser) -> None:
    token = signed(headers={"kid": "one"}, scope="*")
    headers = {"Authorization": f"Bearer {token}"}
    assert api_user.http.get("/api/v1/admin/audit", headers=headers).status_code == 404

    api_user.deployment.run("UPDATE users SET is_admin = true WHERE id = :id", id=api_user.user)

    assert api_user.http.get("/api/v1/admin/audit", headers=headers).status_code == 200


FUTURE = int(time.time()) + 10**6
KID = {"kid": "one"}
BAD: dict[str, Callable[[], str]] = {
    "no signature, by name": lambda: by_hand({"alg": "none", "typ": "JWT"}),
    "no signature at all": lambda: by_hand({"alg": "none"}).rpartition(".")[0] + ".",
    "none in capitals": lambda: by_hand({"alg": "NONE", "kid": "one"}),
    "no algorithm": lambda: by_hand({"typ": "JWT", "kid": "one"}),
    "an algorithm that is no text": lambda: by_hand({"alg": ["RS256"], "kid": "one"}),
    "the public key as a secret": lambda: by_hand(
        {"alg": "HS256", "kid": "one"}, public_pem(RSA).encode()
    ),
    "a secret where keys are set": lambda: jwt.encode(claims(), SECRET, algorithm="HS256"),
    "an algorithm that is not set": lambda: signed(RSA, "RS512", KID),
    "another's key": lambda: signed(OTHER_RSA, headers=KID),
    "an unknown key": lambda: signed(headers={"kid": "four"}),
    "a key of another kind": lambda: signed(EC, "ES256", KID),
    "a path for a key": lambda: signed(headers={"kid": "../../../../dev/null"}),
    "an injection for a key": lambda: signed(headers={"kid": "one' OR '1'='1"}),
    "a key that is no text": lambda: by_hand({"alg": "RS256", "kid": {"$ne": 1}}),
    "its own key": lambda: signed(OTHER_RSA, headers={**KID, "jwk": jwk(OTHER_RSA, "one")}),
    "the address of its own keys": lambda: signed(headers={**KID, "jku": "https://evil.example"}),
    "the address of a certificate": lambda: signed(headers={**KID, "x5u": "https://evil.example"}),
    "its own certificate": lambda: signed(headers={**KID, "x5c": ["MIIB"]}),
    "rules that must be known": lambda: signed(headers={**KID, "crit": ["exp"]}),
    "another type": lambda: signed(headers={**KID, "typ": "dpop+jwt"}),
    "a wrong issuer": lambda: signed(headers=KID, iss="https://evil.example"),
    "a wrong audience": lambda: signed(headers=KID, aud="somebody else"),
    "an audience of others": lambda: signed(headers=KID, aud=["a", "b"]),
    "no issuer": lambda: signed(headers=KID, iss=None),
    "no audience": lambda: signed(headers=KID, aud=None),
    "no subject": lambda: signed(headers=KID, sub=None),
    "no end": lambda: signed(headers=KID, exp=None),
    "no beginning": lambda: signed(headers=KID, nbf=None),
    "ended just beyond the leeway": lambda: signed(headers=KID, exp=int(time.time()) - 31),
    "not begun": lambda: signed(headers=KID, nbf=int(time.time()) + 60),
    "made in the future": lambda: signed(headers=KID, iat=FUTURE),
    "an end that is no time": lambda: signed(headers=KID, exp="tomorrow"),
    "an end beyond all time": lambda: signed(headers=KID, exp=1e400),
    "an unknown user": lambda: signed(headers=KID, sub="nobody"),
    "a subject that is no text": lambda: signed(headers=KID, sub=None).replace("x", "x"),
    "an empty subject": lambda: signed(headers=KID, sub=""),
    "a subject with a NUL": lambda: signed(headers=KID, sub="a\0da"),
    "a subject without end": lambda: signed(headers=KID, sub="a" * 300),
    "one letter changed": lambda: signed(headers=KID)[:-8] + "AAAAAAAA",
    "other claims, same signature": lambda: _regrown(signed(headers=KID)),
    "two parts": lambda: signed(headers=KID).rpartition(".")[0],
    "five parts": lambda: signed(headers=KID) + ".a.b",
    "no token at all": lambda: "eyJhbGciOi",
    "a hundred kilobytes": lambda: signed(headers=KID, more="x" * 100_000),
    "a nest without end": lambda: f"{part(KID)}.{'W' * 5000}.AAAA",
    "a header that is no object": lambda: f"{part([1])}.{part(claims())}.AAAA",
}


def _regrown(token: str) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{part(claims(sub='root'))}.{signature}"


def test_every_invalid_token_gets_the_same_response(api_user: ApiUser) -> None:
    assert show(api_user, signed(headers=KID)).status_code == 200
    plain = api_user.http.get(TASKS)

    answers = {name: show(api_user, make()) for name, make in BAD.items()}

    assert len(BAD) >= 25
    wrong = {
        name: answer.status_code for name, answer in answers.items() if answer.status_code != 401
    }
    assert not wrong
    assert {answer.content for answer in answers.values()} == {plain.content}
    headers = [{**answer.headers} for answer in answers.values()]
    assert all(each == headers[0] for each in headers)


def test_a_token_may_be_late_by_the_leeway(api_user: ApiUser) -> None:
    late = signed(headers=KID, exp=int(time.time()) - 5)

    assert show(api_user, late).status_code == 200


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_wrong_clock_of_this_host_neither_shortens_nor_extends_a_token(
    api_user: ApiUser, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    valid = signed(headers=KID)
    ended = signed(headers=KID, exp=int(time.time()) - 31)
    later = signed(headers=KID, nbf=int(time.time()) + 31)

    class WrongClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "WrongClock":
            return cls.fromtimestamp(time.time() + hours * 3600, tz)

    monkeypatch.setattr("jwt.api_jwt.datetime", WrongClock)

    statuses = [show(api_user, token).status_code for token in (valid, ended, later)]
    assert statuses == [200, 401, 401]


def test_a_token_is_refused_in_the_header_for_keys(api_user: ApiUser) -> None:
    headers = {"X-API-Key": signed(headers=KID)}

    assert api_user.http.get(TASKS, headers=headers).status_code == 401


def test_without_the_setting_tokens_are_refused(deployment: Deployment, database_url: str) -> None:
    with serve_api(deployment, database_url) as api_user:
        deployment.run("UPDATE users SET name = 'ada' WHERE id = :id", id=api_user.user)

        assert show(api_user, signed(headers=KID)).status_code == 401


def test_a_shared_secret_works_alone(deployment: Deployment, database_url: str, keys: Path) -> None:
    with opened(deployment, database_url, "HS256", SECRET=SECRET) as api_user:
        deployment.run("UPDATE users SET name = 'ada' WHERE id = :id", id=api_user.user)
        good = jwt.encode(claims(), SECRET, algorithm="HS256")
        bad = [
            jwt.encode(claims(), SECRET + "!", algorithm="HS256"),
            by_hand({"alg": "HS256"}),
            by_hand({"alg": "none"}),
            signed(headers=KID),
        ]

        assert show(api_user, good).status_code == 200
        assert [show(api_user, token).status_code for token in bad] == [401] * 4


def test_one_public_key_in_a_file_is_enough(tmp_path: Path) -> None:
    pem = tmp_path / "key.pem"
    pem.write_text(public_pem(ED))
    tokens = JwtVerifier(("EdDSA",), ISSUER, AUDIENCE, 0, TokenKeys.of(None, str(pem)))

    assert tokens.claims(signed(ED, "EdDSA"))["sub"] == "ada"
    # The key's own text is no secret that anything could be signed with.
    assert tokens.claims(by_hand({"alg": "HS256"}, public_pem(ED).encode())) == {}


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', "[1]", "-----BEGIN PRIVATE KEY-----"])
def test_a_file_without_a_public_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)

    with pytest.raises(UnreadableKeys, match="OVERNIGHT_JWT_KEYS"):
        TokenKeys.of(None, str(path))
    with pytest.raises(UnreadableKeys):
        TokenKeys.of(None, str(tmp_path / "none"))


class _Issuer(BaseHTTPRequestHandler):
    """Serves a key set and counts the requests."""

    keys: list[dict[str, Any]]
    asked: int

    def do_GET(self) -> None:
        type(self).asked += 1
        body = json.dumps({"keys": type(self).keys}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_unknown_keys_make_one_request_a_minute_to_the_issuer() -> None:
    _Issuer.keys, _Issuer.asked = [jwk(RSA, "one")], 0
    server = HTTPServer(("127.0.0.1", 0), _Issuer)
    Thread(target=server.serve_forever, daemon=True).start()
    now = [0.0]
    keys = TokenKeys.of(None, f"http://127.0.0.1:{server.server_port}/jwks")
    keys.clock = lambda: now[0]
    tokens = JwtVerifier(("RS256",), ISSUER, AUDIENCE, 0, keys)
    try:
        assert tokens.claims(signed(headers=KID))
        for number in range(100):
            assert not tokens.claims(signed(headers={"kid": f"invented {number}"}))
        assert _Issuer.asked == 1

        # A key that the issuer brought in meanwhile is found a minute later.
        _Issuer.keys = [jwk(RSA, "one"), jwk(OTHER_RSA, "new")]
        now[0] += 61
        assert tokens.claims(signed(OTHER_RSA, headers={"kid": "new"}))
        assert _Issuer.asked == 2
    finally:
        server.shutdown()
        server.server_close()
    # While the issuer is unreachable, known keys stay valid.
    now[0] += 10_000
    assert tokens.claims(signed(headers=KID))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"JWT_ALGORITHMS": "HS256"}, "OVERNIGHT_JWT_ISSUER must be set too"),
        (
            {"JWT_ALGORITHMS": "HS256", "JWT_ISSUER": "a", "JWT_AUDIENCE": "b"},
            "OVERNIGHT_JWT_SECRET must be set too",
        ),
        (
            {"JWT_ALGORITHMS": "RS256", "JWT_ISSUER": "a", "JWT_AUDIENCE": "b"},
            "OVERNIGHT_JWT_KEYS must be set too",
        ),
        ({"JWT_ALGORITHMS": "none"}, "must be HS256 alone"),
        ({"JWT_ALGORITHMS": "HS256,RS256"}, "must be HS256 alone"),
        ({"JWT_SECRET": "short"}, "32 bytes or more"),
        ({"JWT_KEYS": "http://keys.example/jwks"}, "https://"),
        ({"JWT_LEEWAY": "31"}, "OVERNIGHT_JWT_LEEWAY"),
        ({"NO_AUTH": "ada", "API_HOST": "0.0.0.0"}, "may listen on this machine only"),
        ({"NO_AUTH": "ada", "API_HOST": "192.0.2.7"}, "may listen on this machine only"),
    ],
)
def test_insecure_token_settings_are_refused(settings: dict[str, str], expected: str) -> None:
    environ = {f"OVERNIGHT_{name}": value for name, value in settings.items()}

    with pytest.raises(SettingsError) as refusal:
        load(environ, dotenv=NO_FILE)

    assert expected in str(refusal.value)
    assert "short" not in str(refusal.value)
