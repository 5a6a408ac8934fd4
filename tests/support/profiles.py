"""Hypothesis profiles: the same examples in every build, many more in `make proof`.

A pytest plugin (`-p` in pyproject.toml), so that the profiles exist before any test is imported.
"""

from hypothesis import settings

# No deadlines: the time of one example depends more on the machine than on the code.
# A build runs the same examples each time, so that it does not fail by chance.
settings.register_profile("build", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "proof", deadline=None, print_blob=True, max_examples=1000, stateful_step_count=100
)
settings.load_profile("build")


def examples(build: int) -> int:
    """Return the number of examples for a test that runs `build` of them in a build.

    For tests with slow examples; other tests run as many as the profile says.
    """
    current = settings.default
    assert current is not None
    return build * current.max_examples // settings.get_profile("build").max_examples
