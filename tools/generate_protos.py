"""Generates clients/python/fanlight/v1 from protos/fanlight/v1, or checks that it is up to date.

    python tools/generate_protos.py            generate (`make gen`)
    python tools/generate_protos.py --check    compare with what is checked in; exit 1 and name the files that differ

The generator runs in an environment of its own, build/gen-venv, made on first use: generated code refuses runtimes
older than its generator, so the generator is pinned to the oldest versions that the client supports, while the
project's own environment follows the newest ones. The floors in clients/python/pyproject.toml equal these pins.
"""

import argparse
import filecmp
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PROTO_ROOT = REPOSITORY / "protos"
PACKAGE = Path("fanlight/v1")
GENERATED = REPOSITORY / "clients/python" / PACKAGE
ENVIRONMENT = REPOSITORY / "build/gen-venv"
GENERATOR = "1.71.2"

PACKAGE_DOCSTRING = '"""Messages and stubs of protobuf package fanlight.v1, made by tools/generate_protos.py."""\n'


def main() -> int:
    """Generates or checks; returns the exit status."""
    parser = argparse.ArgumentParser(description="Generate the Python code of the protobuf contract.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when checked-in code is out of date")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        stale = differing_files(fresh, GENERATED)
        if check:
            for name in stale:
                print(f"out of date: {(GENERATED / name).relative_to(REPOSITORY)} (run `make gen`)", file=sys.stderr)
            return 1 if stale else 0
        replace_generated(fresh)
    print(f"generated {GENERATED.relative_to(REPOSITORY)}: {len(stale)} files changed")
    return 0


def generate(into: Path) -> Path:
    """Runs protoc and returns the folder that holds the package's files."""
    protos = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    with_services = [path for path in protos if "\nservice " in path.read_text(encoding="utf-8")]
    run_protoc([f"--python_out={into}", f"--pyi_out={into}"], protos)
    run_protoc([f"--grpc_python_out={into}"], with_services)
    package = into / PACKAGE
    (package / "__init__.py").write_text(PACKAGE_DOCSTRING, encoding="utf-8")
    return package


def run_protoc(outputs: list[str], protos: list[Path]) -> None:
    """Runs the pinned protoc over some files."""
    command = [generator_python(), "-m", "grpc_tools.protoc", f"--proto_path={PROTO_ROOT}", *outputs, *protos]
    subprocess.run([str(part) for part in command], check=True)


def generator_python() -> Path:
    """The interpreter of the generator's environment, which is made, or made again, when its version is not the pin."""
    python = ENVIRONMENT / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    marker = ENVIRONMENT / f"grpcio-tools-{GENERATOR}"
    if not marker.exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"grpcio-tools=={GENERATOR}"], check=True)
        marker.touch()
    return python


def differing_files(fresh: Path, checked_in: Path) -> list[str]:
    """Names of files that are missing, superfluous or different in `checked_in`."""
    names = source_names(fresh) | source_names(checked_in)
    return sorted(name for name in names if not same_contents(fresh / name, checked_in / name))


def source_names(folder: Path) -> set[str]:
    """Names of the Python files and stubs in a folder."""
    return {path.name for path in folder.glob("*.py*") if path.is_file()}


def same_contents(left: Path, right: Path) -> bool:
    """Whether both files exist and are equal."""
    return left.exists() and right.exists() and filecmp.cmp(left, right, shallow=False)


def replace_generated(fresh: Path) -> None:
    """Makes the checked-in folder equal to the fresh one."""
    GENERATED.mkdir(parents=True, exist_ok=True)
    for name in source_names(GENERATED) - source_names(fresh):
        (GENERATED / name).unlink()
    for name in source_names(fresh):
        (GENERATED / name).write_bytes((fresh / name).read_bytes())


if __name__ == "__main__":
    sys.exit(main())
