"""The parse of a query: DuckDB's tree of it (``json_serialize_sql``) and how it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import duckdb

from dpsql.errors import SQLError

from . import limits
from .copies import copied_by_parser

Node: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Macro:
    """A macro of DuckDB: its parameters in lower case, and the expression that is written for a call of it."""

    parameters: tuple[str, ...]
    body: Node


Macros: TypeAlias = "Mapping[str, Mapping[int, Macro]]"
"""Macros by name and by how many parameters they have."""


def check_length(sql: str) -> None:
    """Raise SQLError for a text that is too long, or that DuckDB's parser makes too long, before anything reads it."""
    if len(sql) > limits.LONGEST:
        raise SQLError(f"the query has {len(sql):,} characters, at most {limits.LONGEST:,} are read", code="too-large")
    copied = copied_by_parser(sql)
    if copied > limits.MOST_COPIES:
        raise SQLError(
            f"DuckDB would copy {copied:,} words of the query, the operand of CASE to each WHEN and a named window to "
            f"each OVER, at most {limits.MOST_COPIES:,} are copied; nest and name fewer",
            code="too-large",
        )


def parsed(sql: str, connection: duckdb.DuckDBPyConnection) -> list[Node]:
    """DuckDB's parse of each SELECT of a text. Raises SQLError for a text that is too long or no SELECT."""
    check_length(sql)
    tree: dict[str, Any] = {}
    try:
        row = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
        tree = json.loads(row[0]) if row is not None else {}
    except RecursionError:
        raise SQLError("the query nests too deeply; flatten it", code="too-large") from None
    except duckdb.InterruptException:
        raise
    except duckdb.Error:  # as of syntax, which whoever runs it says
        return []
    return [one["node"] for one in tree.get("statements", ())] if not tree.get("error") else []


def children(node: object) -> list[Node]:
    """The expressions right below a node, through whatever lists and fields lie between; queries are not entered."""
    nodes: list[Node] = []
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for one in values:
        if isinstance(one, dict) and isinstance(one.get("class"), str):
            if one["class"] != "TYPE":
                nodes.append(one)
        elif not (isinstance(one, dict) and str(one.get("type", "")).endswith("_NODE")):
            nodes += children(one)
    return nodes


def descend(node: Node, kind: str) -> Iterator[Node]:
    """The node and all expressions below it that are of a class."""
    if node.get("class") == kind:
        yield node
    for part in children(node):
        yield from descend(part, kind)


def without_places(node: Any) -> Any:
    """A node that says nothing of where it stands in a text."""
    if isinstance(node, list):
        return [without_places(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {key: without_places(one) for key, one in node.items() if not key.startswith("query_location")}


def column_references(node: Node) -> Iterator[list[str]]:
    """The parts of the name of each column below a node, in lower case; queries are entered."""
    todo: list[object] = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if one.get("class") == "COLUMN_REF":
                yield [str(name).lower() for name in one["column_names"]]
            todo += list(one.values())


def query_in(node: Node) -> Node:
    """The query that a node holds."""
    while not str(node.get("type", "")).endswith("_NODE"):
        queries = [one for one in (node.get(key) for key in ("node", "query_node", "query", "subquery")) if one]
        node = queries[0]
    return node


def name_of(node: Node) -> str:
    if node["class"] == "COLUMN_REF":
        return str(node["column_names"][-1])
    return str(node.get("function_name") or "")


def type_names(node: Node) -> Iterator[str]:
    """The names of a type and of the types in it."""
    name = node.get("type_name") or node.get("id")
    if name:
        yield str(name).lower()
    for one in node.get("children") or ():
        if one.get("class") == "TYPE":
            yield from type_names(one)
    info = node.get("type_info") or {}
    inner: list[Any] = [info.get("child_type"), *[one.get("second", one) for one in info.get("child_types") or ()]]
    for one in inner:
        if isinstance(one, dict):
            yield from type_names(one)


def array_elements(node: Node) -> float:
    """The elements of all arrays of a type, one for a type without arrays."""
    sizes = [node.get("type_info", None) or {}, *(node.get("children") or ())]
    size_of_array = next((size for one in sizes if (size := _array_size(one))), 1)
    info = node.get("type_info") or {}
    inner = [one for one in node.get("children") or () if one.get("class") == "TYPE"]
    inner += [one for one in [info.get("child_type")] if one]
    inner += [one.get("second", one) for one in info.get("child_types") or ()]
    return size_of_array * prod(array_elements(one) for one in inner)


def _array_size(node: Node) -> float:
    literal = node.get("literal") or node.get("value") or {}
    written = str(node.get("size") or literal.get("text") or literal.get("value") or "")
    return float(written) if written.isdecimal() else 0.0


def word(kind: str) -> str:
    return kind.removesuffix("_NODE").replace("_", " ")
