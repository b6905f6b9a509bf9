"""The kernels compiled for this processor, and kept in the user's cache. Knows files and a compiler, no tensors.

A library is named after the digest of everything that it is made of: sources, flags and compiler. It is written beside
its place and renamed into it, so two processes at once, or a crash, leave no half one; and it ends with the digest of
itself, so that one which was damaged afterwards is made again. What others could have written is never loaded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from fanlight_engine.checkpoints.gguf.cache import default_cache_directory
from fanlight_engine.model.cpu.processor import NUMBER_TYPES, Target, processor_features, targets_of

COMPILERS = ("cc", "gcc", "clang")
_SOURCES = Path(__file__).parent / "kernels"
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-semantic-interposition")
_SECONDS = 120
_DIGEST_BYTES = hashlib.sha256().digest_size
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class CannotBuild(Exception):
    """Why there are no kernels here, in words that end a sentence."""


@cache
def built_library(
    dtype: torch.dtype, features: frozenset[str] | None = None, directory: Path | None = None
) -> tuple[Path, Target]:
    """The library for weights of that type, compiled where it is not in `directory` yet, and what it was made for.

    `features` are those of the processor that are used, by default all it has. Looked for once in a process; where
    there is none, whenever it is asked for. Raises CannotBuild.
    """
    if dtype not in NUMBER_TYPES:
        raise CannotBuild(f"there are none for {str(dtype).removeprefix('torch.')}")
    targets = targets_of(processor_features() if features is None else features, dtype)
    if not targets:
        raise CannotBuild("the processor has neither AVX-512 nor AVX2, or is no x86 under Linux")
    compiler = _compiler()
    place = _own_directory(directory or default_cache_directory() / "kernels")
    failures = []
    for target in targets:
        flags = (*_FLAGS, *target.flags, f"-DFANLIGHT_HALF={int(dtype is torch.bfloat16)}")
        library = place / f"{target.name.lower()}-{_digest(compiler, flags)}.so"
        try:
            if not is_whole(library):
                _compile(compiler, flags, library)
            return library, target
        except CannotBuild as failure:
            failures.append(f"{target.name}: {failure}")
    raise CannotBuild("; ".join(failures))


def is_whole(library: Path) -> bool:
    """Whether a library is there, ours, closed to others, and ends with the digest of what stands before."""
    try:
        if not _is_ours(library):
            return False
        content = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


def _compiler() -> str:
    for name in COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise CannotBuild(f"there is no C compiler ({', '.join(COMPILERS)}) on the PATH")


def _digest(compiler: str, flags: Sequence[str]) -> str:
    digest = hashlib.sha256(_output_of([compiler, "--version"]).encode())
    digest.update("\0".join(flags).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:32]


def _compile(compiler: str, flags: Sequence[str], library: Path) -> None:
    handle, unfinished = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        _output_of([compiler, *flags, str(_SOURCES / "library.c"), "-o", unfinished, "-lm"])
        content = Path(unfinished).read_bytes()
        Path(unfinished).write_bytes(content + hashlib.sha256(content).digest())
        os.chmod(unfinished, stat.S_IRUSR | stat.S_IWUSR | stat.S_IXUSR)
        os.replace(unfinished, library)
    except OSError as error:
        raise CannotBuild(f"{library.parent} cannot hold them: {error}") from error
    finally:
        Path(unfinished).unlink(missing_ok=True)


def _output_of(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise CannotBuild(f"{command[0]} fails: {first}")
    return done.stdout


def _own_directory(directory: Path) -> Path:
    """The directory, made where it is missing; code is only ever loaded from one that nobody else can write into."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=stat.S_IRWXU)
        ours = _is_ours(directory)
    except OSError as error:
        raise CannotBuild(f"{directory} cannot be made: {error}") from error
    if not ours:
        raise CannotBuild(f"{directory} belongs to somebody else, or others may write into it; chmod go-w it")
    return directory


def _is_ours(path: Path) -> bool:
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & _WRITABLE_BY_OTHERS
