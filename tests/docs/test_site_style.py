"""The style of the site wraps long lines of code: held without a browser, where test_laid_out.py cannot look."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BOX = ".md-typeset pre > code"


def declarations(css: str, selector: str) -> dict[str, str]:
    """What all rules of exactly that selector set, outside of conditions."""
    plain = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    plain = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", plain)
    found: dict[str, str] = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", plain):
        if selector in [one.strip() for one in selectors.split(",")]:
            found |= {
                name.strip(): value.strip() for name, _, value in (part.partition(":") for part in body.split(";"))
            }
    return found


def test_long_lines_of_code_wrap() -> None:
    css = (DOCS / "site.css").read_text(encoding="utf-8")
    box = declarations(css, BOX)
    assert box["white-space"] == "pre-wrap"
    assert box["overflow-wrap"] == "anywhere"
    (prefix,) = re.findall(r"line_spans: (\w+)", (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    line = declarations(css, f'{BOX} > span[id^="{prefix}"]')
    assert line["display"] == "block"
    assert line["padding-left"] == line["text-indent"].removeprefix("-") == "4ch"
    # No rule takes it back for a kind of box.
    assert set(re.findall(r"pre > code[^{}]*\{[^{}]*white-space: ([\w-]+)", css)) == {"pre-wrap"}


def test_a_rule_under_a_condition_does_not_count() -> None:
    css = f"@media screen and (max-width: 9px) {{ {BOX} {{ white-space: pre-wrap; }} }} p, {BOX} {{ color: red }}"
    assert declarations(css, BOX) == {"color": "red"}
