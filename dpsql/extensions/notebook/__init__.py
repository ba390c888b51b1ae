"""The notebook: ``%dpsql`` and ``%%dpsql`` of IPython. A surface: it reads options, calls a connection, shows results.

``load`` is what ``%load_ext dpsql`` calls. Whatever a user did wrong is one clean message (``plain``), never a
traceback; values of Python variables enter SQL as literals (``line``); footers say what was spent (``results``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsql.common.options import rows
from dpsql.registry import Extension

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


EXTENSION = Extension(
    "notebook",
    "cells of SQL in Jupyter and IPython: %%dpsql",
    requires="notebook",
    options="dpsql.extensions.notebook:OPTIONS",
)
OPTIONS = tuple(
    rows("""
-c --connection NAME  cell  ask this connection
-o --output NAME  cell  keep the results as a Python variable, and show them
--dry-run  cell  show the plan with its errors; spends nothing
--save NAME  cell  keep the SELECT as the released view dp.NAME; or write the results to a .csv, .parquet or .json file
-h --help  cell  show all of this
--as NAME  connect  what the connection is called
""")
)


def load(shell: InteractiveShell) -> None:
    """Give ``shell`` (an InteractiveShell) the magics, the way results are shown, and completion. Twice is as once."""
    # Imported here: the classes need IPython, and whoever imports this package for its values need not have it.
    from dpsql.extensions.notebook import completion, magics, results

    found = magics.register(shell)
    results.register(shell, found.look)
    completion.register(shell, found)


def unload(shell: InteractiveShell) -> None:
    """Take back what ``load`` did. Connections stay open."""
    from dpsql.extensions.notebook import completion, magics, results

    completion.unregister(shell)
    results.unregister(shell)
    magics.unregister(shell)
