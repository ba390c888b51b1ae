"""Pages in a browser, as wide as a desk and as a phone: no line is cut, and what a reader came for is in sight.

Every page of the site, and reports. One more page is the notebook of tests/extensions/notebook/test_health_notebook.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from browser import DESK, PHONE, faults, laid_out

import dpsql
from dpsql.extensions.reports.report import report_plan, report_release
from dpsql.release import ReleaseStore

pytestmark = pytest.mark.surfaces

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "sql_examples"


def front_page(facts: dict) -> list[str]:
    """What the front page must have besides: one picture."""
    return [] if len(facts["pictures"]) == 1 else [f"the front page has {len(facts['pictures'])} pictures"]


def scrolled(facts: dict) -> list[str]:
    """Boxes of code that a reader must scroll sideways."""
    return [f"code must be scrolled: {text}" for text in facts["long"]]


@pytest.fixture(scope="module")
def pages(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of the site, and reports of the example batch."""
    folder = tmp_path_factory.mktemp("laid-out")
    shutil.copy(EXAMPLES / "rand_hie.toml", folder)
    shutil.copytree(EXAMPLES / "data", folder / "data")
    with dpsql.connect(policy=str(folder / "rand_hie.toml")) as con:
        plan = con.plan((EXAMPLES / "rand_hie.sql").read_text(encoding="utf-8"), epsilon=1, delta=1e-9)
        con.run(plan)
        readme = con.plan((EXAMPLES / "by_plan.sql").read_text(encoding="utf-8"), epsilon=0.5)
        held = {
            "plan": report_plan(plan, con.budget),
            "plan of the README": report_plan(readme),
            "release": report_release(ReleaseStore(con.releases_path)),
        }
    made = {name: folder / f"{name}.html" for name in held}
    for name, text in held.items():
        made[name].write_text(text, encoding="utf-8")
    return {page.stem: page for page in sorted(site.glob("*.html")) if page.stem != "404"} | made


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_nothing_is_cut(pages: dict[str, Path], width: int, tmp_path: Path) -> None:
    looked = laid_out(list(pages.values()), width, tmp_path)
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= set(pages)
    for (name, _), facts in zip(pages.items(), looked, strict=True):
        assert facts["width"] == width
        assert facts["words"] > 1000, name  # the page was there
    found = {name: faults(facts) + scrolled(facts) for name, facts in zip(pages, looked, strict=True)}
    found["index"] += front_page(looked[list(pages).index("index")])
    assert {name: held for name, held in found.items() if held} == {}


BROKEN = {
    "a line of code": ("<pre><code>" + "long " * 300 + "</code></pre>", "the page scrolls sideways"),
    "a line in a box": ("<p style='overflow:hidden;white-space:nowrap'>" + "long " * 300 + "</p>", "cut: long"),
    "lines in a box": ("<p style='overflow:hidden;height:30px'>" + "long " * 900 + "</p>", "cut: long"),
    "text at the left": ("<p style='margin-left:-60px'>long</p>", "cut: long"),
    "an error column": (
        "<div style='overflow-x:auto'><table><tr><th>" + "long" * 300 + "</th><th>gain</th></tr></table></div>",
        "a table shows its column 'gain' only when scrolled",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_cut_is_found(what: str, tmp_path: Path) -> None:
    body, fault = BROKEN[what]
    page = tmp_path / "broken.html"
    page.write_text(f"<!DOCTYPE html><body>{body}</body>", encoding="utf-8")
    (facts,) = laid_out([page], PHONE, tmp_path)
    assert any(found.startswith(fault) for found in faults(facts)), faults(facts)


def test_small_letters_long_code_and_a_missing_picture_are_found(tmp_path: Path) -> None:
    image = ROOT / "docs/images/plan.svg"
    page = tmp_path / "broken.html"
    page.write_text(
        f"<!DOCTYPE html><body><img width='300' src='{image.as_uri()}'><img width='300' src='{image.as_uri()}'>"
        f"<pre style='overflow:auto'>{'long ' * 300}</pre></body>",
        encoding="utf-8",
    )
    (facts,) = laid_out([page], DESK, tmp_path)
    found = " ".join(faults(facts) + front_page(facts) + scrolled(facts))
    assert "letters of 4" in found
    assert "the front page has 2 pictures" in found
    assert "code must be scrolled: long" in found
