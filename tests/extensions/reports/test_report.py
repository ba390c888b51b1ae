"""Reports are one page that fetches nothing, escapes everything, and says what the release says."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dpsql
from dpsql.extensions.reports.report import report_plan, report_release
from dpsql.release import ReleaseStore
from dpsql.surfaces.cli import main

POLICY = """
dataset = "<b>report</b>-1"
[budget]
epsilon = 4
delta = 1e-9
pure_epsilon = 1
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 3, type = "INTEGER", step = 1, nulls = false }
s = { values = ["<script>alert(1)</script>", "b&\\"'"], type = "VARCHAR", nulls = false }
"""
BATCH = """
CREATE VIEW "<img src=x>" AS SELECT s AS "<i>", COUNT(*) AS "n&" FROM t GROUP BY s;
SELECT COUNT(*) AS n, AVG(k) AS mean FROM t -- </pre><script>
"""
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Tags that must balance, attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    (tmp_path / "t.csv").write_text("k,s\n" + "".join(f"{i % 4},<script>alert(1)</script>\n" for i in range(40)))
    (tmp_path / "p.toml").write_text(POLICY)
    return dpsql.connect(policy=tmp_path / "p.toml")


def checked(text: str) -> Page:
    """A page that runs nothing and fetches nothing."""
    page = Page(text)
    assert page.tags <= {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "div", "strong", "dl", "dt"),
        *("dd", "table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "img", "pre", "span", "a"),
    }
    for name, value in page.attributes:
        assert name in {"lang", "charset", "http-equiv", "content", "name", "class", "src", "width", "alt", "style",
                        "role", "aria-label", "href", "id"}  # fmt: skip
        assert name != "href" or value == "#words"  # within the page
        if name == "src":
            assert value.startswith("data:image/svg+xml;base64,")
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text
    return page


@pytest.mark.long
def test_a_plan_as_a_page_spends_nothing(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, epsilon=2, delta="1e-9")
    page = checked(report_plan(plan, con.budget))
    assert not con.ledger_path.exists()
    for words in (
        plan.privacy,
        "take the data of any one row of t",
        "budget accounta part of the budget",
        "factor of at most 7.39, and by at most 1e-9 beyond that",
        "the columns one by one, each asked separately, at the same total cost",
        "mean",
    ):
        assert words in page.words
    assert page.words.count("<img src=x>") >= 1
    assert "</pre><script>" in page.words
    assert report_plan(plan).count("<figure>") == 3  # no budget, no picture of it


@pytest.mark.long
def test_a_release_as_a_page_comes_from_the_releases_file_alone(con: dpsql.Connection) -> None:
    first = con.run(BATCH, 0.5, label="ann <b>")
    con.run("SELECT k, COUNT(*) AS n FROM t GROUP BY k", 0.25, delta="1e-9")
    for path in (con.ledger_path, Path(str(con.policy.path))):
        path.unlink()
    store = ReleaseStore(con.releases_path)
    page = checked(report_release(store, 1))
    (row,) = first["q1"].fetchall()
    value = row[first["q1"].columns.index("n")]
    assert f"{value:,.0f}" in page.words.replace(".0", "")
    for words in (
        "Release 1",
        "ann <b>",
        "epsilon 0.5 (pure)",
        "Protectsone row of t",
        "at most 62.3 of 100 cases",
        "0.5 was spent and 0.5 left",
        "<script>alert(1)</script>",
    ):
        assert words in page.words
    assert "interval" in page.words
    assert "Release 2" in checked(report_release(store)).words
    with pytest.raises(dpsql.ProgrammingError, match=r"there is no release 7 in .*; it holds 1, 2"):
        report_release(store, 7)


@pytest.mark.long
def test_the_command_says_beside_the_results_what_is_left_out(con: dpsql.Connection, tmp_path: Path) -> None:
    con.run("SELECT s, AVG(k) AS mean FROM t GROUP BY s", 0.5, options=dpsql.PlanOptions(alpha=0.1))
    policy, releases, page = tmp_path / "p.toml", con.releases_path, tmp_path / "page.html"
    con.close()
    assert main(["report", "release", "--policy", str(policy), "--releases", str(releases), "-o", str(page)]) == 0
    words = checked(page.read_text(encoding="utf-8")).words
    for said in (
        "In sums and averages values of k below 0 count as 0, and above 3 as 3 (clamped); values beyond a bound",
        "All releases so far: epsilon 0.5 spent of 4 at delta 1e-9.",
        "90 % interval",
        "pure",
        "privacy unit, unit",
        "Laplace, K-norm, Gaussian",
    ):
        assert said in words


def test_a_long_table_is_cut_and_says_so(con: dpsql.Connection) -> None:
    con.run("SELECT k, s, k % 2 AS odd, COUNT(*) AS n FROM t GROUP BY k, s, k % 2", 0.5)
    from dpsql.extensions.reports.report_html import result_table
    from dpsql.release import Result

    page = Page(result_table(Result(["k", "n"], ["INTEGER", "DOUBLE"], [(i, float(i)) for i in range(500)])))
    assert "The first 200 of 500 rows." in page.words
    assert page.words.count("199") == 2
    words = Page(result_table(Result(["k"], ["VARCHAR"], [("<b>",)]))).words  # no numbers: the plain table
    assert "<b>" in words


@pytest.mark.long
def test_dropped_and_missing_releases(con: dpsql.Connection, tmp_path: Path) -> None:
    con.run(BATCH, 0.5)
    con.drop(release=1)
    page = checked(report_release(ReleaseStore(con.releases_path)))
    assert "Results were dropped" in page.words
    with pytest.raises(dpsql.OperationalError, match="there is no releases file"):
        report_release(ReleaseStore(tmp_path / "none.duckdb"))


def test_without_matplotlib_the_extra_is_named(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = con.plan(BATCH, epsilon=0.5)
    con.run(plan)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for make in (lambda: report_plan(plan), lambda: report_release(ReleaseStore(con.releases_path))):
        with pytest.raises(dpsql.InterfaceError, match="install 'matplotlib>="):
            make()
