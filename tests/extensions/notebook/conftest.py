"""A shell of IPython in this process, and a small private table to ask from it."""

import sys
from pathlib import Path

import duckdb
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

ROWS = 3_000
POLICY = """
dataset = "toys-1"
[budget]
epsilon = 4.0
delta = 1e-9
pure_epsilon = 1.0
[tables.toys]
unit = "row"
[tables.toys.columns]
colour = { values = ["red", "blue", "<b>green</b>"], nulls = false }
price = { lower = 0, upper = 100, step = 1 }
month = { values = [1, 2, 3], nulls = false }
code = { lower = 0, upper = 1999, nulls = false }
[views.cheap]
sql = "SELECT * FROM toys WHERE price < 10"
"""


class Asked:
    """What a cell gave: its value, what it printed, and what was shown, as text and as HTML."""

    def __init__(self, shell, code):
        with capture_output() as held:
            self.outcome = shell.run_cell(code, store_history=True)
        self.value = self.outcome.result
        self.printed = held.stdout + held.stderr
        shown = [dict(output.data) for output in held.outputs]
        if self.value is not None:  # what a front end would be given; this shell prints the text alone
            shown.append(shell.display_formatter.format(self.value)[0])
        self.text = "\n".join([held.stdout, *(data.get("text/plain", "") for data in shown)])
        self.html = "\n".join(data.get("text/html", "") for data in shown)
        self.pictures = [data["image/png"] for data in shown if "image/png" in data]
        self.error = self.outcome.error_in_exec

    def refused(self, kind, *words):
        """The message, where the cell was refused with that error and nothing looks like a traceback."""
        assert isinstance(self.error, kind), (self.error, self.printed)
        for trace in ("Traceback", "ipython-input", "Input In", 'File "', "----> "):
            assert trace not in self.printed
        message = self.printed.strip().splitlines()[0]
        assert f"{type(self.error).__name__}\x1b[0m: " in message
        for word in words:
            assert word in self.printed, (word, self.printed)
        return message


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    main, excepthook, displayhook = sys.modules["__main__"], sys.excepthook, sys.displayhook
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    made = InteractiveShell.instance(config=config)
    made.run_cell("%load_ext dpsql")
    yield made
    made.run_line_magic("unload_ext", "dpsql")
    made.reset(new_session=False)
    InteractiveShell.clear_instance()
    sys.modules["__main__"], sys.excepthook, sys.displayhook = main, excepthook, displayhook


@pytest.fixture
def ask(shell):
    return lambda code: Asked(shell, code)


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with the table and its policy."""
    with duckdb.connect(str(tmp_path / "toys.duckdb")) as duck:
        duck.execute(
            "CREATE TABLE toys AS SELECT ['red', 'red', 'blue', '<b>green</b>'][i % 4 + 1] AS colour, "
            f"(i * 7) % 101 AS price, i % 3 + 1 AS month, i % 2000 AS code FROM range({ROWS}) r(i)"
        )
    (tmp_path / "toys.toml").write_text(POLICY)
    return tmp_path


@pytest.fixture
def toys(ask, place):
    """``ask``, connected."""
    ask("%dpsql connect toys.toml toys.duckdb")
    return ask
