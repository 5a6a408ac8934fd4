"""Messages by mail: text and HTML, over SMTP, with the messages of one task in one thread."""

import asyncio
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import format_datetime

from overnight_server.domain.delivery_outcomes import Delivered, NotDelivered, Outcome
from overnight_server.notifier.contents import describe, one_line
from overnight_server.notifier.delivery_rows import Message
from overnight_server.settings import Settings

THREADS = 16
# Replies of this class say that the same message will never be accepted.
PERMANENT = 5


@dataclass(frozen=True)
class MailServer:
    """The SMTP server of the deployment, and the sender's address."""

    host: str
    port: int
    security: str
    user: str | None
    password: str | None
    sender: str

    @classmethod
    def of(cls, settings: Settings) -> "MailServer | None":
        """Return the server that the settings name, if they name one."""
        if settings.smtp_host is None or settings.mail_from is None:
            return None
        return cls(
            *(settings.smtp_host, settings.smtp_port, settings.smtp_security),
            *(settings.smtp_user, settings.smtp_password, settings.mail_from),
        )

    @property
    def domain(self) -> str:
        """The domain of the sender, which is part of the ids of messages."""
        return self.sender.rpartition("@")[2].rstrip("> ")


class MailSender:
    """Sends mail in threads of its own, because smtplib blocks."""

    def __init__(self, server: MailServer, *, seconds: float, base_url: str | None = None) -> None:
        self._server = server
        self._seconds = seconds
        self._base_url = base_url
        self._tls = ssl.create_default_context()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="mail")

    async def close(self) -> None:
        """Begin no further mail."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def send(self, message: Message) -> Outcome:
        """Send a message, and return what the server's answer means."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._try, message)

    def _try(self, message: Message) -> Outcome:
        try:
            self._send(message)
        except smtplib.SMTPRecipientsRefused as error:
            [(status, text)] = error.recipients.values()
            return _refused(status, text, is_final=status // 100 == PERMANENT)
        except smtplib.SMTPDataError as error:
            is_final = error.smtp_code // 100 == PERMANENT
            return _refused(error.smtp_code, error.smtp_error, is_final=is_final)
        except smtplib.SMTPResponseException as error:
            # Such as a wrong password: an operator can repair it.
            return _refused(error.smtp_code, error.smtp_error, is_final=False)
        except (OSError, smtplib.SMTPException) as error:
            # smtplib hides the timeout of a reply.
            if isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
                seconds = f"{self._seconds:g} seconds"
                return NotDelivered(f"the mail server did not answer within {seconds}")
            return NotDelivered(f"no mail server: {str(error)[:200] or type(error).__name__}")
        return Delivered()

    def _send(self, message: Message) -> None:
        server = self._server
        mail = self.compose(message)
        if server.security == "tls":
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                server.host, server.port, timeout=self._seconds, context=self._tls
            )
        else:
            smtp = smtplib.SMTP(server.host, server.port, timeout=self._seconds)
        with smtp:
            if server.security == "starttls":
                smtp.starttls(context=self._tls)
            if server.user is not None:
                smtp.login(server.user, server.password or "")
            smtp.send_message(mail)

    def compose(self, message: Message) -> EmailMessage:
        """Return a message as mail. Its id is the same when it is sent again."""
        content = describe(message, self._base_url)
        first, domain = message.events[0], self._server.domain
        mail = EmailMessage()
        mail["From"] = self._server.sender
        mail["To"] = message.channel.address
        mail["Subject"] = one_line(content.subject)
        mail["Date"] = format_datetime(first.at)
        mail["Message-ID"] = f"<{message.id}.{message.channel.id}@{domain}>"
        if first.thread is not None and not message.is_digest:
            # No message has this id; those that name it as their parent are shown together.
            root = f"<thread.{first.thread}@{domain}>"
            mail["In-Reply-To"] = root
            mail["References"] = root
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(content.text)
        mail.add_alternative(content.html, subtype="html")
        return mail


def _refused(status: int, text: bytes | str, *, is_final: bool) -> NotDelivered:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return NotDelivered(
        f"the mail server answered {status} {one_line(shown)}", status, is_final=is_final
    )
