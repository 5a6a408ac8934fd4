"""JSON pointers, templates of events and filters: what they give, and what is refused."""

import pytest

from overnight.errors import InvalidRequest
from overnight_server.domain.event_templates import (
    Comparison,
    EventCondition,
    Unfit,
    check_places,
    fill,
    has_places,
)
from overnight_server.domain.json_pointers import PointerMissing, parse_pointer, value_at

# The example of RFC 6901.
DOCUMENT = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}
EVENT = {"body": {"n": 7, "title": "{{ /body/n }}", "flag": True, "none": None, "list": [1, {}]}}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_a_pointer_names_what_the_specification_says(pointer: str, value: object) -> None:
    assert value_at(DOCUMENT, pointer) == value


@pytest.mark.parametrize(
    "pointer",
    ["/no", "/foo/2", "/foo/-", "/foo/00", "/foo/-1", "/foo/\u0660", "/foo/9" * 9],
)
def test_a_pointer_to_nothing_says_so(pointer: str) -> None:
    with pytest.raises(PointerMissing):
        value_at(DOCUMENT, pointer)


@pytest.mark.parametrize("text", ["foo", "#/foo", "/~", "/~2", "/" + "x" * 500])
def test_what_is_no_pointer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is"):
        parse_pointer(text)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{ /body/n }}", 7),
        ("{{/body}}", EVENT["body"]),
        ("{{ /body/flag }}", True),
        ("{{ /body/none }}", None),
        ("no. {{ /body/n }}, {{ /body/flag }}", "no. 7, true"),
        ("[{{ /body/none }}{{ ?/body/missing }}]", "[]"),
        ("{{ ?/body/missing }}", None),
        ("all: {{ /body/list }}", "all: [1, {}]"),
        ("\\{{ /body/n }}", "{{ /body/n }}"),
        # What an event brings in is not searched again.
        ("{{ /body/title }}", "{{ /body/n }}"),
        ("title: {{ /body/title }}", "title: {{ /body/n }}"),
        ({"{{ /body/n }}": ["{{ /body/n }}", 3]}, {"{{ /body/n }}": [7, 3]}),
    ],
)
def test_a_template_gets_the_values_of_the_event(template: object, filled: object) -> None:
    check_places(template, "task")

    assert fill(template, EVENT, "task") == filled


def test_an_event_that_lacks_a_value_does_not_fit() -> None:
    with pytest.raises(Unfit, match=r"task\.payload\.to: the event has no /body/to"):
        fill({"payload": {"to": "{{ /body/to }}"}}, EVENT, "task")


@pytest.mark.parametrize("text", ["{{", "{{ }}", "{{ body }}", "{{ /~ }}", "{{ 1 + 1 }}", "{{ /a"])
def test_a_place_without_a_pointer_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"task\.tags\.1"):
        check_places({"tags": ["a", text]}, "task")


def test_a_template_knows_whether_it_has_places() -> None:
    assert has_places({"a": [{"b": "{{ /body/n }}"}]})
    assert not has_places({"a": [{"b": "\\{{ x }}"}, 7, None], "{{ /body }}": 1})


@pytest.mark.parametrize(
    ("pointer", "comparison", "value", "holds"),
    [
        ("/body/n", "equals", 7, True),
        ("/body/n", "equals", "7", False),
        ("/body/flag", "equals", 1, False),
        ("/body/flag", "equals", True, True),
        ("/body/none", "equals", None, True),
        ("/body/missing", "equals", None, False),
        ("/body/n", "one_of", [6, 7], True),
        ("/body/n", "one_of", [], False),
        ("/body/n", "none_of", [6], True),
        ("/body/n", "none_of", [7], False),
        ("/body/missing", "none_of", [7], True),
        ("/body/title", "starts_with", "{{", True),
        ("/body/n", "starts_with", "7", False),
        ("/body/none", "exists", True, True),
        ("/body/none", "exists", False, False),
        ("/body/missing", "exists", False, True),
        ("/body/missing", "exists", True, False),
    ],
)
def test_a_condition_compares_json_values(
    pointer: str, comparison: Comparison, value: object, *, holds: bool
) -> None:
    assert EventCondition(pointer, comparison, value).holds(EVENT) is holds
