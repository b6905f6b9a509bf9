"""How an offline caller calls what the engine has a path for, so that an error names what the caller wrote.

    conversation.messages[0].parts[0].image  ->  media[2].image

Knows paths as text only.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight_engine.errors import RequestError, Violation
from fanlight_engine.request import Prompt

_ENDS_OF_A_NAME = (".", "[")


@dataclass(frozen=True, slots=True)
class WrittenPrompt:
    """One prompt of a call. `name` is the caller's for it; `names` maps paths of the engine to names of the caller."""

    prompt: Prompt
    name: str
    names: dict[str, str]

    def in_callers_terms(self, error: RequestError) -> RequestError:
        """The error, changed to name what the caller wrote; of several prompts, whatever it names tells which one."""
        error.violations = tuple(Violation(self._named(one.field), one.description) for one in error.violations)
        first = error.violations[0]
        error.args = (f"{first.field}: {first.description}",)
        return error

    def _named(self, path: str) -> str:
        for known in sorted(self.names, key=len, reverse=True):
            rest = path.removeprefix(known)
            if rest != path and (not rest or rest.startswith(_ENDS_OF_A_NAME)):
                return self.names[known] + rest
        return path if "[" not in self.name else f"{self.name}: {path}"
