"""The style sheet, the script and the icon, under addresses that contain a hash of their content.

A browser keeps them for a year. The style sheet is served without comments and spaces, and the
modules of the script as one file, so that a first page takes three small requests. There is no
build step: both are made from the sources when the process needs them first.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}
#: The module that a page loads; it imports the others.
SCRIPT = "overnight.js"
_CSS_COMMENT = re.compile(r"""("[^"\n]*"|'[^'\n]*')|/\*.*?\*/""", re.DOTALL)
_CSS_SPACE = re.compile(r"""("[^"\n]*"|'[^'\n]*')|\s*([{};,>])\s*|(:)\s+|(\s)\s*""")
_IMPORT = re.compile(r'^import (?:(\{ [\w, ]+ \}) from )?("\./[\w.]+");$', re.MULTILINE)
_IMPORT_LATER = re.compile(r'\bimport\(("\./[\w.]+")\)')
_EXPORT = re.compile(r"^export (?=(?:async )?function (\w+)|const (\w+))", re.MULTILINE)
_MODULE_WORD = re.compile(r"^.*\b(?:import|export)\b[ (*{].*$", re.MULTILINE)
_JS_COMMENT_OR_INDENT = re.compile(r"^[ ]*//.*\n|^[ ]+|^\n", re.MULTILINE)


class UnknownModuleSyntax(Exception):
    """A module imports or exports in a way that `join_modules` does not know."""


@cache
def contents() -> dict[str, bytes]:
    """Return the files by name."""
    sources = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.iterdir())}
    modules = {name: text for name, text in sources.items() if name.endswith(".js")}
    served = {name: text for name, text in sources.items() if name not in modules}
    served = {
        name: minify_css(text) if name.endswith(".css") else text for name, text in served.items()
    }
    served[SCRIPT] = join_modules(modules)
    return {name: text.encode() for name, text in served.items()}


def minify_css(text: str) -> str:
    """Return a style sheet without comments and needless spaces; strings stay as they are.

    >>> minify_css('/* a */ .a > b, .c { color: red; width: calc(1px + 2px); }')
    '.a>b,.c{color:red;width:calc(1px + 2px)}'
    >>> minify_css('a::after { content: " /* , */ "; }')
    'a::after{content:" /* , */ "}'
    """
    text = _CSS_COMMENT.sub(lambda match: match[1] or "", text)
    text = _CSS_SPACE.sub(lambda match: match[1] or match[2] or match[3] or " ", text)
    return text.strip().replace(";}", "}")


def join_modules(modules: Mapping[str, str]) -> str:
    """Return one module that does what SCRIPT and the modules that it imports do.

    Each module becomes a function that is called once, when it is imported first, and that fills an
    object with what it exports. Functions are exported before a module runs, as in modules.
    """
    functions = [
        f"{_quoted(name)}: ($exports) => {{\n{_as_function(name, text)}}},"
        for name, text in modules.items()
    ]
    return "\n".join(
        [
            "const $known = {};",
            "function $load(name) {",
            "if (!$known[name]) $modules[name]($known[name] = {});",
            "return $known[name];",
            "}",
            "const $modules = {",
            *functions,
            "};",
            f"$load({_quoted(SCRIPT)});",
            "",
        ]
    )


def _as_function(name: str, text: str) -> str:
    """Return the body of the function of a module."""
    text = _JS_COMMENT_OR_INDENT.sub("", text)
    hoisted = [match[1] for match in _EXPORT.finditer(text) if match[1]]
    constants = [match[2] for match in _EXPORT.finditer(text) if match[2]]
    text = _EXPORT.sub("", text)
    text = _IMPORT.sub(
        lambda match: (f"const {match[1]} = " if match[1] else "") + f"$load({match[2]});", text
    )
    text = _IMPORT_LATER.sub(lambda match: f"Promise.resolve($load({match[1]}))", text)
    if unknown := _MODULE_WORD.search(text):
        raise UnknownModuleSyntax(f"{name}: {unknown[0]}")
    before, after = (
        "".join(f"$exports.{one} = {one};\n" for one in names) for names in (hoisted, constants)
    )
    return before + text + after


def _quoted(name: str) -> str:
    return f'"./{name}"'


@cache
def version() -> str:
    """Return the hash that all addresses contain."""
    digest = hashlib.sha256()
    for name, content in contents().items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def address_of(name: str) -> str:
    """Return the address of a file; raise KeyError if there is none of this name."""
    contents()[name]
    return f"/static/{version()}/{name}"


async def serve_asset(request: Request) -> Response:
    """Serve one file; everybody may read it, because it holds no data."""
    name = request.path_params["name"]
    if request.path_params["version"] != version() or name not in contents():
        raise HTTPException(404)
    return Response(contents()[name], media_type=MEDIA_TYPES[Path(name).suffix], headers=HEADERS)
