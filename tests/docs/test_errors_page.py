"""docs/errors.md: every row of its tables is a message that was provoked, every code has its example, nothing is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from provocations import ELSEWHERE, PROVOCATIONS, scene
from snippets import snippets

import dpsql
from dpsql import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.surfaces

_CELL = re.compile(r"(?<!\\)\|")
ROWS = [
    _CELL.split(line)[1].strip().replace("\\|", "|")
    for line in PAGE.split("\n")
    if line.startswith("| ") and not line.startswith(("| error |", "| message |", "| [`", "| `"))
]


def pattern(row: str) -> re.Pattern[str]:
    return re.compile(re.escape(row).replace("…", ".*"), re.DOTALL)


def rows_of(message: str) -> list[str]:
    return [row for row in ROWS if pattern(row).fullmatch(message)]


@pytest.mark.parametrize("name", PROVOCATIONS)
def test_a_message_is_on_the_page(name: str, tmp_path: Path) -> None:
    with pytest.raises(dpsql.Error) as caught:
        PROVOCATIONS[name](scene(tmp_path))
    assert rows_of(str(caught.value)), str(caught.value)


def test_every_row_was_provoked(tmp_path: Path) -> None:
    messages = []
    for number, provoke in enumerate(PROVOCATIONS.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(dpsql.Error) as caught:
            provoke(scene(folder))
        messages.append(str(caught.value))
    left = [row for row in ROWS if not any(pattern(row).fullmatch(message) for message in messages)]
    assert sorted(left) == sorted(row for row in ROWS if row.startswith(tuple(ELSEWHERE)))
    assert all((ROOT / "tests" / place).is_file() for place in ELSEWHERE.values())


def test_every_class_of_error_is_on_the_page() -> None:
    names = [n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, dpsql.Error)]
    assert [name for name in names if f"`{name}`" not in PAGE and name not in ("Error", "DatabaseError")] == []


def test_every_code_has_an_example_of_its_own(tmp_path: Path) -> None:
    listed = re.findall(r"^#### `([a-z-]+)`", PAGE, re.MULTILINE)
    sql = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
    codes = [c for line in re.findall(r"^- (`.*?`):", sql, re.MULTILINE) for c in re.findall(r"`([a-z-]+)`", line)]
    assert sorted(listed) == sorted(codes)
    con = scene(tmp_path).con
    parts = dict(zip(listed, re.split(r"^#### .*$", PAGE, flags=re.MULTILINE)[1:], strict=True))
    for code, text in parts.items():
        if code == "view-not-row-wise":
            continue  # its example needs a policy of its own, which the page has
        refused, *answered = [block.text for block in snippets(text) if block.language == "sql"]
        with pytest.raises(dpsql.SQLError) as caught:
            con.plan(refused, epsilon=1, delta=1e-9)
        assert caught.value.code == code
        for batch in answered:
            con.plan(batch, epsilon=1, delta=1e-9)


# Where the calls of an analyst lead; SQLErrors are on the page by their codes, PolicyErrors are the custodian's.
REACHED = ("connection", "cursor", "request", "reuse", "bookkeeping", "plan", "tables", "release/store", "release/result")
REACHED += ("privacy/accountant", "privacy/state", "privacy/ledger", "sql/parameters", "sql/routing", "strategy/select")
ADMITTED = {"BudgetError", "DataError", "InterfaceError", "IntegrityError", "NotSupportedError", "OperationalError"}
ADMITTED |= {"LedgerError", "ProgrammingError"}

# Messages that no call of an analyst can bring about, and why.
UNREACHED = {
    "a result needs one type per column and one value per column in each row": "results are made by dpsql",
    "the description of a charge must be JSON with finite numbers; convert its values": "made by dpsql",
    "a measurement must be bytes, at most 900 MB; split the batch": "batches are capped far below it",
    "a local release needs local_epsilon in the policy's [budget]; add it there": "docs/local.md has the local release",
    "the plan's sensitivity is not that of its strategy; plan again (nothing was charged)": "a plan checks itself",
}


def templates() -> list[tuple[str, str]]:
    """(place, message) of every error of those modules, with … for what varies."""
    found = []
    for path in sorted((ROOT / "dpsql").rglob("*.py")):
        place = path.relative_to(ROOT / "dpsql").as_posix()
        if not place.startswith(REACHED):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ADMITTED and node.args:
                text = _text(node.args[0])
                if re.sub("…", "", text).strip(" "):
                    found.append((f"{place}:{node.lineno}", text))
    return found


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) if isinstance(value, ast.Constant) else "…" for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "…"


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z']{3,}", text))


def test_no_message_that_an_analyst_can_meet_is_missing() -> None:
    missing = []
    for place, text in templates():
        known = any(len(_words(text) - _words(row)) <= len(_words(text)) // 4 for row in [*ROWS, *UNREACHED])
        if not known:
            missing.append(f"{place}: {text}")
    assert not missing, "\n".join(missing)
