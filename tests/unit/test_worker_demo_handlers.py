import re
from pathlib import Path

import pytest

from overnight import Stopped
from overnight.testing import MemoryContext, run
from overnight_worker import demo_handlers, echo_handler
from tests.rules.sources import ROOT


def test_echo_returns_the_payload() -> None:
    assert run(echo_handler.echo, {"hello": "world"}).output == {"hello": "world"}


def test_sleep_reports_its_progress() -> None:
    ran = run(demo_handlers.sleep, {"seconds": 0.1})

    assert ran.output == {"slept": 0.1}
    assert ran.context.progress_reports


def test_sleep_stops_on_request() -> None:
    context = MemoryContext({"seconds": 60})
    context.stop("cancelled")

    with pytest.raises(Stopped):
        demo_handlers.sleep(context)


def test_a_stubborn_sleep_does_not_stop_on_request() -> None:
    context = MemoryContext({"seconds": 0.1, "stubborn": True})
    context.stop("cancelled")

    assert demo_handlers.sleep(context) == {"slept": 0.1}


def test_family_returns_the_outputs_of_its_children() -> None:
    answers = {"echo": {"said": "hello"}, "#2": ValueError("lost its way")}

    ran = run(demo_handlers.family, context=MemoryContext({"children": 2}, answers=answers))

    assert ran.output["states"] == ["completed", "dead_lettered"]
    assert ran.output["outputs"] == [{"said": "hello"}, None]
    assert ran.context.artifacts == {"plan": {"children": 2, "of": "echo"}}


def test_flaky_fails_the_given_number_of_times() -> None:
    with pytest.raises(RuntimeError):
        run(demo_handlers.flaky, context=MemoryContext({"failures": 2}, attempt=2))

    assert run(demo_handlers.flaky, context=MemoryContext({"failures": 2}, attempt=3)).output == {
        "attempts": 3
    }


def test_cost_reports_money_and_tokens() -> None:
    context = run(demo_handlers.cost, {"usd": 0.5, "input_tokens": 7, "output_tokens": 3}).context

    assert (context.cost_usd, context.tokens) == (0.5, {"input": 7, "output": 3})


def test_crash_refuses_an_unknown_way() -> None:
    with pytest.raises(ValueError, match="neither"):
        run(demo_handlers.crash, {"how": "gently"})


def test_the_guide_lists_the_types_of_the_demo_handlers() -> None:
    page = (ROOT / "docs" / "guides" / "handlers.md").read_text(encoding="utf-8")
    listed = page.partition("| Type | What it does | Payload |")[2].partition("\n\n")[0]
    types = re.findall(
        r'^@handler\("(\w+)"', Path(demo_handlers.__file__).read_text("utf-8"), re.MULTILINE
    )

    assert re.findall(r"^\| `(\w+)`", listed, re.MULTILINE) == types
