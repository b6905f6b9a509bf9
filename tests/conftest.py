"""What holds for all tests: helper modules assert under `python -O` too, and generated examples are repeatable.

pytest rewrites assertions of test modules by itself, those of helpers only where told, and before they are imported.
"""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite(
    "tests.client",
    "tests.e2e",
    "tests.engine",
    "tests.server",
)

# No deadline: a busy machine is no failure. Derandomised: a run that failed can be run again.
settings.register_profile("fanlight", deadline=None, derandomize=True)
settings.load_profile("fanlight")
