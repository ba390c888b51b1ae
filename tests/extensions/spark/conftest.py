"""One session of Spark for all tests of this folder; a table of DuckDB beside the same table of Spark."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from spark_tables import new_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on this machine with two threads. Tasks are tried four times, as on a cluster."""
    pytest.importorskip("pyspark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, of versions of pandas and of sockets
        made = new_session(tmp_path_factory.mktemp("warehouse"))
        yield made
        made.stop()
