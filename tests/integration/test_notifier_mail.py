"""Mail and services: real receivers on this machine that accept, refuse and hang."""

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message as Mail
from email.policy import default
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session

from overnight_server.domain.notifications import NotificationKind
from overnight_server.local.ports import free_port
from overnight_server.notifier import delivery_rows
from overnight_server.notifier.delivery_rows import DueChannel
from overnight_server.settings import Settings
from overnight_server.store.notifications import record_notification
from tests.support.deployment import Deployment
from tests.support.notifications import add_channel
from tests.support.receivers import http_receiver, notifier_settings, notifying
from tests.support.wait import wait_until

pytestmark = [
    # The server of this test has no certificate, and asks for a password.
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS"),
    # Apprise imports every service, also with old modules.
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning"),
]
ADDRESS = "ada@example.com"
SENDER = "Overnight <overnight@example.org>"


class Mailbox:
    """What an SMTP server accepted; it answers RCPT and DATA with the next of `answers`."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.recipients: list[str] = []
        # Whether each recipient came over TLS.
        self.encrypted: list[bool] = []
        self.refuses_recipient = ""
        self.answers: list[str] = []

    async def handle_RCPT(  # noqa: N802 - the name that aiosmtpd calls
        self, server: Any, _session: Session, envelope: Envelope, address: str, _options: Any
    ) -> str:
        """Accept or refuse a recipient."""
        self.encrypted.append(server.transport.get_extra_info("sslcontext") is not None)
        if self.refuses_recipient:
            return self.refuses_recipient
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - the name that aiosmtpd calls
        self, _server: Any, _session: Session, envelope: Envelope
    ) -> str:
        """Accept or refuse a mail."""
        if self.answers:
            return self.answers.pop(0)
        self.mails.append(message_from_bytes(bytes(envelope.content or b""), policy=default))
        self.recipients += envelope.rcpt_tos
        return "250 OK"


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


def check_password(
    _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any
) -> AuthResult:
    """Accept the password of the settings of these tests."""
    assert isinstance(data, LoginPassword)
    is_right = (data.login, data.password) == (b"overnight", b"mail-password")
    return AuthResult(success=is_right, handled=False)


@contextmanager
def mail_server(mailbox: Mailbox, **options: Any) -> Iterator[int]:
    """Serve a mailbox until the end of the block, and return the port."""
    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=free_port(),
        authenticator=check_password,
        auth_required=True,
        **options,
    )
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()


@pytest.fixture
def server(mailbox: Mailbox) -> Iterator[Settings]:
    with mail_server(mailbox, auth_require_tls=False) as port:
        yield mail_settings(port)


@dataclass(frozen=True)
class Certificate:
    """A certificate of its own authority for 127.0.0.1, and the key."""

    path: Path
    key: Path

    @property
    def context(self) -> ssl.SSLContext:
        """What a server needs to show it."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.path, self.key)
        return context


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    made = Certificate(tmp_path / "mail.pem", tmp_path / "mail.key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *(
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=mail",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ),
            *("-keyout", str(made.key), "-out", str(made.path)),
        ],
        check=True,
        capture_output=True,
    )
    return made


@pytest.fixture
def trusted(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """Return a certificate that the notifier's machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    return certificate


def encrypted_server(
    mailbox: Mailbox, security: str, certificate: Certificate
) -> AbstractContextManager[int]:
    """Serve a mailbox that takes passwords and mail over TLS only."""
    if security == "tls":
        # aiosmtpd knows nothing of the encryption below it.
        return mail_server(mailbox, ssl_context=certificate.context, auth_require_tls=False)
    return mail_server(mailbox, tls_context=certificate.context, require_starttls=True)


def mail_settings(port: int, **changes: object) -> Settings:
    return notifier_settings(
        **{
            "smtp_host": "127.0.0.1",
            "smtp_port": port,
            "smtp_security": "none",
            "smtp_user": "overnight",
            "smtp_password": "mail-password",
            "mail_from": SENDER,
            "url": "https://overnight.example.org",
            "delivery_timeout": 10,
            **changes,
        }
    )


def add_mail(deployment: Deployment, user: UUID, address: str = ADDRESS, **columns: Any) -> UUID:
    return add_channel(
        deployment,
        user,
        kind="email",
        address=address,
        full_address=address,
        secret=None,
        **columns,
    )


def tell(deployment: Deployment, user: UUID, *titles: str, task: UUID | None = None) -> None:
    for number, title in enumerate(titles):
        deployment.dispatcher.atomically(
            lambda tx, number=number, title=title: record_notification(
                tx,
                NotificationKind.DEAD_LETTERED,
                user_id=user,  # type: ignore[arg-type]
                subject=f"{title}:{number}",
                task_id=task,
                detail={"title": title, "error": "no <space> left", "text": "It failed."},
            )
        )


def rows(deployment: Deployment) -> list[dict[str, Any]]:
    found = deployment.rows("SELECT * FROM notification_deliveries ORDER BY id")
    return [dict(row) for row in found]


def wait_for(deployment: Deployment, *states: str) -> None:
    wait_until(lambda: [row["state"] for row in rows(deployment)] == list(states), what=f"{states}")


def wait_for_try(deployment: Deployment) -> dict[str, Any]:
    wait_until(lambda: rows(deployment)[0]["attempts"] == 1, what="a try")
    return rows(deployment)[0]


def test_mail_has_text_and_html_and_threads_by_task(
    deployment: Deployment, mailbox: Mailbox, server: Settings
) -> None:
    deployment.agent()
    user = deployment.user()
    task = deployment.task(user)
    add_mail(deployment, user)
    tell(deployment, user, "render\r\nBcc: eve@example.com", "again", task=task)
    tell(deployment, user, "other")

    with notifying(deployment.dispatcher, server):
        wait_for(deployment, *["delivered"] * 3)

    first, again, other = sorted(mailbox.mails, key=lambda mail: mail["Message-ID"])
    assert first["Subject"] == "Task failed: render Bcc: eve@example.com"
    assert (first["To"], first["From"]) == (ADDRESS, SENDER)
    assert first["Bcc"] is None
    assert mailbox.recipients == [ADDRESS] * 3
    assert first["References"] == again["References"] == first["In-Reply-To"]
    assert other["References"] is None
    assert len({mail["Message-ID"] for mail in mailbox.mails}) == 3
    plain, html = first.iter_parts()  # type: ignore[attr-defined]
    assert "It failed." in plain.get_content()
    assert "https://overnight.example.org/tasks/task_" in plain.get_content()
    assert "no &lt;space&gt; left" in html.get_content()


def test_a_wrong_password_is_tried_again_and_said(
    deployment: Deployment, mailbox: Mailbox, server: Settings
) -> None:
    user = deployment.user()
    add_mail(deployment, user)
    tell(deployment, user, "render")

    with notifying(deployment.dispatcher, mail_settings(server.smtp_port, smtp_password="wrong")):
        row = wait_for_try(deployment)

    assert row["state"] == "pending"
    assert "answered 535" in row["error"]
    assert "wrong" not in row["error"]


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_goes_over_an_encrypted_connection(
    deployment: Deployment, mailbox: Mailbox, trusted: Certificate, security: str
) -> None:
    user = deployment.user()
    add_mail(deployment, user)
    tell(deployment, user, "render")

    with encrypted_server(mailbox, security, trusted) as port:
        settings = mail_settings(port, smtp_security=security)
        with notifying(deployment.dispatcher, settings):
            wait_for(deployment, "delivered")

    assert [mail["Subject"] for mail in mailbox.mails] == ["Task failed: render"]
    assert mailbox.encrypted == [True]


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_mail_server_with_an_unknown_certificate_gets_no_password(
    deployment: Deployment, mailbox: Mailbox, certificate: Certificate, security: str
) -> None:
    user = deployment.user()
    add_mail(deployment, user)
    tell(deployment, user, "render")

    with encrypted_server(mailbox, security, certificate) as port:
        settings = mail_settings(port, smtp_security=security)
        with notifying(deployment.dispatcher, settings):
            row = wait_for_try(deployment)

    assert row["state"] == "pending"
    assert "certificate verify failed" in row["error"]
    assert mailbox.encrypted == []


def test_a_mail_server_without_starttls_gets_no_password(
    deployment: Deployment, mailbox: Mailbox, server: Settings
) -> None:
    user = deployment.user()
    add_mail(deployment, user)
    tell(deployment, user, "render")

    settings = mail_settings(server.smtp_port, smtp_security="starttls")
    with notifying(deployment.dispatcher, settings):
        row = wait_for_try(deployment)

    assert row["state"] == "pending"
    assert "STARTTLS" in row["error"]
    assert mailbox.encrypted == []


@pytest.mark.parametrize(
    ("code", "state"), [("550 no such user", "dead"), ("451 later", "pending")]
)
def test_a_refused_recipient_is_final_and_a_busy_server_is_not(
    deployment: Deployment, mailbox: Mailbox, server: Settings, code: str, state: str
) -> None:
    user = deployment.user()
    add_mail(deployment, user)
    tell(deployment, user, "render")
    mailbox.refuses_recipient = code

    with notifying(deployment.dispatcher, server):
        row = wait_for_try(deployment)

    assert row["state"] == state
    assert code in row["error"]


def test_a_mail_server_that_hangs_or_is_down_delays_no_webhook(deployment: Deployment) -> None:
    with http_receiver() as receiver, socket.create_server(("127.0.0.1", 0)) as silent:
        for _ in range(3):
            user = deployment.user()
            add_mail(deployment, user)
            tell(deployment, user, *["render"] * 10)
        add_channel(deployment, user, url=receiver.url())
        settings = mail_settings(silent.getsockname()[1], delivery_timeout=2)
        with notifying(deployment.dispatcher, settings):
            begun = time.monotonic()
            tell(deployment, user, "webhook")
            wait_until(receiver.received, what="the webhook")
            assert time.monotonic() - begun < 2
            row = wait_for_try(deployment)

    assert "did not answer within 2 seconds" in row["error"]


def test_many_channels_that_wait_for_a_place_keep_no_processor_busy(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    find = delivery_rows.find_channels

    def counted(*arguments: Any, **options: Any) -> list[DueChannel]:
        found = find(*arguments, **options)
        passes.append(len(found))
        return found

    monkeypatch.setattr(delivery_rows, "find_channels", counted)
    for _ in range(4):
        user = deployment.user()
        for _ in range(20):
            add_mail(deployment, user)
        tell(deployment, user, "render")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = mail_settings(
            silent.getsockname()[1], delivery_timeout=3, notifier_poll_interval=30
        )
        with notifying(deployment.dispatcher, settings):
            wait_until(lambda: len(passes) > 1, what="a pass without a free place")
            time.sleep(1)
            looked = len(passes)

    assert looked < 10
    # The places were all in use, so no channel was found any more.
    assert passes[0] == 50
    assert passes[looked - 1] == 0


def test_a_mail_server_that_closes_early_is_tried_again(deployment: Deployment) -> None:
    user = deployment.user()
    add_mail(deployment, user)
    tell(deployment, user, "render")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_each() -> None:
            connection, _ = server.accept()
            connection.sendall(b"220 hello\r\n")
            connection.close()

        closing = threading.Thread(target=close_each)
        closing.start()
        with notifying(deployment.dispatcher, mail_settings(server.getsockname()[1])):
            row = wait_for_try(deployment)
        closing.join()

    assert row["state"] == "pending"
    assert "no mail server" in row["error"]


def test_mail_without_a_server_says_which_setting_is_missing(deployment: Deployment) -> None:
    user = deployment.user()
    add_mail(deployment, user)
    tell(deployment, user, "render")

    with notifying(deployment.dispatcher):
        row = wait_for_try(deployment)

    assert "OVERNIGHT_SMTP_HOST" in row["error"]


def test_a_service_gets_the_message(deployment: Deployment) -> None:
    user = deployment.user()
    with http_receiver() as receiver:
        url = receiver.url("/204").replace("http:", "json:")
        add_channel(deployment, user, kind="service", secret=None, full_address=url)
        tell(deployment, user, "render")

        with notifying(deployment.dispatcher):
            wait_for(deployment, "delivered")

        [request] = receiver.requests
    assert request.json["title"] == "Task failed: render"
    assert "It failed." in request.json["message"]


def test_a_service_that_refuses_is_tried_again(deployment: Deployment) -> None:
    user = deployment.user()
    with http_receiver() as receiver:
        url = receiver.url("/500").replace("http:", "json:")
        add_channel(deployment, user, kind="service", secret=None, full_address=url)
        tell(deployment, user, "render")

        with notifying(deployment.dispatcher):
            row = wait_for_try(deployment)

    assert row["error"] == "the service did not accept the message"


@pytest.mark.parametrize(
    "address",
    [
        "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js,{url}",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ?template={url}",
        "{url}",
    ],
)
def test_an_address_that_its_user_may_not_use_gets_nothing(
    deployment: Deployment, address: str
) -> None:
    user = deployment.user()
    with http_receiver() as receiver:
        url = receiver.url("/204").replace("http:", "http:" if "template" in address else "json:")
        add_channel(
            deployment,
            user,
            kind="service",
            secret=None,
            full_address=address.format(url=url),
            private_allowed=False,
        )
        tell(deployment, user, "render")

        with notifying(deployment.dispatcher):
            row = wait_for_try(deployment)

    assert receiver.requests == []
    assert row["state"] == "dead"
    assert "only an operator" in row["error"]


def test_a_service_that_leads_elsewhere_is_not_followed(deployment: Deployment) -> None:
    user = deployment.user()
    with http_receiver() as receiver:
        receiver.headers["Location"] = receiver.url("/204")
        url = receiver.url("/307").replace("http:", "json:")
        add_channel(deployment, user, kind="service", secret=None, full_address=url)
        tell(deployment, user, "render")

        with notifying(deployment.dispatcher):
            row = wait_for_try(deployment)

    assert [request.path for request in receiver.requests] == ["/307"]
    assert row["error"] == "the service did not accept the message"


def test_a_service_without_its_library_says_what_to_install(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = deployment.user()
    add_channel(deployment, user, kind="service", secret=None, full_address="pover://a@b")
    tell(deployment, user, "render")
    monkeypatch.setattr("overnight_server.outbound.services.find_spec", lambda _name: None)

    with notifying(deployment.dispatcher):
        row = wait_for_try(deployment)

    assert "pip install 'overnight[notify]'" in row["error"]
