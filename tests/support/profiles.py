"""How far Hypothesis looks: the same way in every build, much further in `make proof`.

A plugin of its own (`-p` in pyproject.toml), so that the profiles exist before any test is read.
"""

from hypothesis import settings

# No deadlines: how long one example takes says more about the machine than about the code.
# The build takes the same examples each time, because it must not fail by luck.
settings.register_profile("build", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "proof", deadline=None, print_blob=True, max_examples=1000, stateful_step_count=100
)
settings.load_profile("build")


def examples(build: int) -> int:
    """Return how many examples a test takes that would take so many in a build, and more in proof.

    For tests whose examples cost more than most; the others take as many as the profile says.
    """
    return build * settings.default.max_examples // settings.get_profile("build").max_examples
