"""`overnight limits` and `overnight window`: the caller's own limits and night window."""

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output, task_output


def limits(
    *,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Show the limits of your plan and how much of them is used."""
    with connection.client(url, api_key_file) as client:
        own = client.limits()
    if as_json:
        output.document(task_output.as_document(own))
    else:
        task_output.show_limits(own)


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
    """Show or set your night window: your tasks start only inside it."""
    fields = options.window_fields(zone, opens, closes, at_closing, off=off)
    with connection.client(url, api_key_file) as client:
        if off:
            me = client.me.drop_window()
        elif fields is not None:
            me = client.me.set_window(
                fields["zone"], fields["opens"], fields["closes"], at_closing=fields["at_closing"]
            )
        else:
            me = client.me.get()
    if as_json:
        output.document({"window": me.window and task_output.as_document(me.window)})
    elif me.window is None:
        output.line("You have no window: your tasks start at any time.")
    else:
        hours = f"{me.window.opens}-{me.window.closes} {me.window.zone}"
        output.line(f"Your tasks start {hours}; at closing: {me.window.at_closing}.")
