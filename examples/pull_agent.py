"""An agent that lives wherever you like, asks for work over HTTP, and is safe to kill.

    export OVERNIGHT_URL=… OVERNIGHT_API_KEY=…
    python examples/pull_agent.py laptop

It runs your own tasks of the types below. Kill it, unplug it, put it to sleep: what it held goes to
another agent, or back to this one, and no result counts twice.
"""

import logging
import sys
import time

import overnight
from overnight.agent.agent import Agent

WORDS_PER_STEP = 200


@overnight.handler("count-words")
def count_words(ctx: overnight.Context) -> dict[str, object]:
    """Count the words of a text, a step at a time."""
    words = str(ctx.payload.get("text", "")).split()
    done = 0
    while done < len(words):
        # A stop, a timeout or a lost lease ends the run here.
        ctx.check()
        done = min(done + WORDS_PER_STEP, len(words))
        ctx.progress(done / len(words), f"{done} words")
    return {"words": len(words), "summary": f"{len(words)} words"}


@overnight.handler("slow-report")
def slow_report(ctx: overnight.Context) -> dict[str, object]:
    """Take a while over each section, and keep the whole as an artifact."""
    sections = [str(one) for one in ctx.payload.get("sections", ())]
    seconds = float(ctx.payload.get("seconds", 1.0))
    for number, section in enumerate(sections, start=1):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ctx.check()
            time.sleep(0.05)
        ctx.progress(number / len(sections), section)
        ctx.cost(0.01, input_tokens=100, output_tokens=20)
    report = ctx.artifact("report", "\n".join(sections))
    return {"report": report, "run": ctx.idempotency_key}


def main() -> None:
    """Work until SIGTERM or Ctrl-C; what runs then is handed back."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # What is said about every single request would hide the rest.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    name, *rest = [*sys.argv[1:], "laptop"][:2]
    lease = int(rest[0]) if rest and rest[0].isdigit() else None
    try:
        Agent(name, slots=1, lease_seconds=lease).run()
    except overnight.OvernightError as error:
        # No server, a key that opens nothing, or one that lacks the scope agents:run.
        raise SystemExit(f"{name}: {error}") from None


if __name__ == "__main__":
    main()
