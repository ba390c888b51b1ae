"""The notebook: ``%dpsql`` and ``%%dpsql`` of IPython. A surface: it reads options, calls a connection, shows results.

``load`` is what ``%load_ext dpsql`` calls. Whatever a user did wrong is one clean message (``plain``), never a
traceback; values of Python variables enter SQL as literals (``line``); footers say what was spent (``results``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load(shell: InteractiveShell) -> None:
    """Give ``shell`` (an InteractiveShell) the magics, the way results are shown, and completion. Twice is as once."""
    # Imported here: the classes need IPython, and who imports dpsql.surfaces.notebook for its values need not have it.
    from dpsql.surfaces.notebook import completion, magics, results

    found = magics.register(shell)
    results.register(shell, found.look)
    completion.register(shell, found)


def unload(shell: InteractiveShell) -> None:
    """Take back what ``load`` did. Connections stay open."""
    from dpsql.surfaces.notebook import completion, magics, results

    completion.unregister(shell)
    results.unregister(shell)
    magics.unregister(shell)
