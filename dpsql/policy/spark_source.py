"""``source = "spark:catalog.schema.table"``: the name of a table of a Spark catalog."""

from __future__ import annotations

import re

from dpsql.errors import PolicyError
from dpsql.policy.values import shown

PREFIX = "spark:"
_PART = r"(?:`((?:[^`]|``)+)`|([^`.\s]+))"
_NAME = re.compile(rf"{_PART}\.{_PART}\.{_PART}")


def is_spark(source: object) -> bool:
    """Whether a source is a Spark table, not files."""
    return isinstance(source, str) and source.lower().startswith(PREFIX)


def spark_parts(where: str, source: str) -> tuple[str, str, str]:
    """Catalog, schema and table of a source; a part with a dot stands in backticks. PolicyError for anything else.

    All three are named, so that no setting of a session decides which table is read.
    """
    found = _NAME.fullmatch(source[len(PREFIX) :])
    if found is None:
        raise PolicyError(
            f'{where} is {shown(source)}; write catalog, schema and table, such as "spark:spark_catalog.default.visits"'
        )
    parts = [found[n] or found[n - 1].replace("``", "`") for n in (2, 4, 6)]
    catalog, schema, table = parts
    if schema.lower() == "global_temp":
        raise PolicyError(f"{where} names a temporary view of Spark; name a table of a catalog")
    return catalog, schema, table
