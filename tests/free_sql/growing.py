"""Statements that grow: random nested calls of the functions of text and lists, from a seed."""

from __future__ import annotations

import random

COLUMNS = ("g", "w")
"""Text columns that a generated expression may name."""


def grown(draw: random.Random, depth: int, most: int) -> str:
    """A text expression of nested calls with constants up to ``most``."""
    if depth == 0:
        return draw.choice([*COLUMNS, "'a'", "'é'", "''", "'a,b'", f"repeat('b', {draw.randint(0, most)})"])
    inner = lambda: grown(draw, depth - 1, most)  # noqa: E731
    number = draw.randint(1, most)
    return draw.choice(
        [
            lambda: f"repeat({inner()}, {number})",
            lambda: f"lpad({inner()}, {number}, 'é')",
            lambda: f"rpad({inner()}, {number}, 'xy')",
            lambda: f"replace({inner()}, 'a', {inner()})",
            lambda: f"replace({inner()}, 'b', 'ccc')",
            lambda: f"regexp_replace({inner()}, '.', '\\0\\0', 'g')",
            lambda: f"regexp_replace({inner()}, '', {inner()}, 'g')",
            lambda: f"({inner()} || {inner()})",
            lambda: f"concat({inner()}, {inner()}, 5)",
            lambda: f"concat_ws(',', {inner()}, {inner()})",
            lambda: f"concat_ws({inner()}, 'a', {inner()}, 5, 6, 7)",
            lambda: f"concat_ws('--', range({number}), {inner()})",
            lambda: f"array_to_string(range({number}), '{'ab' * number}')",
            lambda: f"upper({inner()})",
            lambda: f"reverse({inner()})",
            lambda: f"translate({inner()}, 'ab', 'éü')",
            lambda: f"hex({inner()})",
            lambda: f"bin({inner()})",
            lambda: f"to_base64(encode({inner()}))",
            lambda: f"url_encode({inner()})",
            lambda: f"regexp_escape({inner()})",
            lambda: f"to_json({inner()})::VARCHAR",
            lambda: f"json_object('k', {inner()})::VARCHAR",
            lambda: f"printf('%{number}d %s', 5, {inner()})",
            lambda: f"format('{{:>{number}}} {{}}', {inner()}, {inner()})",
            lambda: f"format('{{0}}{{0}}{{0}}', {inner()})",
            lambda: f"strftime(DATE '2024-02-03', '%c %A ' || repeat('%B', {number}))",
            lambda: f"bar({number}, 0, {number}, {number})",
            lambda: f"left({inner()}, {number})",
            lambda: f"substring({inner()}, 2, {number})",
            lambda: f"array_to_string(range({number}), ', ')",
            lambda: f"array_to_string(list_transform(range({number}), lambda i: {inner()}), ',')",
            lambda: f"array_to_string([x || {inner()} for x in ['p', 'q']], ';')",
            lambda: f"array_to_string(string_split({inner()}, 'a'), '----')",
            lambda: f"array_to_string(list_resize([{inner()}], {number}, 'z'), ',')",
            lambda: f"array_to_string(flatten([range({number}), [1]]), 'xx')",
            lambda: f"array_to_string(list_zip([{inner()}], range({number})), ',')",
            lambda: f"array_to_string(regexp_extract_all({inner()}, '.'), '--')",
            lambda: f"list_string_agg([{inner()}, {inner()}])",
            lambda: f"range({number})::VARCHAR",
            lambda: f"[{inner()}, {inner()}]::VARCHAR",
            lambda: f"{{'a': {inner()}}}::VARCHAR",
            lambda: f"(CASE WHEN {inner()} > 'b' THEN {inner()} ELSE {inner()} END)",
            lambda: f"coalesce(NULL, {inner()})",
            lambda: f"repeat('ab', length({inner()}))",
            lambda: f"repeat('ab', least(length({inner()}), {number})::INTEGER)",
            lambda: f"(SELECT max(y || y) FROM (SELECT {inner()} AS y))",
            lambda: f"split_part({inner()}, 'a', 1)",
            lambda: f"repeat(to_base({number}, 2), 2)",
            lambda: f"chr({200 + number})",
            lambda: f"encode({inner()})::VARCHAR",
            lambda: f"({number} * {number} + {number})::VARCHAR",
            lambda: f"json_extract_string(json_array({inner()}), '$[0]')",
        ]
    )()
