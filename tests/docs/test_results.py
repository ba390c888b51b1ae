"""benchmarks/RESULTS.md: what results_page.py renders, short, of whole records; the README's figures stand in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import record  # noqa: E402
import results_page  # noqa: E402

PAGE = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = sorted(path.stem for path in record.RESULTS.glob("*.json"))
LINES = {found[1]: line for line in PAGE.splitlines() if (found := re.match(r'\| <a id="([^"]+)"></a>', line))}
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def test_the_page_is_what_the_files_say_and_no_longer_than_250_lines() -> None:
    assert results_page.page() == PAGE, "render it: python benchmarks/results_page.py --write"
    assert PAGE.count("\n") <= 250


def test_every_file_is_on_the_page_once() -> None:
    shown = [name for files in results_page.SECTIONS.values() for name in files]
    assert sorted(shown) == FILES
    assert len(set(results_page.anchors())) == len(list(results_page.anchors())) == len(LINES)


@pytest.mark.parametrize("name", FILES)
def test_records_are_whole(name: str) -> None:
    for one in record.read(name):
        assert tuple(one) == record.FIELDS
        assert one["verdict"] in record.VERDICTS
        assert (one["goal"] == "") == (one["verdict"] == "no goal")
        assert (one["why"] != "") == (one["verdict"] == "missed"), one["key"]
        assert all(one[field] for field in record.FIELDS if field not in ("goal", "why")), one["key"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"])
        assert re.fullmatch(r"[0-9a-f]{8}\+?", one["commit"])


def test_a_figure_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks" / "scale.py"), "--limit", "3"])
    slow = record.Figure("scale-rows", "rows", "3 s", "2 s", False, "a slow disk")
    record.write("scale", [slow, record.Figure("scale-values", "values", "1 s")])
    record.write("scale", [record.Figure("scale-rows", "rows", "4 s", "2 s", False)])
    rows, values = record.read("scale")
    assert (rows["value"], rows["why"], rows["command"]) == (
        "4 s",
        "a slow disk",
        "python benchmarks/scale.py --limit 3",
    )
    assert rows["stood"].startswith("3 s (")
    assert values["stood"] == "not measured before"
    record.write("scale", [record.Figure("scale-rows", "rows", "1 s", "2 s", True)])
    assert record.read("scale")[0]["why"] == ""


@pytest.mark.parametrize("given", [{"goal": "2 s"}, {"met": True}, {"key": "Scale rows"}])
def test_figures_without_a_verdict_or_a_key_are_refused(given: dict) -> None:
    with pytest.raises(ValueError, match=r"key|goal"):
        record.Figure(**{"key": "scale-rows", "figure": "rows", "value": "1 s", **given})


# Numbers of the README that say what was measured. The one of the Laplace certificate is held by test_readme.py.
SETTINGS = (
    "Python 3.11",
    "Apache-2.0",
    "54 statements over 336,776 flights, as one batch at epsilon 1",
    "1.17 times the least",
)


def prose(page: str) -> str:
    """``page`` without its code."""
    text = re.sub(r"^```.*?^```|^    .*?$|^<!--.*?-->", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`", "", text)


def faults(page: str) -> list[str]:
    """Figures of a page that have no link to a line of RESULTS.md, or do not stand there."""
    text, found = " ".join(prose(page).split()), []
    for words, anchor in re.findall(r"\[([^\]]+)\]\(benchmarks/RESULTS\.md#([^)]+)\)", text):
        found += [f"{number} in #{anchor}" for number in NUMBER.findall(words) if number not in shown(anchor)]
    text = re.sub(r"\[[^\]]*\]\([^)]*\)", "", text)
    for setting in SETTINGS:
        text = text.replace(setting, "")
    return found + [f"{number} has no link" for number in NUMBER.findall(text)]


def shown(anchor: str) -> list[str]:
    """The numbers of the line of a figure: of what was measured and of its value, not of its command."""
    return NUMBER.findall(" ".join(LINES.get(anchor, "").split(" | ")[:2]).replace(f'id="{anchor}"', ""))


def test_the_figures_of_the_readme_stand_in_the_lines_that_it_links_to() -> None:
    assert faults(README) == []
    assert len(re.findall(r"RESULTS\.md#", README)) >= 2


@pytest.mark.parametrize(
    "claim",
    [
        "It is 7.5 times better.",
        "[7.5 times](benchmarks/RESULTS.md#flights-gain) better",
        "[6.3 times](benchmarks/RESULTS.md#no-such-figure) better",
    ],
)
def test_a_claim_without_its_figure_is_noticed(claim: str) -> None:
    assert faults(README + claim) != []
