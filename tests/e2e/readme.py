"""README's commands as a reader would run them: taken out of the text by name, run with only the port changed.

A command is a fenced block of shell or Python right below a marker:

    <!-- run: grpcurl-model -->
    ```sh
    grpcurl ...
    ```
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.pictures import encoded, scene

REPOSITORY = Path(__file__).parents[2]
PRINTED_ADDRESS = "localhost:50051"
COMMANDS = ("grpcurl-model", "grpcurl-image", "grpcurl-chat", "buf-curl", "client-python", "client-async")
"""Every command that README must show."""

_BLOCK = re.compile(r"^<!-- run: (?P<name>[\w-]+) -->\s*\n```(?P<language>sh|python)\n(?P<code>.*?)^```", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Command:
    """One block of README."""

    name: str
    language: str
    code: str


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command went."""

    exit_code: int
    output: str
    errors: str

    def complaint(self, name: str) -> str | None:
        """What is wrong with it; None when it printed what it promises."""
        if self.exit_code:
            return f"exit code {self.exit_code}: {self.errors.strip() or self.output.strip()}"
        wanted = r"fanlight-tiny" if name == "grpcurl-model" else r"[A-Za-z]{2,}"
        return None if re.search(wanted, self.output) else f"no text in its output: {self.output!r}"

    @property
    def gist(self) -> str:
        """The beginning of the text that it printed: of the answer, where the output is JSON."""
        said = "".join(re.findall(r'"(?:text|name)": "(.*?)"', self.output)) or " ".join(self.output.split())
        return said[:32]


def commands(readme: Path = REPOSITORY / "README.md") -> dict[str, Command]:
    """The commands of a README by name. Raises AssertionError listing those that are missing."""
    blocks = _BLOCK.finditer(readme.read_text(encoding="utf-8"))
    found = {block["name"]: Command(block["name"], block["language"], block["code"]) for block in blocks}
    missing = [name for name in COMMANDS if name not in found]
    if missing:
        raise AssertionError(
            f"{readme.name} has no block marked {', '.join(f'<!-- run: {name} -->' for name in missing)}"
        )
    return found


def draw_cat(folder: Path) -> None:
    """The picture that README's commands ask about."""
    (folder / "cat.jpg").write_bytes(encoded(scene(0).image, "JPEG", quality=95))


def run(command: Command, address: str, folder: Path) -> Ran:
    """Run a command in a folder that holds cat.jpg, against the server at an address."""
    code = command.code.replace(PRINTED_ADDRESS, address)
    interpreter = ["bash", "-e"] if command.language == "sh" else [sys.executable, "-"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    done = subprocess.run(
        interpreter,
        input=code,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
