"""docs/index.md leads each kind of reader by at most five links to pages that exist."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
ROWS = [
    (kind.strip(), re.findall(r"\]\(([^)#]+)", links))
    for kind, links in re.findall(
        r"^\| ([^|]+) \| (\[.*) \|$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
]


def test_each_kind_of_reader_has_at_most_five_links() -> None:
    kinds = " ".join(kind for kind, _ in ROWS)
    assert all(word in kinds for word in ("engineer", "statistician", "data-protection officer", "operator"))
    for kind, links in ROWS:
        assert 1 <= len(links) <= 5, kind
        assert [link for link in links if not (DOCS / link).is_file()] == [], kind
