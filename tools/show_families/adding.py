"""Bar 6: one more family, added as docs/adding-a-model.md says: how many lines it took, and its answers and prompts.

Lines are counted as they stand in the files, without blank lines, comments and docstrings.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from tools.bars.pytest_run import measure_tests
from tools.bars.table import Figure, judged
from tools.check_structure import REPOSITORY

FAMILY = "vipllava"
"""The model_type of the family that was added."""
MOST_LINES = 60
ENGINE = REPOSITORY / "engine/fanlight_engine"
TABLE = ENGINE / "checkpoints/families.py"
CHECKPOINTS = REPOSITORY / "tests/engine/added_checkpoints.py"
MATRIX = REPOSITORY / "tests/engine/parity.py"

_NO_CODE = {
    tokenize.ENCODING,
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def measure_bar_6() -> Iterator[Figure]:
    """The lines, whether the engine has any besides its table, and the two files of tests that the family must pass."""
    counts = (row_lines(TABLE, FAMILY), code_lines(CHECKPOINTS), naming_lines(MATRIX, CHECKPOINTS.stem))
    total = sum(counts)
    yield judged(
        6,
        f"{FAMILY}: lines of its row, its checkpoint, its place in the matrix",
        f"{' + '.join(map(str, counts))} = {total}",
        f"under {MOST_LINES}",
        all(counts) and total < MOST_LINES,
    )
    others = [file.name for file in sorted(ENGINE.rglob("*.py")) if file != TABLE and naming_lines(file, FAMILY)]
    yield judged(
        6, f"files of the engine that name {FAMILY}, besides its table", len(others), "0", not others, ", ".join(others)
    )
    for file, what in (
        ("tests/engine/test_parity.py", "answers and logprobs, alone, batched, chunked, preempted, cached"),
        ("tests/engine/test_preparation_parity.py", "prompts, ids and pixels equal to its own processor's"),
    ):
        yield measure_tests(6, f"{FAMILY}: {what}", file, "-k", FAMILY)


def row_lines(table: Path, model_type: str) -> int:
    """Lines of the rows of a model_type in the table of families."""
    calls = (node for node in ast.walk(ast.parse(table.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return sum(len(_lines_of(call)) for call in calls if _is_row_of(call, model_type))


def code_lines(file: Path) -> int:
    """Lines of a file that hold code, imports among them; strings that are values count, docstrings do not."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines()
    with file.open("rb") as opened:
        tokens = [token for token in tokenize.tokenize(opened.readline) if token.type not in _NO_CODE]
    covered = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    documented = {line for node in ast.walk(ast.parse(source)) if _is_docstring(node) for line in _lines_of(node)}
    return sum(bool(lines[line - 1].strip()) for line in covered - documented)


def naming_lines(file: Path, name: str) -> int:
    """Lines of a file in which a name stands."""
    return sum(name in line for line in file.read_text(encoding="utf-8").splitlines())


def _is_row_of(call: ast.Call, model_type: str) -> bool:
    is_row = isinstance(call.func, ast.Name) and call.func.id == "Family" and bool(call.args)
    return is_row and isinstance(call.args[0], ast.Constant) and call.args[0].value == model_type


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
