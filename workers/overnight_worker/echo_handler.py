"""The handler that every worker has: `echo`, the type of tasks that are submitted without one."""

from overnight import Context, handler


@handler("echo")
def echo(ctx: Context) -> object:
    """Return the payload."""
    return ctx.payload
