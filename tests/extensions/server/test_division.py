"""Quotients of whole numbers, which PostgreSQL would truncate, carry a notice; others carry none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_world import server
from wire_client import Client, served

TRUNCATED = [
    "SELECT age / 10 AS d, COUNT(*) AS n FROM visits GROUP BY age / 10",
    "SELECT COUNT(*) / 2 AS n FROM visits",
    "SELECT SUM(age) / COUNT(*) AS mean FROM visits",
    "SELECT COUNT(*) AS n FROM visits WHERE (age + 1) / CAST(2 AS INTEGER) < 5",
    "SELECT 7/2 AS half",
    "SELECT age / 10 AS decade FROM ages",
]
OTHERS = [
    "SELECT age // 10 AS d, COUNT(*) AS n FROM visits GROUP BY age // 10",
    "SELECT SUM(cost) / 2 AS s FROM visits",
    "SELECT COUNT(*) / 2.0 AS n FROM visits",
    "SELECT 7.0/2 AS half, '1/2' AS text -- 3/4",
    "SELECT n / 10 AS tenth FROM ages",
    "WITH t AS (SELECT age * 0.5 AS age FROM ages) SELECT age / 2 AS quarter FROM t",
]


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with served(lambda: server(tmp_path_factory.mktemp("division"))) as running, Client(running.port) as client:
        client.ask("SET dpsql.epsilon = 5")
        client.ask("CREATE VIEW ages AS SELECT age, COUNT(*) AS n FROM visits GROUP BY age")
        yield client


@pytest.mark.parametrize("text", [*TRUNCATED, *OTHERS])
@pytest.mark.few(every=4)
def test_a_quotient_that_postgresql_would_truncate_carries_a_notice(ann: Client, text: str) -> None:
    said = ann.ask(text)
    assert not said.errors
    notices = [notice for notice in said.notices if "PostgreSQL would truncate" in notice]
    assert len(notices) == (text in TRUNCATED)
    assert all("//" in notice for notice in notices)
