"""A chaos run with more of the faults that reveal mutants: `python -m tests.chaos.biased BIAS …`.

The other arguments are those of `python -m tests.chaos`. The bias makes a short run meet
situations that are rare in an unbiased one.
"""

import sys

from overnight.models.enums import PlanTier
from tests.chaos import load
from tests.chaos.__main__ import main
from tests.chaos.plan import PERIODS
from tests.chaos.tasks import KINDS


def late() -> None:
    """Suspend long runs beyond their lease, so that they resume while a later run is active."""
    PERIODS.update({"freeze child": 1.0, "freeze": 7.0, "kill": 7.0, "burst": 3.0})
    KINDS.update({"long": 30, "night": 15})


def crowd() -> None:
    """Give few users with low limits work for two pools at all times."""
    PERIODS.update({"kill": 7.0, "burst": 1.5, "change plan": 1000.0})
    KINDS.update(dict.fromkeys(KINDS, 0) | {"quick": 20, "short": 30, "night": 50})
    load.PLANS = tuple((PlanTier.PRO, 1, {"max_concurrent_agents": 2}) for _ in range(4))


def kin() -> None:
    """Let most tasks spawn children and wait for them while the first ones end."""
    PERIODS.update({"kill": 7.0, "burst": 3.0})
    KINDS.update({"brood": 100})


BIASES = {bias.__name__: bias for bias in (late, crowd, kin)}

if __name__ == "__main__":
    BIASES[sys.argv.pop(1)]()
    sys.exit(main())
