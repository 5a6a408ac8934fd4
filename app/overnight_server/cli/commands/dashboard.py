"""`overnight open`: open the dashboard in the browser, signed in."""

import webbrowser
from typing import Annotated

import typer

from overnight_server.cli import connection
from overnight_server.cli.terminal import options, output


def open_(
    *,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the link, and do not start a browser.")
    ] = False,
    as_json: options.Json = False,
    url: options.Url = None,
    api_key_file: options.KeyFile = None,
) -> None:
    """Open the dashboard in your browser, signed in with your key.

    The link works once, within ten minutes.
    """
    with connection.client(url, api_key_file) as client:
        made = client.me.make_sign_in_link()
    address = connection.find_server(url, api_key_file).url.rstrip("/")
    link = f"{address}{made.path}"
    if as_json:
        output.document({"url": link, "expires_at": made.expires_at.isoformat()})
        return
    if only_print or not webbrowser.open(link):
        output.line(link)
    else:
        output.line(f"Opened {address} in your browser.")
