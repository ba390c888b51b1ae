"""Its place puts this folder on the import path, so that tests can import ``helpers``.

Strategies are kept in a temporary folder here, never in the user's: subprocesses inherit the variable.
"""

import os
import shutil
import tempfile


def pytest_configure(config):
    folder = tempfile.mkdtemp(prefix="dpsql-strategies-")
    os.environ["DPSQL_CACHE"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
