"""What the site adds to Markdown: formulas as MathML, pages from outside docs/, and no comments of the tests.

Formulas stand in the pages between dollars, as GitHub shows them. latex2mathml turns them into MathML while the site is
built, which browsers draw by themselves: no script and no font is fetched.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

# Files of the repository that are pages of the site, too.
PAGES = {
    "benchmarks/RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
    "sql_examples/README.md": "examples.md",
}

WIDE = 24
"""Signs of a formula in a line of text that may be wider than a phone."""

PUBLISHED = (".md", ".css", ".svg", ".png", ".schema.json")
"""What of docs/ is published: no cache, no ledger of somebody who tried a page, nothing that an editor left."""

_COMMENT = re.compile(r"^[ ]*<!--.*?-->[ ]*\n?", re.DOTALL | re.MULTILINE)
_MESSAGE = re.compile(r"^```text\n(?=\w*Error: )", re.MULTILINE)
_LINK = re.compile(r"(\[[^\]]*\])\(([^)#:]+)(#[^)]*)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Leave out what is no part of the site, and add the pages that live elsewhere in the repository."""
    leave_out(files, config.docs_dir)
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def leave_out(files: Files, folder: str) -> None:
    """Remove the files of a folder that are of no kind that is published; those of the theme lie elsewhere."""
    for file in list(files):
        if Path(file.abs_src_path or "").is_relative_to(folder) and not file.src_uri.endswith(PUBLISHED):
            files.remove(file)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leave comments out, let messages wrap, and lead links to files of the repository to their page.

    A link to a file that is no page becomes its words.
    """
    source = next((key for key, value in PAGES.items() if value == page.file.src_uri), f"docs/{page.file.src_uri}")
    parts = re.split(r"(^```.*?^```)", _COMMENT.sub("", markdown), flags=re.DOTALL | re.MULTILINE)
    return "".join(
        _MESSAGE.sub("``` { .text .language-text .message }\n", part)
        if part.startswith("```")
        else _linked(part, posixpath.dirname(source))
        for part in parts
    )


def _linked(text: str, folder: str) -> str:
    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        place = posixpath.normpath(posixpath.join(folder, target))
        if place in PAGES:
            return f"{words}({PAGES[place]}{anchor})"
        if place.startswith("docs/") and (ROOT / place).is_file():
            return f"{words}({place.removeprefix('docs/')}{anchor})"
        return words[1:-1] if (ROOT / place).exists() else found[0]

    return _LINK.sub(link, text)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML."""

    def formula(found: re.Match[str]) -> str:
        latex = html.unescape(found[2]).strip()
        block = found[1] == "div"
        made = convert(latex[2:-2], display="block" if block else "inline")
        # Text breaks beside a formula, never within it: one that is wider than a phone needs a box of its own.
        wide = not block and len(re.sub(r"<[^>]*>", "", made)) > WIDE
        return f'<span class="wide-formula">{made}</span>' if wide else made

    return _FORMULA.sub(formula, content)
