"""A real worker sends the spans of its runs, and a command goes on with the trace of its run."""

from overnight_server.local.postgres import EmbeddedPostgres
from overnight_server.local.redis import EmbeddedRedis
from tests.support.trace_receiver import attributes, trace_receiver
from tests.support.wait import wait_until
from tests.support.workers import running_worker, shared_harness

SOON = 20
WORKS_ON = {
    "argv": ["sh", "-c", 'echo "$TRACEPARENT"'],
    "agent": None,
    "env": {},
    "network": None,
    "limits": None,
}


def test_a_worker_sends_the_spans_of_its_runs_and_tells_commands_their_trace(
    postgres: EmbeddedPostgres, template: str, redis: EmbeddedRedis
) -> None:
    with (
        trace_receiver() as receiver,
        shared_harness(postgres, template, redis, trace_endpoint=receiver.url) as harness,
        running_worker(harness.settings),
    ):
        echo = harness.send("echo")
        command = harness.send(
            "command", execution=WORKS_ON, required_capabilities=("runner:command",)
        )
        harness.reaches(echo, "completed")
        row = harness.reaches(command, "completed", timeout=60)
        wait_until(
            lambda: len(receiver.named("overnight.settle")) == 2, timeout=SOON, what="the spans"
        )

    attempts = receiver.named("overnight.attempt")
    assert [attributes(span)["overnight.type"] for span in attempts] == ["echo", "command"]
    assert [span.trace_id for span in attempts] == [echo.bytes, command.bytes]
    [run] = [span for span in receiver.named("overnight.run") if span.trace_id == command.bytes]
    traceparent = row["output"]["text"].strip()
    assert traceparent.split("-")[1:3] == [command.bytes.hex(), run.span_id.hex()]
