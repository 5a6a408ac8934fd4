"""A pull agent: it claims tasks over HTTP from any machine, and can be killed at any time.

    export OVERNIGHT_URL=… OVERNIGHT_API_KEY=…
    python examples/pull_agent.py laptop

It runs your tasks of the types below. When it is killed or loses its connection, its tasks run
again, on another agent or on this one, and each result counts once.
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
    """Wait a while for each section, and store the report as an artifact."""
    sections = [str(section) for section in ctx.payload.get("sections", ())]
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
    """Run tasks until SIGTERM or Ctrl-C, then hand back what runs."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # A log line for every request would hide the others.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    name, *rest = [*sys.argv[1:], "laptop"][:2]
    lease = int(rest[0]) if rest and rest[0].isdigit() else None
    try:
        Agent(name, slots=1, lease_seconds=lease).run()
    except overnight.OvernightError as error:
        # There is no server, the key is invalid, or it lacks the scope agents:run.
        raise SystemExit(f"{name}: {error}") from None


if __name__ == "__main__":
    main()
