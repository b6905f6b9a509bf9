"""transformers and its like at work without their notices: a start says in its own words what matters of them.

Knows nothing of what is done meanwhile. Our own log is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def without_notices() -> Iterator[None]:
    """While it is entered, transformers logs errors only."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
