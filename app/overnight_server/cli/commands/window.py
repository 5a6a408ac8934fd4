"""`overnight window`: in which hours one's own work may start, asked of the service."""

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output
from overnight_server.domain.windows import AtClosing


def window(
    *,
    zone: options.WindowZone = None,
    opens: options.WindowOpens = None,
    closes: options.WindowCloses = None,
    at_closing: options.WindowAtClosing = None,
    off: options.WindowOff = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show your night window, or give yourself one outside of which none of your work starts."""
    named = [zone, opens, closes]
    if off and (any(named) or at_closing):
        raise typer.BadParameter("--off takes the window away; leave the other options out")
    if (any(named) or at_closing) and not all(named):
        raise typer.BadParameter("a window needs --zone, --from and --to; --off takes it away")
    with connection.client(url, api_key_file) as client:
        if off:
            me = client.me.drop_window()
        elif zone and opens and closes:
            rule = (at_closing or AtClosing.FINISH).value
            me = client.me.set_window(zone, opens, closes, at_closing=rule)
        else:
            me = client.me.get()
    if as_json:
        output.document({"window": me.window and task_output.plain(me.window)})
    elif me.window is None:
        output.line("Your work may start at any time.")
    else:
        hours = f"{me.window.opens}-{me.window.closes} {me.window.zone}"
        output.line(f"Your work may start {hours}; at closing: {me.window.at_closing}.")
