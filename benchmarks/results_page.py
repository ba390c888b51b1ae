"""This module renders RESULTS.md from the files of benchmarks/results/.

    python benchmarks/results_page.py            prints the page
    python benchmarks/results_page.py --write    writes it to benchmarks/RESULTS.md

A section is a list of files; each figure is one line of its table, with an anchor that other pages link to.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from record import RESULTS, read, requested

PAGE = RESULTS.parent / "RESULTS.md"

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Error of a batch": ("batch_error", "sql_peers", "balanced"),
    "Strategies": ("strategies", "planning", "large", "products", "pure"),
    "Typical questions": ("natural", "natural_persons", "natural_persons_pure"),
    "Units": ("units", "tpch_persons"),
    "Speed": ("batch_speed", "statements", "scale", "spark", "serving"),
    "Wide tables": ("wide",),
    "Values found privately": ("discovery",),
    "Intervals": ("coverage",),
    "Reuse and tables that grow": ("reuse", "periods"),
    "Estimates that depend on the data": ("data_dependent",),
    "Local release": ("local",),
    "Scans and assurance": ("scans", "scan_time", "assurance"),
    "The house": ("house",),
    "Papers": ("papers",),
}

HEAD = """# Results

{figures} figures: {met} meet their goal, {missed} miss it, {without} have no goal.

Each line is a record in [results](results), which has a file for each benchmark. The benchmark writes it when it is
called with `--write`. A record also has the machine, its load, and what the figure was before. An error is a standard
error, or the root of a mean square, in the units of what is counted. "Pure" is noise for epsilon alone, "Gaussian" for
epsilon and delta. Times are of a machine with two cores. Several values of a line stand in the order of its figures;
"the same" refers to the line above. The *proven least* is a lower bound on the error of every matrix mechanism with
such noise ([mathematics](../docs/mathematics.md)). The *singular value bound* is one that is easy to compute.

Workloads: AllRange(n) has all ranges of n values, AllRange(n, m) all rectangles, Prefix(n) all prefixes,
AllPredicate(n) all subsets. WDiscrete and WRelated are random ones of Yuan et al. (2012), the latter of rank s.

`python benchmarks/results_page.py --write` renders this page. Up to commit 6aa473b8 it was a diary of all measurements
with their tables: `git show 6aa473b8:benchmarks/RESULTS.md`.
"""

PAPERS_NOTE = """
A pair is the paper's figure / ours. `*` marks figures of the papers that do not hold, † others more than 1 % away.
"""


def page() -> str:
    """The text of RESULTS.md."""
    records = [record for files in SECTIONS.values() for name in files for record in read(name)]
    counts = {verdict: sum(r["verdict"] == verdict for r in records) for verdict in ("met", "missed", "no goal")}
    parts = [HEAD.format(figures=len(records), met=counts["met"], missed=counts["missed"], without=counts["no goal"])]
    for title, files in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        if title == "Papers":
            parts.append(PAPERS_NOTE)
        parts.append("\n| figure | value | goal | measured by |\n|---|---|---|---|\n")
        parts.extend(line(record) for name in files for record in read(name))
    return "".join(parts)


def line(record: Mapping[str, str]) -> str:
    """One line of a table."""
    cells = (
        f'<a id="{record["key"]}"></a>{record["figure"]}',
        record["value"],
        _goal(record),
        f"{_command(record['command'])}, {record['date']}, {record['commit']}",
    )
    if any("|" in cell for cell in cells):
        raise ValueError(f"{record['key']}: a vertical bar would end the cell of a table")
    return f"| {' | '.join(cells)} |\n"


def _command(text: str) -> str:
    """A command as code; what says that there is none as it stands."""
    return f"`{text}`" if text.startswith(("python ", "pytest ", "make ", ".ci/")) else text


def _goal(record: Mapping[str, str]) -> str:
    if record["verdict"] == "no goal":
        return ""
    if record["verdict"] == "met":
        return f"{record['goal']}: met"
    return f"{record['goal']}: **missed**; {record['why']}"


def anchors() -> Iterator[str]:
    """The keys of all figures, in the order of the page."""
    return (record["key"] for files in SECTIONS.values() for name in files for record in read(name))


if __name__ == "__main__":
    if requested(sys.argv):
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")
