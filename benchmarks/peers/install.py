"""`make peers`: a virtual environment for each peer, in the directory where benchmarks look for them.

    python -m benchmarks.peers.install [DIRECTORY_NAME ...]

They are large (OpenVINO GenAI with its exporter 3 GB, vLLM 4 GB), so that nothing else depends on them. What is there
already is left alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv

from benchmarks.peers.catalog import INSTALLABLE, Peer, peers_directory


def main() -> int:
    """Install what was asked for; 1 where something failed, after trying the others."""
    names = [peer.directory for peer in INSTALLABLE]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.install", description="Installs the peers that benchmarks know."
    )
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(names)}; default: all")
    asked = parser.parse_args().peers or names
    unknown = [name for name in asked if name not in names]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such peer; they are {', '.join(names)}")
    return max([_install(peer) for peer in INSTALLABLE if peer.directory in asked])


def _install(peer: Peer) -> int:
    """pip's exit status, after saying what went wrong."""
    environment = peer.environment
    assert environment is not None, "those of our own environment are not installed"
    if not peer.missing:
        print(f"{peer.name} is in {environment}")
        return 0
    print(f"{peer.name}: installing {', '.join(peer.distributions)} into {environment}", flush=True)
    unfinished = environment.with_name(f"{environment.name}-unfinished")
    peers_directory().mkdir(parents=True, exist_ok=True)
    venv.create(unfinished, clear=True, with_pip=True)
    python = str(unfinished / "bin" / "python")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    done = subprocess.run([*pip, "install", "--quiet", *peer.distributions], check=False)
    if done.returncode == 0 and peer.unwanted:
        done = subprocess.run([*pip, "uninstall", "--quiet", "--yes", *peer.unwanted], check=False)
    if done.returncode:
        print(f"{peer.name}: pip failed with status {done.returncode}", file=sys.stderr)
        return 1
    unfinished.rename(environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
