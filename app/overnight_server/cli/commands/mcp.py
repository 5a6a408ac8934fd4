"""`overnight mcp`: the queue as tools for agents, over standard input and output."""

from importlib.util import find_spec

from overnight_server.cli import connection
from overnight_server.cli.terminal import options
from overnight_server.cli.terminal.failures import Failure


def mcp(*, url: options.Url = None, api_key_file: options.KeyFile = None) -> None:
    """Serve your queue to an agent as MCP tools, over stdin and stdout.

    Inside a running task, as its environment tells, also what that run may do.
    """
    if find_spec("mcp") is None:
        raise Failure(
            "the MCP server is not installed", hint="Install it with: pip install 'overnight[mcp]'."
        )
    import asyncio

    from overnight.mcp.server import TaskClaim, serve

    server = connection.find_server(url, api_key_file)
    known = connection.settings()
    held = None
    if known.task_id is not None and known.claim_token is not None:
        held = TaskClaim(known.task_id, known.claim_token)
    asyncio.run(serve(server.url, server.api_key, held))
