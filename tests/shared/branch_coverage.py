"""Branch coverage of the rooms that privacy rests on: `make coverage`, a part of `make test-long`.

Runs the tests of these rooms and of what measures through them, without the long ones, and compares each module with
``LEAST`` percent of its lines and branches. A module below needs a reason in ``GAPS``. ``--write`` puts the table into
docs/assurance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "assurance.md"
HEADING, LAST = "## Branch coverage", "## What this does not say"
ROOMS = ("dpsql/privacy", "dpsql/measure", "dpsql/workloads/compile")
TESTS = (
    *("privacy", "measure", "workloads", "running", "driver", "planning/test_levels.py", "strategies/test_products.py"),
    *(f"extensions/{name}" for name in ("adaptive", "audit", "discovery", "local", "periods")),
)
LEAST, DIFFERENCE = 95.0, 1.0  # percent; how much less a module may have in one run than in another
GAPS: dict[str, str] = {
    "dpsql/measure/cells.py": "scans of very many histograms, piece by piece",
    "dpsql/measure/checks.py": "Spark's check of types",
    "dpsql/measure/failed_sources.py": "a source without files",
    "dpsql/measure/from_sql.py": "windows over rows and values named once in a scan",
    "dpsql/measure/local.py": "errors of the program that no policy reaches, and Spark's check",
    "dpsql/measure/row_by_row.py": "scans of very many histograms, piece by piece",
    "dpsql/measure/synthetic.py": "what the audit of releases in rounds scans",
    "dpsql/privacy/anchor.py": "an anchor that the system cannot read",
    "dpsql/privacy/finding.py": "refusals of budgets, and a survey under a rho policy",
    "dpsql/privacy/ledger_file.py": "faults of the disk while a ledger is made",
    "dpsql/workloads/compile/caps.py": "early ends where a bound says nothing",
    "dpsql/workloads/compile/choice.py": "batches that are too large for one matrix, and then for blocks",
    "dpsql/workloads/compile/cone.py": "refusals of batches with too many kinds of contributions",
    "dpsql/workloads/compile/confined.py": "periods confined by EXISTS, HAVING and days of another column",
    "dpsql/workloads/compile/histograms.py": "the refusal of groupings that are too large",
    "dpsql/workloads/compile/kronecker.py": "errors of the program that no batch reaches, and mixed factors",
    "dpsql/workloads/compile/level_sets.py": "levels of units and of conditions within others",
    "dpsql/workloads/compile/over_periods.py": "refusals of horizons",
    "dpsql/workloads/compile/sensitivity.py": "the second bound of contributions that are not listed",
    "dpsql/workloads/compile/units.py": "contributions that several bounds cut at once",
    "dpsql/workloads/compile/unlisted.py": "early ends where another bound is exact",
    "dpsql/workloads/compile/unlisted_pure.py": "early ends where a bound says nothing",
    "dpsql/workloads/compile/cells_of_a_row.py": "early ends where regions are too many",
}


def measured() -> dict[str, float]:
    """Percent of lines and branches of each module of the rooms that the tests ran."""
    with tempfile.TemporaryDirectory() as folder:
        rules, report = Path(folder) / "rules", Path(folder) / "report.json"
        rules.write_text(
            f"[run]\nbranch = True\nparallel = True\npatch = subprocess\ndata_file = {folder}/data\n"
            f"source = {','.join(ROOMS)}\n",
            encoding="utf-8",
        )
        run = [sys.executable, "-m", "coverage"]
        tests = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal"]
        tests += [f"tests/{name}" for name in TESTS]
        environment = {**os.environ, "COVERAGE_PROCESS_START": str(rules), "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([*run, "run", f"--rcfile={rules}", *tests[1:]], cwd=ROOT, env=environment, check=True)
        for step in (["combine", "-q"], ["json", "-q", "-o", str(report)]):
            subprocess.run([*run, step[0], f"--rcfile={rules}", *step[1:]], cwd=ROOT, check=True)
        files = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {
        name: held["summary"]["percent_covered"] for name, held in files.items() if held["summary"]["num_statements"]
    }


def faults(found: dict[str, float]) -> list[str]:
    """Modules below ``LEAST``, by more than runs differ, without a reason."""
    below = {name for name, percent in found.items() if percent < LEAST - DIFFERENCE}
    return [f"{name}: {found[name]:.1f} %, and no reason for what is left" for name in sorted(below - set(GAPS))]


def table(found: dict[str, float]) -> str:
    """The section of the page."""
    rooms = [
        f"| `{room}` | {sum(held) / len(held):.1f} % | {min(held):.1f} % | {len(held)} |"
        for room in ROOMS
        if (held := [percent for name, percent in found.items() if name.startswith(room)])
    ]
    gaps = [f"| `{name}` | {found[name]:.1f} % | {left} |" for name, left in sorted(GAPS.items())]
    parts = [
        HEADING,
        f"Lines and branches of the rooms that privacy rests on which the tests run (`make coverage`), the long tests "
        f"left out. A module below {LEAST:.0f} % says what is left, which other tests may run.",
        "\n".join(["| room | mean of its modules | least | modules |", "| --- | --- | --- | --- |", *rooms]),
        "\n".join(["| module | covered | what is left |", "| --- | --- | --- |", *gaps]) if gaps else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def section(page: str) -> str:
    """The section of a page, from its heading to the next one; nothing where there is none."""
    start = page.find(HEADING)
    return "" if start < 0 else page[start : page.index(LAST, start)].rstrip() + "\n"


def written(page: str, section_: str) -> str:
    """The page with this section before the last one, in place of the one that it had."""
    before, after = page.replace(section(page), "").split(LAST)
    return f"{before.rstrip()}\n\n{section_}\n{LAST}{after}"


def main() -> int:
    """Exit code 1 where a module has a gap without a reason."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/assurance.md")
    write = parser.parse_args().write
    found = measured()
    if write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), table(found)), encoding="utf-8")
    wrong = faults(found)
    print("\n".join(wrong) or table(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
