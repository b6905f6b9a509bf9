"""A newcomer's path: every command of README works as printed, against a server that was just started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e import readme
from tests.e2e.serving import ServerProcess


def test_readme_shows_every_command() -> None:
    assert set(readme.commands()) >= set(readme.COMMANDS)


@pytest.mark.parametrize("name", readme.COMMANDS)
async def test_command_prints_an_answer(process: ServerProcess, tmp_path: Path, name: str) -> None:
    command = readme.commands()[name]
    readme.draw_cat(tmp_path)
    ran = await asyncio.to_thread(readme.run, command, process.address, tmp_path)
    assert ran.complaint(name) is None, ran


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("<!-- run: buf-curl -->\n```sh\necho hello\n```\n")
    with pytest.raises(AssertionError, match=r"grpcurl-model.*client-async"):
        readme.commands(tmp_path / "README.md")
