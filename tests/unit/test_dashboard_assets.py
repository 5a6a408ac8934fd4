"""The script is joined from its modules; what could not be joined is refused."""

import pytest

from overnight_server.dashboard.assets import (
    SCRIPT,
    UnknownModuleSyntax,
    contents,
    join_modules,
    minify_css,
)


def test_modules_become_functions_that_load_each_other() -> None:
    joined = join_modules(
        {
            "a.js": '// A comment.\nimport { b } from "./b.js";\n\nb();\n',
            "b.js": "export function b() {\n  return c;\n}\nexport const c = 1;\n",
            SCRIPT: 'import "./a.js";\nif (x) import("./b.js");\n',
        }
    )

    assert 'const { b } = $load("./b.js");\nb();' in joined
    assert "$exports.b = b;\nfunction b() {\nreturn c;\n}\nconst c = 1;\n$exports.c = c;" in joined
    assert f'"./{SCRIPT}": ($exports) => {{\n$load("./a.js");\n' in joined
    assert 'if (x) Promise.resolve($load("./b.js"));' in joined
    assert "comment" not in joined


@pytest.mark.parametrize(
    "text",
    [
        "export default 1;",
        "export let changes = 1;",
        'import * as all from "./b.js";',
        'export { b } from "./b.js";',
    ],
)
def test_other_imports_and_exports_are_refused(text: str) -> None:
    with pytest.raises(UnknownModuleSyntax, match=r"a\.js"):
        join_modules({"a.js": text})


def test_the_assets_are_three_and_have_no_comments() -> None:
    assert sorted(contents()) == ["icon.svg", "overnight.css", SCRIPT]
    assert b"/*" not in contents()["overnight.css"]
    assert b"\n//" not in contents()[SCRIPT]


def test_spaces_that_mean_something_stay_in_a_style_sheet() -> None:
    text = "a b :hover + c { margin: 1px -2px; grid: 1fr / 2fr; width: calc(1px + (2px * 3)); }"

    assert minify_css(text) == (
        "a b :hover + c{margin:1px -2px;grid:1fr / 2fr;width:calc(1px + (2px * 3))}"
    )
