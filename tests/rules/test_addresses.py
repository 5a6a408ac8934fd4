"""No file names where packages come from, or where this machine keeps its things."""

import re

from tests.rules.sources import as_lines, files, read

# Each is put together here, so that this file does not name them either.
FORBIDDEN = {
    "a package index": [
        "pypi" + r"\.org",
        "pythonhosted" + r"\.org",
        "npmjs" + r"\.(org|com)",
        "--(extra-)?" + "index-url",
        "--" + "find-links",
    ],
    "an image registry": ["ghcr" + r"\.io", "quay" + r"\.io", "docker" + r"\.io", "gcr" + r"\.io"],
    "a path of one machine": [
        r"(?<![\w.])/work" + r"/\w",
        r"(?<![\w.])/root" + r"/[\w.]",
        r"(?<![\w.])/opt" + r"/(pypi|wheels)",
        r"(?<![\w.])/home" + r"/\w",
        r"(?<![\w.])/Users" + r"/\w",
    ],
}


def test_no_file_names_a_package_index_or_a_machine() -> None:
    lines = [
        f"{path}:{number}: {what}: {line.strip()[:80]}"
        for path in files()
        for number, line in enumerate(read(path).splitlines(), start=1)
        for what, patterns in FORBIDDEN.items()
        if any(re.search(pattern, line) for pattern in patterns)
    ]

    assert not lines, as_lines(lines)


def test_the_patterns_find_what_they_are_for() -> None:
    examples = {
        "a package index": "https://" + "pypi" + ".org/simple",
        "an image registry": "FROM " + "ghcr" + ".io/example/image",
        "a path of one machine": "cd " + "/home" + "/somebody",
    }

    missed = [
        what
        for what, example in examples.items()
        if not any(re.search(pattern, example) for pattern in FORBIDDEN[what])
    ]

    assert not missed, as_lines(missed)
