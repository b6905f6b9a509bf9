"""Checkpoints that must not be served end the command with exit code 4 and a line that names the file and the fix.

Here all of them go through the commands' own `main` in one process, and a few through the real command; `make
show-families` starts the real command for every one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.hostile_checkpoints import HOSTILE, MAKERS, Hostile
from tests.e2e.refused_starts import Outcome, outcome_of, outcomes_in_process

PATIENCE_SECONDS = 300.0
BY_THE_REAL_COMMAND = ("a shard is missing", "the template loops", "the processor believes in smaller patches")

Made = dict[str, tuple[Hostile, Path]]
SEEN_BY_CONFIG = [one for one in HOSTILE if one.is_seen_by_config]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("hostile")
    good = {name: make(folder / "good" / name) for name, make in MAKERS.items()}
    return {
        one.name: (one, one.make(folder / str(number) / one.base, good[one.base])) for number, one in enumerate(HOSTILE)
    }


@pytest.fixture(scope="module")
def outcomes(made: Made) -> dict[tuple[str, str], Outcome]:
    """By command and name. No command changes what it is given."""
    serves = [("serve", one.name, one.serve(directory)) for one, directory in made.values()]
    shows = [("config", one.name, ["--show", str(made[one.name][1])]) for one in SEEN_BY_CONFIG]
    commands = [*serves, *shows]
    before = {name: _files_in(directory) for name, (_, directory) in made.items()}
    ended = outcomes_in_process([(command, arguments) for command, _, arguments in commands], PATIENCE_SECONDS)
    assert {name: _files_in(directory) for name, (_, directory) in made.items()} == before
    return {(command, name): outcome for (command, name, _), outcome in zip(commands, ended, strict=True)}


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: one.name)
def test_it_is_not_served(hostile: Hostile, outcomes: dict[tuple[str, str], Outcome]) -> None:
    outcome = outcomes["serve", hostile.name]
    assert not outcome.mismatches(hostile.told), outcome.errors[-2000:]


@pytest.mark.parametrize("hostile", SEEN_BY_CONFIG, ids=lambda one: one.name)
def test_what_its_smallest_files_tell_is_seen_by_config(
    hostile: Hostile, outcomes: dict[tuple[str, str], Outcome]
) -> None:
    outcome = outcomes["config", hostile.name]
    assert not outcome.mismatches(hostile.told), outcome.errors[-2000:]


@pytest.mark.parametrize("name", BY_THE_REAL_COMMAND)
def test_the_real_command_leaves_nothing_behind(name: str, made: Made) -> None:
    hostile, directory = made[name]
    outcome = outcome_of("serve", hostile.serve(directory))
    assert not outcome.mismatches(hostile.told), outcome.errors[-2000:]


def _files_in(directory: Path) -> list[tuple[str, int]]:
    return sorted((str(file.relative_to(directory)), file.lstat().st_mtime_ns) for file in directory.rglob("*"))
