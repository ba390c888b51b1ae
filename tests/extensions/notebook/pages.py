"""A notebook run by nbclient in a folder of its own, made a page by nbconvert, and looked at in headless Chromium."""

import os
from pathlib import Path

import nbformat
from browser import facts_of
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

# What the page is, as the browser sees it once everything is laid out.
LOOK = """
<script>
window.addEventListener("load", () => {
  const box = e => { const b = e.getBoundingClientRect(); return [b.width, b.height]; };
  const seen = e => e.checkVisibility() && box(e)[0] > 0 && box(e)[1] > 0;
  const texts = selector => [...document.querySelectorAll(selector)].filter(seen).map(e => e.innerText);
  const facts = {
    tables: texts("table.dpsql-table"),
    plans: texts("table.dpsql-plan"),
    footers: texts(".dpsql-footer"),
    pictures: [...document.images].filter(seen).map(e => [e.naturalWidth, e.naturalHeight, ...box(e)]),
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    asked: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:")),
  };
  const held = document.createElement("pre");
  held.id = "facts";
  held.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(facts))));
  document.body.appendChild(held);
});
</script>
"""


def run_notebook(notebook: Path | nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in ``folder`` by the kernel of this interpreter."""
    notebook = nbformat.read(notebook, as_version=4) if isinstance(notebook, Path) else notebook
    # The kernel that came with this interpreter, whatever kernels and settings the user has.
    private = {"JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_DATA_DIR": str(folder / "jupyter")}
    private |= {"JUPYTER_CONFIG_DIR": str(folder / "jupyter"), "IPYTHONDIR": str(folder / "ipython")}
    before = {name: os.environ.get(name) for name in private}
    os.environ.update(private)
    try:
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    return notebook


def page_of(notebook: nbformat.NotebookNode) -> str:
    """The notebook as one HTML page that asks nothing of the network."""
    config = Config()
    for name in ("require_js_url", "jquery_url", "mathjax_url", "widget_renderer_url"):
        setattr(config.HTMLExporter, name, "")
    page, _ = HTMLExporter(config=config).from_notebook_node(notebook)
    return page


def looked_at(page: str, folder: Path) -> dict:
    """What the browser shows of a page."""
    place = folder / "page.html"
    place.write_text(page.replace("</body>", LOOK + "</body>"), encoding="utf-8")
    return facts_of(folder, place)
