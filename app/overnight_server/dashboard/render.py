"""Templates: the environment of Jinja2, and what every template may use.

Autoescaping is on. The only text that is not escaped are `Markup` values, which the functions here
and in `drawing` make from numbers and from escaped text.
"""

import json
import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup, escape

from overnight_server.dashboard.assets import address_of
from overnight_server.dashboard.clocks import count, lasting, size, usd
from overnight_server.dashboard.navigation import ALERTS, MARKED
from overnight_server.dashboard.words import CAUSES, WORDS
from overnight_server.domain.reasons import format_duration
from overnight_server.domain.report_text import money

FOLDER = Path(__file__).parent / "templates"
#: Characters that change the direction of a text or that a terminal obeys. They are shown as �.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_ANSI = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")
MAX_TEXT = 20_000


class StripIndentation(Extension):
    """Removes the indentation of templates, which would be a tenth of a page."""

    def preprocess(
        self,
        source: str,
        name: str | None,  # noqa: ARG002 - the signature of Jinja2
        filename: str | None = None,  # noqa: ARG002
    ) -> str:
        """Return the source of a template without spaces at the beginning of lines."""
        return _INDENTATION.sub("", source)


_INDENTATION = re.compile("^ +", re.MULTILINE)


@cache
def environment() -> Environment:
    """Return the environment with all filters and globals."""
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        extensions=[StripIndentation],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "lasting": lasting,
        "usd": usd,
        "duration": format_duration,
        "money": money,
        "size": size,
        "safe_text": safe_text,
        "as_json": as_json,
        "short_id": short_id,
        "prose": prose,
    }
    made.globals |= {"words": WORDS, "causes": CAUSES, "asset": address_of, "count": count}
    made.globals |= {"marked": MARKED, "alerts": ALERTS}
    return made


def render(template: str, **values: object) -> str:
    """Return a template filled in."""
    return environment().get_template(template).render(**values)


def safe_text(value: object, limit: int = MAX_TEXT) -> str:
    r"""Return text of users or handlers without control characters, and cut where it is too long.

    >>> safe_text("\x1b[31mred\x1b[0m\x07")
    'red�'
    >>> safe_text("abcdef", 3)
    'abc …'
    """
    text = "" if value is None else str(value)
    # Cut first: a megabyte of text need not be searched.
    cut = text[: limit + 1]
    clean = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _ANSI.sub("", cut))
    return clean if len(cut) <= limit else f"{clean[:limit]} …"


_CODE = re.compile("`([^`]{1,200})`")


def prose(value: object, limit: int = 2_000) -> Markup:
    """Return a message for people as HTML: what stands between backquotes is code.

    >>> str(prose("start <one> with `overnight worker`"))
    'start &lt;one&gt; with <code>overnight worker</code>'
    """
    text = safe_text(value, limit)
    parts, end = [], 0
    for match in _CODE.finditer(text):
        parts += [escape(text[end : match.start()]), Markup("<code>{}</code>").format(match[1])]
        end = match.end()
    return Markup().join([*parts, escape(text[end:])])


_TOKEN = re.compile(
    r'(?P<k>"(?:[^"\\]|\\.)*")(?=\s*:)|(?P<s>"(?:[^"\\]|\\.)*")|(?P<n>-?\d[\d.eE+-]*|\b(?:true|false|null)\b)'
)


def as_json(value: object, limit: int = MAX_TEXT) -> Markup:
    """Return a value as coloured JSON; a longer text is cut."""
    text = safe_text(json.dumps(value, indent=2, ensure_ascii=False, default=str), limit)
    parts, end = [], 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        parts.append(escape(text[end : match.start()]))
        parts.append(Markup('<span class="{}">{}</span>').format(kind, match.group()))
        end = match.end()
    parts.append(escape(text[end:]))
    return Markup().join(parts)


def short_id(identifier: str) -> str:
    """Return the end of an id, by which people and commands name it.

    >>> short_id("task_01M7JV4DC0VDVVXXTBYCMRTSKG")
    'MRTSKG'
    """
    return identifier[-6:]
