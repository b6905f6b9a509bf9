"""Checks what no linter does: no source file over 400 lines, no large file where it does not belong.

python -m tools.check_structure     exits 1 and names the files
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
MOST_LINES = 400
COUNTED = (".py", ".proto")
GENERATED = "clients/python/fanlight/v1/"
LARGEST_FILE = 1 << 20
LARGE_FILES_BELONG_IN = ("models/", "docs/images/")


def main() -> int:
    """Print every offence; 1 when there is any."""
    files = tracked_files()
    offences = [*too_long(files), *too_large(files)]
    for offence in offences:
        print(offence, file=sys.stderr)
    return 1 if offences else 0


def tracked_files() -> list[str]:
    """Files that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listing.stdout.splitlines() if (REPOSITORY / name).is_file()]


def too_long(files: list[str]) -> list[str]:
    """Source files of more than 400 lines; generated code does not count."""
    counts = {
        name: len((REPOSITORY / name).read_text(encoding="utf-8").splitlines())
        for name in files
        if name.endswith(COUNTED) and not name.startswith(GENERATED)
    }
    return [
        f"{name}: {lines} lines, at most {MOST_LINES}; split it" for name, lines in counts.items() if lines > MOST_LINES
    ]


def too_large(files: list[str]) -> list[str]:
    """Files over 1 MiB outside the folders that may hold them."""
    return [
        f"{name}: {size} bytes, at most {LARGEST_FILE} outside {', '.join(LARGE_FILES_BELONG_IN)}"
        for name in files
        if (size := (REPOSITORY / name).stat().st_size) > LARGEST_FILE and not name.startswith(LARGE_FILES_BELONG_IN)
    ]


if __name__ == "__main__":
    sys.exit(main())
