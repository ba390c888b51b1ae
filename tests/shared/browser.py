"""Pages looked at in headless Chromium: what is laid out, at which width, and what nobody can read."""

import json
import os
import re
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

DESK, PHONE = 1280, 390
LEGIBLE = 9.0  # CSS pixels
ERRORS = (
    "standard error",
    "std error",
    "within, 95 %",
    "95 % within",
    "gain",
    "interval",
)  # heads of a table's error columns
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    # Whatever a page might ask of the network, nobody answers.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    # The page of frames below looks into frames that are files, too.
    "--allow-file-access-from-files",
)
# A window is never narrower than 500 pixels, a frame is: each page is laid out in a frame of the width that is asked.
FRAMES = """<!DOCTYPE html><meta charset="utf-8"><body>%s<script>
const said = text => text.trim().replace(/\\s+/g, " ").slice(0, 60);
function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const style = e => view.getComputedStyle(e), wide = root.clientWidth;
  const shown = e => e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  // The part of a rectangle that can be seen without scrolling, and whether some of it cannot be scrolled to.
  const seen = (element, rect) => {
    let { left, right, top, bottom } = rect, cut = false;
    for (let e = element; e && e !== root && e !== page.body; e = e.parentElement) {
      const { overflowX: x, overflowY: y, display } = style(e);
      if (display === "inline" || (x === "visible" && y === "visible")) continue;
      const box = e.getBoundingClientRect();
      if (x !== "visible" && (left < box.left - 1 || right > box.right + 1)) {
        if (x === "hidden" || x === "clip" || left + e.scrollLeft < box.left - 1) cut = true;
        left = Math.max(left, box.left); right = Math.min(right, box.right);
      }
      // Half a line: boxes are often a pixel or two less high than the tallest glyph of their font.
      if (y !== "visible" && (top < box.top - 8 || bottom > box.bottom + 8)) {
        if (y === "hidden" || y === "clip") cut = true;
        top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
      }
    }
    return { right, cut: cut || left < -1 || right > wide + 1 };
  };
  const content = page.querySelector(".md-content") ?? page.body;
  const words = page.createTreeWalker(content, NodeFilter.SHOW_TEXT), cut = new Set();
  while (words.nextNode()) {
    const node = words.currentNode, parent = node.parentElement;
    // The code of a notebook is drawn by nbconvert, which cuts it on a phone; what a cell shows is held to more.
    if (!node.data.trim() || !shown(parent) || parent.closest(".jp-InputArea")) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects())
      if (rect.width > 1 && seen(parent, rect).cut) cut.add(said(node.data));
  }
  const all = selector => [...content.querySelectorAll(selector)].filter(shown);
  const ends = e => {
    const rect = e.getBoundingClientRect();
    return rect.right <= seen(e.parentElement, rect).right + 1 && rect.right <= wide + 1;
  };
  return {
    width: wide,
    words: content.innerText.length,
    sideways: root.scrollWidth > wide ? root.scrollWidth - wide : 0,
    cut: [...cut],
    long: all("pre").flatMap(e => [e, ...e.querySelectorAll("code")]).filter(e => e.scrollWidth > e.clientWidth + 1
      && style(e).display !== "inline").map(e => said(e.innerText)),
    tables: all("table").map(table => ({
      heads: [...table.querySelectorAll("th")].map(e => said(e.innerText)),
      hidden: [...table.querySelectorAll("th")].filter(e => !ends(e)).map(e => said(e.innerText)),
    })),
    pictures: all("img").map(e => ({ source: e.src, shown: e.getBoundingClientRect().width, natural: e.naturalWidth })),
  };
}
addEventListener("load", () => {
  const facts = [...document.querySelectorAll("iframe")].map(look), held = document.createElement("pre");
  held.id = "facts";
  held.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(facts))));
  document.body.appendChild(held);
});
</script></body>
"""
_GLYPHS = re.compile(r"scale\(([0-9.]+) -\1\)")  # matplotlib draws letters 100 units high


def browser() -> str:
    """The browser: DPSQL_CHROMIUM, else one on the path. Without one the test fails, and says what is missing.

    DPSQL_CHROMIUM=none leaves the look at pages out, for machines that cannot have one.
    """
    if os.environ.get("DPSQL_CHROMIUM") == "none":
        pytest.skip("DPSQL_CHROMIUM=none: pages are not looked at")
    found = os.environ.get("DPSQL_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail("no Chromium: install the package chromium (Debian: apt-get install chromium), or name it in "
                    "DPSQL_CHROMIUM")  # fmt: skip
    return found


def browse(folder: Path, address: str, *switches: str) -> subprocess.CompletedProcess:
    """One run of the browser, with a profile of its own."""
    profile = folder / "profile"
    profile.mkdir(exist_ok=True)
    command = [browser(), *SWITCHES, f"--user-data-dir={profile}", "--virtual-time-budget=20000", *switches, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "HOME": str(folder)})
    assert done.returncode == 0, done.stderr
    return done


def facts_of(folder: Path, place: Path):
    """What the script of a page left in its element ``facts``."""
    held = browse(folder, place.as_uri(), "--dump-dom").stdout.split('<pre id="facts">')[1].split("</pre>")[0]
    return json.loads(b64decode(held))


def laid_out(pages: list[Path], width: int, folder: Path) -> list[dict]:
    """How each page is laid out at a width: text that is cut, code and tables that must be scrolled, pictures."""
    frames = "".join(f'<iframe width="{width}" height="900" src="{page.as_uri()}"></iframe>' for page in pages)
    place = folder / f"frames-{width}.html"
    place.write_text(FRAMES.replace("%s", frames), encoding="utf-8")
    return facts_of(folder, place)


def smallest_letters(picture: dict) -> float:
    """The size in CSS pixels of the smallest letters of an SVG of matplotlib, as the page shows it; else infinite."""
    source = picture["source"]
    if source.startswith("data:image/svg+xml;base64,"):
        drawn = b64decode(source.partition(",")[2]).decode()
    elif source.endswith(".svg"):
        drawn = Path(unquote(urlparse(source).path)).read_text(encoding="utf-8")
    else:
        return float("inf")
    sizes = [100 * float(size) for size in _GLYPHS.findall(drawn)]
    return min(sizes, default=float("inf")) * 96 / 72 * picture["shown"] / picture["natural"]


def faults(facts: dict) -> list[str]:
    """What a reader of a page could not read, of what ``laid_out`` saw."""
    found = [f"cut: {text}" for text in facts["cut"]]
    if facts["sideways"]:
        found.append(f"the page scrolls sideways by {facts['sideways']} pixels")
    hidden = [head for table in facts["tables"] for head in table["hidden"] if head in ERRORS]
    found += [f"a table shows its column {head!r} only when scrolled" for head in hidden]
    sizes = [(smallest_letters(picture), picture["source"][-60:]) for picture in facts["pictures"]]
    return found + [f"letters of {size:.1f} pixels in {source}" for size, source in sizes if size < LEGIBLE]
