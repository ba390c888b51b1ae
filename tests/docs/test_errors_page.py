"""docs/errors.md: every row of its tables was provoked, every code has its example, none is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from provocations import ELSEWHERE, PROVOCATIONS, scene
from snippets import snippets

import dpsql
from dpsql import errors
from dpsql.privacy.ledger_file import REMEDIES

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


def provoked(name: str, folder: Path) -> str:
    """What a user sees who does that."""
    folder.mkdir()
    try:
        PROVOCATIONS[name](scene(folder))
    except dpsql.Error as error:
        return str(error)
    return f"{name} is not refused"


def test_every_message_is_on_the_page_and_every_row_a_message(tmp_path: Path) -> None:
    messages = {name: provoked(name, tmp_path / str(number)) for number, name in enumerate(PROVOCATIONS)}
    unknown = {name: message for name, message in messages.items() if not rows_of(message)}
    assert unknown == {}
    left = [row for row in ROWS if not any(pattern(row).fullmatch(message) for message in messages.values())]
    elsewhere = [row for row in ROWS if row.startswith(tuple(ELSEWHERE))]
    assert (set(left) - set(elsewhere), set(elsewhere) - set(left)) == (set(), set())
    assert all((ROOT / "tests" / place).is_file() for place in ELSEWHERE.values())


def test_whatever_sqlite_says_of_a_ledger_is_on_the_page() -> None:
    unknown = [text for text in REMEDIES.values() if not rows_of(f"ledger x.ledger {text}")]
    assert unknown == [REMEDIES["SQLITE_CONSTRAINT"]]  # triggers that no call of dpsql runs into


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
REACHED = (
    *(
        "driver/connection",
        "driver/connection_state",
        "extensions/discovery/discovering",
        "driver/keeping",
        "driver/cursor",
        "planning/plan",
        "extensions/adaptive/adaptive_plan",
        "planning/needed_budget",
    ),
    *(
        "planning/explain",
        "extensions/reports/picture",
        "planning/text",
        "running/earlier/same_question",
        "running/earlier/combined_plan",
    ),
    *("running/result_tables", "release/books", "release/store", "release/reading", "release/result"),
    *(
        "privacy/accountant",
        "privacy/state",
        "privacy/ledger",
        "release/custody",
        "sql/parse/parameters",
        "sql/routing",
        "strategies/selection",
    ),
)
ADMITTED = {"BudgetError", "DataError", "InterfaceError", "IntegrityError", "NotSupportedError", "OperationalError"}
ADMITTED |= {"LedgerError", "ProgrammingError"}

# Messages that no call of an analyst can bring about, and why.
UNREACHED = {
    "planning: the time limit leaves no time for another way; allow more time": "a plan is there then, and is returned",
    "a result needs one type per column and one value per column in each row": "results are made by dpsql",
    "the description of a charge must be JSON with finite numbers; convert its values": "made by dpsql",
    "a measurement must be bytes, at most 900 MB; split the batch": "batches are capped far below it",
    "a local release needs local_epsilon in the policy's [budget]; add it there": "docs/local.md has the local release",
    "strategy: select takes a workload; workload.from_matrix makes one of a matrix": "the library alone",
    "strategy: noise … is not known; use 'gaussian', 'laplace' or 'pure'": "the library alone",
    "strategy: method is a name, such as 'auto', not this …": "the library alone",
    "strategy: effort must be above 0; 1 is the default": "the library alone",
    "strategy: cache must be a folder's path; leave it out for none": "the library alone",
    "strategy: marginal-blocks is for Laplace noise; use residual-basis for Gaussian noise": "the library alone",
    "strategy: sign-blocks is for noise='pure', whose noise may be drawn in blocks": "the library alone",
    "strategy: p-identity over … cells is above its cap of …; use union-of-parts": "the library alone",
    "strategy: the workload is too large for every method; split the batch": "SQL is capped before, with a code",
    "strategy: a part of the workload is too large; split the batch": "SQL is capped before, with a code",
    "a free answer is no charge; store it with answer()": "made by dpsql",
    "a result needs one value per column in each row; its columns differ in length": "results are made by dpsql",
    "a result without columns has no Arrow form": "results are made by dpsql",
    "strategy: the largest error is not planned over so many cells; use the total one": "the library alone",
    "the connection has another database called …; detach or rename it": "a warning of the log",
    "cannot move … to …: …; move it yourself": "a folder that cannot be written, after a restore",
    "cannot write the releases to …: …; then …": "a warning of the log",
    "this policy keeps a local account only; use synthesize, or add epsilon to its [budget]": "no policy does yet",
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
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ADMITTED
                and node.args
            ):
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
    files = [path.relative_to(ROOT / "dpsql").as_posix() for path in (ROOT / "dpsql").rglob("*.py")]
    assert [start for start in REACHED if not any(file.startswith(start) for file in files)] == []
    missing = []
    for place, text in templates():
        known = any(len(_words(text) - _words(row)) <= len(_words(text)) // 4 for row in [*ROWS, *UNREACHED])
        if not known:
            missing.append(f"{place}: {text}")
    assert not missing, "\n".join(missing)
