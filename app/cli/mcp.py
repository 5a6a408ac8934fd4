"""`overnight mcp`: the queue as tools for agents, over standard input and output."""

from importlib.util import find_spec

from app.cli import connection, options
from app.cli.failures import Failure


def mcp(*, url: options.Url = None, api_key_file: options.KeyFile = None) -> None:
    """Serve your queue to an agent as MCP tools, over stdin and stdout."""
    if find_spec("mcp") is None:
        raise Failure(
            "the MCP server is not installed", hint="Install it with: pip install 'overnight[mcp]'."
        )
    import asyncio

    from overnight.mcp_server import serve

    server = connection.find_server(url, api_key_file)
    asyncio.run(serve(server.url, server.api_key))
