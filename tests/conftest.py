"""What holds for all tests: assertions in helper modules fire, under `python -O` too.

pytest rewrites assertions of test modules by itself, those of helpers only where told, and before they are imported.
"""

import pytest

pytest.register_assert_rewrite(
    "tests.client",
    "tests.e2e",
    "tests.engine",
    "tests.server",
)
