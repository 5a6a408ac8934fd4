"""`overnight notify`: channels that tell you what happened, and the log of what they were sent."""

import re
import time
from typing import TYPE_CHECKING, Annotated, cast

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import arguments, options, output, task_output
from overnight_server.cli.terminal.failures import Code, CommandFailure

if TYPE_CHECKING:
    from overnight import Client
    from overnight.client.notifications import ChannelEdits, ChannelOptions
    from overnight.models.notifications import Channel, Delivery

app = typer.Typer(help="Be told by webhook, mail or chat what happened.", no_args_is_help=True)
HEADERS = ("NAME", "KIND", "ADDRESS", "STATE", "OPEN", "DEAD", "TOLD OF")
LOG_HEADERS = ("ID", "CHANNEL", "EVENT", "STATE", "TRIES", "AT", "TITLE", "ERROR")
ONCE = "Store the secret now; it cannot be shown again."
HOURS = re.compile(r"(\d{1,2}:\d{2})-(\d{1,2}:\d{2})")
DIGEST = re.compile(r"(\d{1,4})/(\d{1,4})m")
# How long `test` waits for the notifier.
TEST_SECONDS = 30.0
TEST_POLL_SECONDS = 0.5
OVER = ("delivered", "dead")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the channel.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        metavar="KIND",
        help="What to be told of: a kind, the part before its dot, or all; repeatable.",
    ),
]
Quiet = Annotated[
    str | None,
    typer.Option(metavar="HH:MM-HH:MM", help="Hours in which nothing is sent; none: at any time."),
]
Zone = Annotated[
    str | None, typer.Option(metavar="ZONE", help="Time zone of --quiet, such as Europe/Berlin.")
]
Digest = Annotated[
    str | None,
    typer.Option(
        metavar="N/Mm", help="More than N of a kind in M minutes become one message; none: never."
    ),
]
Number = Annotated[int, typer.Argument(metavar="ID", min=1, help="Number of the delivery.")]


@app.command()
def add(
    name: Name,
    *,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Send signed JSON to a URL.")
    ] = None,
    slack: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send to an incoming webhook of Slack or the like."),
    ] = None,
    email: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Send mail.")] = None,
    service: Annotated[
        str | None, typer.Option(metavar="URL", help="Send to a service that Apprise knows.")
    ] = None,
    on: Kinds = None,
    quiet: Quiet = None,
    zone: Zone = None,
    digest: Digest = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Add a channel; the secret of a webhook is printed once."""
    given = {"webhook": webhook, "slack": slack, "email": email, "service": service}
    addresses = [(kind, address) for kind, address in given.items() if address is not None]
    if len(addresses) != 1:
        raise CommandFailure(
            "A channel has one address.",
            hint="Give exactly one of --webhook, --slack, --email and --service.",
            code=Code.USAGE,
        )
    [(kind, address)] = addresses
    fields: ChannelOptions = {**_quiet(quiet, zone), **_digest(digest)}
    with connection.client(url, api_key_file) as client:
        channel = client.notifications.add(name, kind, address, kinds=_kinds(on), **fields)
    if as_json:
        output.document(task_output.as_document(channel))
        return
    output.line(channel.secret or f"{name} added")
    output.note(f"It is told of {', '.join(channel.kinds) or 'nothing'}.")
    if channel.secret:
        output.note(ONCE)
    output.note(f"overnight notify test {output.quoted(name)}")


@app.command("list")
def list_(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List your channels."""
    with connection.client(url, api_key_file) as client:
        channels = client.notifications.channels()
    if as_json:
        output.document([task_output.as_document(channel) for channel in channels])
        return
    rows = [
        (
            channel.name,
            channel.kind,
            channel.address,
            _state(channel),
            channel.open,
            channel.dead,
            ", ".join(channel.kinds),
        )
        for channel in channels
    ]
    output.table(HEADERS, rows, empty="No channels.", optional=("TOLD OF", "OPEN", "DEAD"))


@app.command()
def edit(
    name: Name,
    *,
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where messages go from now on.")
    ] = None,
    on: Kinds = None,
    quiet: Quiet = None,
    zone: Zone = None,
    digest: Digest = None,
    enable: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Tell it again, or nothing more.")
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Change a channel; what no option names stays."""
    changes = cast("ChannelEdits", {**_quiet(quiet, zone), **_digest(digest)})
    if address is not None:
        changes["address"] = address
    if (kinds := _kinds(on)) is not None:
        changes["kinds"] = kinds
    if enable is not None:
        changes["enabled"] = enable
    if not changes:
        raise CommandFailure(
            "Nothing to change.", hint="See `overnight notify edit --help`.", code=Code.USAGE
        )
    with connection.client(url, api_key_file) as client:
        channel = client.notifications.edit(name, **changes)
    if as_json:
        output.document(task_output.as_document(channel))
    else:
        output.line(f"{name} changed")
        output.note(f"It is told of {', '.join(channel.kinds) or 'nothing'}.")


@app.command()
def remove(
    name: Name,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Remove a channel; what it has not got is given up."""
    with connection.client(url, api_key_file) as client:
        removed = client.notifications.remove(name)
    if as_json:
        output.document(task_output.as_document(removed))
    else:
        output.line(f"{name} removed")


@app.command("test")
def send_test(
    name: Name,
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Send a test message, and wait until it has arrived or failed."""
    with connection.client(url, api_key_file) as client:
        delivery = _await(client, client.notifications.test(name))
    if as_json:
        output.document(task_output.as_document(delivery))
    elif delivery.state == "delivered":
        output.line(f"{name} got the message")
    if delivery.state == "dead":
        raise CommandFailure(f"{name} did not get the message: {delivery.error}")
    if delivery.state not in OVER:
        raise CommandFailure(
            f"The message to {name} is not sent yet.",
            hint="Is a notifier running? `overnight doctor` says; `overnight notifier` starts one.",
        )


@app.command("report-time")
def report_time(
    at: Annotated[
        str | None, typer.Argument(metavar="[HH:MM]", help="Local time of the report.")
    ] = None,
    *,
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Time zone, such as Europe/Berlin.")
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show or set when the morning report is sent to the channels that want it."""
    if at is None and zone is not None:
        raise CommandFailure("--zone needs a time, such as 07:00.", code=Code.USAGE)
    with connection.client(url, api_key_file) as client:
        if at is None:
            report = client.notifications.report_time()
        else:
            report = client.notifications.set_report_time(at.zfill(5), zone or _own_zone())
    if as_json:
        output.document(task_output.as_document(report))
    elif report.next_at is None:
        output.line("no report is sent")
        output.note("Set a time: overnight notify report-time 07:00")
        output.note("Have it sent: overnight notify edit NAME --on report")
    else:
        output.line(f"{report.at} {report.zone}, next at {output.instant(report.next_at)}")


@app.command()
def rotate(
    name: Name,
    *,
    grace: Annotated[
        int,
        typer.Option(
            metavar="DURATION",
            help="How long messages are signed with the old secret too.",
            parser=arguments.seconds,
            show_default="1d",
        ),
    ] = 86_400,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Replace the secret of a webhook and print the new one."""
    with connection.client(url, api_key_file) as client:
        new = client.notifications.rotate(name, grace_seconds=grace)
    if as_json:
        output.document(task_output.as_document(new))
    else:
        output.line(new.secret)
        output.note(f"{ONCE} The old one signs too until {output.instant(new.old_secret_until)}.")


@app.command()
def deliveries(
    *,
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only deliveries to this channel.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only pending, sending, delivered or dead ones."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Largest number of deliveries to list.")
    ] = 50,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """List what your channels were sent, the latest first."""
    with connection.client(url, api_key_file) as client:
        found = list(client.notifications.deliveries(channel=channel, state=state, limit=limit))
    if as_json:
        output.document([task_output.as_document(delivery) for delivery in found])
        return
    rows = [
        (
            delivery.id,
            delivery.channel,
            delivery.kind,
            delivery.state,
            delivery.attempts,
            delivery.created_at,
            delivery.title or "",
            delivery.error or "",
        )
        for delivery in found
    ]
    output.table(LOG_HEADERS, rows, empty="No deliveries.", optional=("TITLE", "TRIES"))


@app.command()
def replay(
    delivery: Annotated[
        int | None, typer.Argument(metavar="[ID]", min=1, help="Number of a delivery.")
    ] = None,
    *,
    dead_of: Annotated[
        str | None,
        typer.Option("--dead", metavar="NAME", help="Every dead delivery of this channel."),
    ] = None,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Send a delivery again, or every dead delivery of a channel."""
    document: object = None
    count = 0
    if (delivery is None) == (dead_of is None):
        raise CommandFailure(
            "Which deliveries?", hint="Give one number, or --dead NAME.", code=Code.USAGE
        )
    with connection.client(url, api_key_file) as client:
        if dead_of is not None:
            many = client.notifications.replay_dead(dead_of)
            document, count = task_output.as_document(many), many.replayed
        elif delivery is not None:
            document, count = task_output.as_document(client.notifications.replay(delivery)), 1
    if as_json:
        output.document(document)
    else:
        what = "1 delivery is" if count == 1 else f"{count} deliveries are"
        output.line(f"{what} sent again")


def _await(client: "Client", delivery: "Delivery") -> "Delivery":
    """Return a delivery when it is over, or after a while."""
    deadline = time.monotonic() + TEST_SECONDS
    while delivery.state not in OVER and time.monotonic() < deadline:
        time.sleep(TEST_POLL_SECONDS)
        delivery = client.notifications.delivery(delivery.id)
    return delivery


def _kinds(on: list[str] | None) -> list[str] | None:
    """Return the kinds that `--on` names, also by the part before their dot."""
    if not on:
        return None
    from overnight.models.notifications import Told

    every = [str(kind) for kind in Told]
    kinds: list[str] = []
    for word in on:
        found = [kind for kind in every if word == kind or kind.startswith(f"{word}.")]
        if word == "all":
            found = [kind for kind in every if kind != Told.WORKER_LOST]
        if not found:
            hint = f"Allowed: all, {', '.join(every)}."
            raise CommandFailure(f"--on: {word!r} is no kind", hint=hint, code=Code.USAGE)
        kinds += found
    return kinds


def _quiet(hours: str | None, zone: str | None) -> "ChannelOptions":
    if hours is None:
        if zone is not None:
            raise CommandFailure("--zone needs --quiet.", code=Code.USAGE)
        return {}
    if hours == "none":
        return {"quiet": None}
    match = HOURS.fullmatch(hours)
    if match is None:
        hint = "Allowed: HH:MM-HH:MM, such as 22:00-07:00, or none."
        raise CommandFailure(f"--quiet: {hours!r} are no hours", hint=hint, code=Code.USAGE)
    begins, ends = (part.zfill(5) for part in match.groups())
    return {"quiet": {"zone": zone or _own_zone(), "begins": begins, "ends": ends}}


def _own_zone() -> str:
    """Return the time zone of this machine; raise CommandFailure if it has no name."""
    from pathlib import Path

    target = str(Path("/etc/localtime").resolve())
    _, found, name = target.partition("zoneinfo/")
    if not found:
        hint = "Give it with --zone, such as --zone Europe/Berlin."
        raise CommandFailure("The time zone of this machine is not known.", hint=hint)
    return name


def _digest(text: str | None) -> "ChannelOptions":
    if text is None:
        return {}
    if text == "none":
        return {"digest_after": 0}
    match = DIGEST.fullmatch(text)
    if match is None:
        hint = "Allowed: N/Mm, such as 10/10m, or none."
        raise CommandFailure(f"--digest: {text!r} is no digest", hint=hint, code=Code.USAGE)
    return {"digest_after": int(match[1]), "digest_minutes": int(match[2])}


def _state(channel: "Channel") -> str:
    if channel.state == "failing" and channel.blocked_until is not None:
        return f"failing, next try {output.short_instant(channel.blocked_until)}"
    return channel.state
