"""sql_examples/health.ipynb: run from end to end, and looked at in a browser."""

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="`make test-surfaces` installs it")

import nbformat
from browser import DESK, PHONE, faults, laid_out
from nbclient.exceptions import CellExecutionError
from pages import looked_at, page_of, run_notebook

pytestmark = [
    pytest.mark.surfaces,
    pytest.mark.filterwarnings("default"),
]  # kernels and pages have warnings of their own

EXAMPLES = Path(__file__).parents[3] / "sql_examples"
NOTEBOOK = EXAMPLES / "health.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the example, since a run leaves a ledger beside the policy."""
    made = tmp_path_factory.mktemp("health")
    shutil.copy(EXAMPLES / "rand_hie.toml", made)
    shutil.copytree(EXAMPLES / "data", made / "data")
    return made


@pytest.fixture(scope="module")
def notebook(folder):
    return run_notebook(NOTEBOOK, folder)


def outputs(notebook, start):
    """The data of the outputs of the first cell whose source starts like that."""
    (cell, *_) = [c for c in notebook.cells if c.cell_type == "code" and c.source.startswith(start)]
    return [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.outputs]


def test_the_notebook_is_kept_without_outputs():
    held = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(held)
    assert held.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in held.cells if cell.cell_type == "code")


def test_every_cell_runs(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count is not None
            assert all(output.output_type != "error" for output in cell.outputs), cell.source
            assert all(output.get("name") != "stderr" for output in cell.outputs), cell.outputs


def test_what_it_spends_and_what_is_free(notebook):
    dry = " ".join(data["text/plain"] for data in outputs(notebook, "%%dpsql --dry-run"))
    assert "Dry run: spent nothing · would spend epsilon 0.5" in dry
    (paid,) = outputs(notebook, "%%dpsql -o trial")
    footer = paid["text/plain"].splitlines()[-1]
    assert re.match(r"Spent epsilon 0\.5 .* · remaining epsilon 3\.5 of 4 .* · 95 % error ±.*release 1$", footer)
    (free,) = outputs(notebook, "%%dpsql\nCREATE")
    assert free["text/plain"].splitlines()[-1].startswith("Spent nothing: free, release 1 has the answers")
    tables = [data["text/plain"].rsplit("\n\n", 1)[0] for data in (paid, free)]
    assert tables[0] == tables[1]


def test_text_stands_beside_html(notebook):
    (paid,) = outputs(notebook, "%%dpsql -o trial")
    assert set(paid) == {"text/plain", "text/html"}
    assert "coinsurance 25" in paid["text/plain"]
    assert "coinsurance 25" in paid["text/html"]


def test_the_page_in_a_browser(notebook, folder):
    facts = looked_at(page_of(notebook), folder)
    paid = [text for text in facts["footers"] if text.startswith("Spent epsilon 0.5")]
    assert len(paid) == 1
    assert "remaining epsilon" in paid[0]
    assert "95 % error ±" in paid[0]
    assert any("free, release 1 has the answers" in text for text in facts["footers"])
    (by_plan, *_) = [text for text in facts["tables"] if text.startswith("by_plan")]
    assert "individual deductible" in by_plan
    assert " ± " in by_plan
    assert facts["plans"]
    ((width, height, shown_width, shown_height), *_) = facts["pictures"]
    assert width > 300
    assert height > 150
    assert shown_width > 200
    assert shown_height > 100
    assert not facts["wide"]
    assert [name for name in facts["asked"] if not name.startswith("file:")] == []


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_what_cells_show_fits(notebook, folder, width):
    page = folder / "fits.html"
    page.write_text(page_of(notebook), encoding="utf-8")
    (facts,) = laid_out([page], width, folder)
    assert any("gain" in table["heads"] for table in facts["tables"])
    assert faults(facts) == []


def test_the_second_run_is_free(notebook, folder):
    again = run_notebook(NOTEBOOK, folder)
    for start in ("%%dpsql -o trial", "%%dpsql --epsilon 0.25"):
        (data,) = outputs(again, start)
        assert "Spent nothing: free" in data["text/plain"]


def test_a_mistake_in_a_kernel_is_its_message_and_stops_the_notebook(tmp_path):
    cells = ["%load_ext dpsql", "%dpsql budget", "print('never')"]
    held = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    with pytest.raises(CellExecutionError) as caught:
        run_notebook(held, tmp_path)
    assert caught.value.ename == "InterfaceError"
    assert caught.value.evalue.startswith("there is no connection yet; write %dpsql connect")
    (output,) = held.cells[1].outputs
    (line,) = output.traceback
    assert re.sub(r"\x1b\[[0-9;]*m", "", line) == f"InterfaceError: {caught.value.evalue}"
    assert held.cells[2].outputs == []
