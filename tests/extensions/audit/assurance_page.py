"""docs/assurance.md from a run of the tests: `make assurance`.

Runs every test that holds a row of the catalogue of threats, the long ones too, with what they note
(tests/conftest.py, tests/assurance/conftest.py), and writes the page from these notes alone. Exit code 1 where a
test failed or one that a threat names did not run; the page then says so. ``--quick`` leaves the long tests out.
"""

from __future__ import annotations

import collections
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

sys.path.append(str(Path(__file__).parents[2] / "shared"))
from branch_coverage import section, written
from threats import THREATS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "assurance.md"
FOLDERS = ("tests/extensions/audit", "tests/assurance")

MUTANTS = (
    "tests/extensions/audit/test_mutants.py::test_a_mutant_is_caught[",
    "tests/extensions/audit/test_mutants.py::test_the_audit_catches_a_mutant[",
)

VALUES = (
    "values of single functions, without a net, held to their range",
    "values of nested expressions, without a net, held to their range",
)

Notes = list[dict[str, Any]]


def run(quick: bool) -> tuple[Notes, dict[str, Any], int]:
    """Notes, the figures of fault injection and races, and pytest's exit code."""
    others = sorted({f"tests/{test}" for threat in THREATS for test in threat.tests})
    chosen = [*FOLDERS, *(test for test in others if not test.startswith(tuple(f"{f}/" for f in FOLDERS)))]
    with tempfile.TemporaryDirectory() as folder:
        notes, figures = Path(folder) / "notes", Path(folder) / "figures.json"
        environment = {**os.environ, "DPSQL_ASSURANCE_NOTES": str(notes), "DPSQL_ASSURANCE": str(figures)}
        marks = "not long" if quick else "long or not long"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", marks, *chosen]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
        held = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else {}
    return [json.loads(line) for line in lines], held, code


def page(notes: Notes, figures: Mapping[str, Any], *, quick: bool) -> str:
    """The page as Markdown."""
    ran = {note["ran"]: note for note in notes if "ran" in note}
    amounts: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for note in notes:
        if "figure" in note:
            amounts[note["figure"]].append(note)
    failed = sorted(name for name, note in ran.items() if note["outcome"] == "failed")
    missing = not_run(ran)
    seconds = sum(note["seconds"] for note in ran.values())
    passed = sum(note["outcome"] == "passed" for note in ran.values())
    made = f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, Python {platform.python_version()}, DuckDB {duckdb.__version__}"
    parts = [
        "# Assurance",
        "What has been tried to make dpsql spend less than it should, say more than it may or lose what it "
        "released, and what came of it. Each figure and each outcome was noted by a test as it ran; the tests, all "
        "under `tests/`, are named beside the threats that they hold.",
        "Made by `make assurance`, which runs these tests and writes this page. "
        f"{made}; {passed:,} tests passed, {len(failed)} failed, {seconds:,.0f} s of tests"
        + (", without the long ones." if quick else "."),
        *([_listed("These tests failed", failed)] if failed else []),
        *([_listed("These tests did not run", missing)] if missing else []),
        "## Figures",
        _table(("figure", "value"), _figures(amounts, figures, ran)),
        "## Mutants",
        "Faults put into the mechanism, and what catches each. Those without a name of their own go beyond the "
        "list of faults that must be caught.",
        _table(("fault", "mutant", "caught by"), _mutants(amounts["mutants killed"])),
        "## Faults injected",
        "What was done to a running release or its files, how often, and how often the promise held: nothing "
        "released uncharged, nothing lost that was acknowledged, a clear error. A kind of fault whose test failed is "
        "not in this table; the test is named above.",
        _table(("kind", "injected", "survived"), _faults(figures)),
        "## Threats and their tests",
        _table(("", "fault", "tests", "outcome", "what remains"), _threats(ran)),
        "## What this does not say",
        "An audit shows faults and proves nothing; the proofs are in the docstrings of `dpsql.measure`, "
        "`dpsql.workloads.expr.rows`, `dpsql.workloads.compile.sensitivity` and `dpsql.privacy`. Generated rows "
        "hold what has broken "
        "scans before, not everything that could. Time is measured on one machine.",
    ]
    return "\n\n".join(parts) + "\n"


def not_run(ran: Mapping[str, dict[str, Any]]) -> list[str]:
    """Tests that a threat names and that neither passed nor failed."""
    done = {name.split("[")[0] for name, note in ran.items() if note["outcome"] in ("passed", "failed")}
    return sorted({f"tests/{test}" for threat in THREATS for test in threat.tests} - done)


def _listed(what: str, names: Sequence[str]) -> str:
    return f"**{what}:**\n\n" + "\n".join(f"- `{name}`" for name in names)


def _figures(
    amounts: Mapping[str, Notes], figures: Mapping[str, Any], ran: Mapping[str, dict[str, Any]]
) -> list[Sequence[str]]:
    def total(name: str) -> str:
        return f"{sum(note['amount'] for note in amounts.get(name, [])):,}"

    faults = [value for name, value in figures.items() if name.startswith("faults.")]
    races = [value for name, value in figures.items() if name.startswith("races.")]
    races += [{"run": note["amount"], **note} for note in amounts.get("races run", [])]
    granted, fitting = sum(v["granted"] for v in races), sum(v["fitting"] for v in races)
    tried = [note["outcome"] for name, note in ran.items() if name.startswith(MUTANTS)]
    kills = amounts.get("mutants killed", [])
    rows = [
        ("faults injected", f"{sum(v['injected'] for v in faults):,}"),
        ("faults survived", f"{sum(v['survived'] for v in faults):,}"),
        ("races run", f"{sum(v['run'] for v in races):,}"),
        ("grants in races, of grants that fit", f"{granted:,} of {fitting:,}"),
        ("bad inputs tried and refused before any SQL ran", total("bad inputs refused before any SQL")),
        ("forbidden pieces among them", total("forbidden pieces planted")),
        ("more bad inputs, refused by the front end", total("bad inputs refused by the front end")),
        ("mutants killed", f"{len({note['mutant'] for note in kills}):,}"),
        ("mutants against the check that must kill them: kills of attempts", f"{len(kills):,} of {len(tried):,}"),
        ("draws held against their law", total("draws held against their law")),
        ("neighbouring pairs tried", total("neighbouring pairs tried")),
        *((name, total(name)) for name in VALUES),
        (
            "generated calls of public entry points, none with an error of another kind",
            total("generated calls of public entry points"),
        ),
    ]
    rows.append(("threats whose tests all ran and passed", _held(ran)))
    single = [name for name in amounts if name.startswith(("z of", "p that", "rank correlation"))]
    rows += [(name, f"{amounts[name][-1]['amount']:.3g}") for name in sorted(single)]
    return list(rows)


def _held(ran: Mapping[str, dict[str, Any]]) -> str:
    wrong = {name.split("[")[0] for name, note in ran.items() if note["outcome"] == "failed"} | set(not_run(ran))
    held = [t for t in THREATS if t.tests and not wrong & {f"tests/{test}" for test in t.tests}]
    return f"{len(held)} of {len(THREATS)}"


def _mutants(kills: Notes) -> list[Sequence[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for note in sorted(kills, key=lambda note: (note["threat"] or "~", note["mutant"])):
        found.setdefault((note["threat"], note["mutant"]), []).append(note["by"].replace("_", " "))
    return [(threat, mutant.replace("_", " "), "; ".join(dict.fromkeys(by))) for (threat, mutant), by in found.items()]


def _faults(figures: Mapping[str, Any]) -> list[Sequence[str]]:
    """A row a kind; what stands behind a ``#`` in a name is the part of a test that ran in parts."""
    injected: collections.Counter[str] = collections.Counter()
    survived: collections.Counter[str] = collections.Counter()
    for name, value in sorted(figures.items()):
        if name.startswith("faults."):
            shown = name.removeprefix("faults.").split("#")[0].replace("_", " ").replace(".", ": ")
            injected[shown] += value["injected"]
            survived[shown] += value["survived"]
    return [(shown, f"{injected[shown]:,}", f"{survived[shown]:,}") for shown in injected]


def _threats(ran: Mapping[str, dict[str, Any]]) -> list[Sequence[str]]:
    rows = []
    for threat in THREATS:
        outcomes = [
            note["outcome"]
            for test in threat.tests
            for name, note in ran.items()
            if name.split("[")[0] == f"tests/{test}"
        ]
        shown = "no test yet" if not threat.tests else f"{outcomes.count('passed')} passed"
        absent = {f"tests/{test}" for test in threat.tests} & set(not_run(ran))
        if absent:
            shown += f", {len(absent)} did not run"
        if "failed" in outcomes:
            shown += f", {outcomes.count('failed')} failed"
        tests = "<br>".join(f"`{test}`" for test in threat.tests)
        rows.append((threat.id, threat.fault, tests, shown, threat.note))
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run, write, say where."""
    quick = "--quick" in arguments
    notes, figures, code = run(quick)
    if code not in (0, 1):  # pytest's own: 0 all passed, 1 some failed; anything else is no whole run
        print(f"the tests did not run to their end (pytest: {code}); {PAGE.relative_to(ROOT)} is as it was")
        return 1
    measured = section(PAGE.read_text(encoding="utf-8"))  # of branches, by make coverage
    PAGE.write_text(written(page(notes, figures, quick=quick), measured), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    missing = [] if quick else not_run({note["ran"]: note for note in notes if "ran" in note})
    for name in missing:
        print(f"did not run: {name}")
    return 1 if code or missing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
