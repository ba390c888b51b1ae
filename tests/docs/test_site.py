"""The site builds without a warning, loads nothing from elsewhere, and has every public name."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import browse

import dpsql
from dpsql import bounds, strategy, workload
from dpsql.extensions.local import device

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.surfaces

# Tags whose address the browser fetches by itself; links in <a> are followed by people.
FETCHED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
}


class Resources(HTMLParser):
    """Addresses that a page fetches when it is opened, and the text of its headings' anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in FETCHED and given.get("rel") != "canonical":
            self.found.append(given.get(FETCHED[tag]) or "")
        if given.get("id"):
            self.ids.add(str(given["id"]))


def read(page: Path) -> Resources:
    found = Resources()
    found.feed(page.read_text(encoding="utf-8"))
    return found


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        for address in read(page).found:
            assert not re.match(r"(?:[a-z]+:)?//", address), (page.name, address)
            if page.name != "404.html":
                assert (page.parent / address.partition("?")[0].partition("#")[0]).exists(), (page.name, address)
    for style in site.rglob("*.css"):
        assert not re.findall(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""", style.read_text(encoding="utf-8")), style


def test_every_page_is_in_the_site_and_none_speaks_of_tests(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        text = (site / f"{page.stem}.html").read_text(encoding="utf-8")
        assert "<!-- setup" not in text
        assert "```" not in re.sub(r"<(code|pre).*?</\1>", "", text, flags=re.DOTALL), page


def test_formulas_are_drawn_by_the_browser_itself(site: Path) -> None:
    text = (site / "mathematics.html").read_text(encoding="utf-8")
    assert text.count("<math") > 50
    assert "arithmatex" not in text
    assert not re.findall(r"<mi>\\", text)  # a command that was not understood


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = read(site / "reference.html").ids | read(site / "reference-strategies.html").ids
    text = "".join((site / f"reference{part}.html").read_text(encoding="utf-8") for part in ("", "-strategies"))
    last = {name.rpartition(".")[2] for name in page}
    missing = [name for name in dpsql.__all__ if name not in last and f"<code>{name}</code>" not in text]
    for module in (workload, strategy, bounds, device):
        names = [name for name in module.__all__ if name not in last and f"<code>{name}</code>" not in text]
        missing += [f"{module.__name__}.{name}" for name in names]
    assert not missing, " ".join(missing)


def test_pages_are_drawn(site: Path, tmp_path: Path) -> None:
    """A browser without a network opens a page and shows its text and formulas."""
    drawn = browse(tmp_path, (site / "mathematics.html").as_uri(), "--dump-dom").stdout
    assert "The least error, with a certificate" in drawn
    assert "<math" in drawn


def test_the_site_has_pages_and_what_they_need_alone(site: Path) -> None:
    kinds = {path.suffix for path in site.rglob("*") if path.is_file()}
    assert kinds == {".html", ".css", ".js", ".map", ".json", ".xml", ".gz", ".svg", ".png"}
    parts = {part for path in site.rglob("*") for part in path.relative_to(site).parts}
    assert not {part for part in parts if part.startswith((".", "__"))}
    assert (site / "policy.schema.json").read_bytes() == (ROOT / "docs" / "policy.schema.json").read_bytes()


STRAY = (
    *("a.ledger", "a.releases.duckdb", "__pycache__/site_hooks.cpython-311.pyc", ".cache/plugin/a.json"),
    *("page.md.swp", ".ipynb_checkpoints/page.md", "notes.txt", "plan.json"),
)


def test_caches_and_ledgers_beside_the_pages_are_not_published(tmp_path: Path) -> None:
    from mkdocs.config import load_config
    from mkdocs.structure.files import get_files, set_exclusions

    for name in ("page.md", "images/a.svg", "site.css", *STRAY):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(tmp_path))
    files = get_files(config)
    set_exclusions(files, config)
    (hook,) = [hook for name, hook in config.hooks.items() if name == "docs/site_hooks.py"]
    hook.leave_out(files, str(tmp_path))
    left = {file.src_uri for file in files if file.inclusion.is_included()}
    assert left == {"page.md", "images/a.svg", "site.css"}
