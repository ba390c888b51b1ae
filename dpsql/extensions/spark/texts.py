"""Text, and lists of constants: where a value lies among constants, and what stands at a place.

Texts come capped (``dpsql.sql.values.row_cost``), so that none ends a task or takes its time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from dpsql.extensions.spark.values import OPERATOR, Expr, Rule, kinds, refusal, short, spark_type, string, wholes

_LONGEST_CONSTANT = 200  # characters that are looked for at every place of a text
_LONGEST_SET = 50  # characters that TRIM takes away


def listed(numbers: Sequence[int], kind: str) -> Expr:
    """A list of constants from the least to the largest, as text that is split and cast once, in the optimiser."""
    text = f"CAST(split('{','.join(map(str, numbers))}', ',') AS ARRAY<{spark_type(kind)}>)"
    return Expr(text, f"{kind}[]", min(numbers), max(numbers))


def list_value(of: Sequence[Expr]) -> Expr:
    """Text constants, as one text that is split once, in the optimiser."""
    if not all(isinstance(e.constant, str) and e.type == "VARCHAR" and "\0" not in e.constant for e in of):
        raise refusal("a list is not one of text constants", "plan again")
    return Expr(f"split({string(chr(0).join(str(e.constant) for e in of)).text}, {string(chr(0)).text})", "VARCHAR[]")


def text_place(of: Sequence[Expr]) -> Expr:
    """A place from 1 on in a list that is as long as a power of two, by the hash of a text (``lookup``)."""
    value, size = of
    kinds([value], "VARCHAR", "a place among texts")
    return Expr(f"(hash({value.text}) & {size.high - 1}) + 1", "INTEGER", 1, size.high, rank=OPERATOR)


def list_extract(of: Sequence[Expr]) -> Expr:
    found, place = of
    kind = found.type.removesuffix("[]")
    wholes([place], "a place")
    # NULL outside the list, and at the places 0 and below that no list has here.
    return Expr(f"get({found.text}, CAST({place.inner} - 1 AS INT))", kind, found.low, found.high)


def like(value: Expr, pattern: str) -> Expr:
    """LIKE without Spark's own, whose regular expressions step back: one long text could take years.

    Between two % a piece that fits at its first place need not fit at a later one, so that each is looked for once, in
    an atomic group: the time is at worst that of comparing every place of the text with the pattern.
    """
    kinds([value], "VARCHAR", "LIKE")
    first, *rest = pattern.split("%")
    plain = "_" not in pattern
    if plain and not rest:
        return Expr(f"{value.inner} = {string(pattern).text}", "BOOLEAN", rank=3)
    if plain and not any(rest):
        return Expr(f"startswith({value.text}, {string(first).text})", "BOOLEAN")
    if plain and not any([first, *rest[:-1]]):
        return Expr(f"endswith({value.text}, {string(rest[-1]).text})", "BOOLEAN")
    middle = [piece for piece in rest[:-1] if piece]
    if plain and not first and not rest[-1] and len(middle) == 1:
        return searched("contains({0}, {1})", "BOOLEAN")([value, string(middle[0])])
    _check_short(pattern, "a LIKE pattern", _LONGEST_CONSTANT)
    found = "(?s)\\A" + _expression(first) + "".join(f"(?>.*?{_expression(piece)})" for piece in middle)
    found += f".*{_expression(rest[-1])}\\z" if rest else "\\z"
    return Expr(f"{value.inner} RLIKE {string(found).text}", "BOOLEAN", rank=3)


def _check_short(constant: str, what: str, most: int) -> None:
    """Time is the text's length times the constant's, so that one row could take hours."""
    if len(constant) > most:
        raise refusal(f"{what} has more than {most} characters", "write a shorter one")


def _runs(piece: str) -> list[str]:
    """A piece of a pattern as runs of ``_`` and of other characters."""
    return re.findall("_+|[^_]+", piece)


def _expression(piece: str) -> str:
    """A piece of a pattern between two % as Java's regular expression."""
    return "".join(
        f".{{{len(run)}}}" if run[0] == "_" else "".join(f"\\x{{{ord(character):x}}}" for character in run)
        for run in _runs(piece)
    )


def searched(template: str, kind: str) -> Rule:
    """A constant looked for at every place of a text."""

    def rule(of: Sequence[Expr]) -> Expr:
        value, wanted = of
        kinds(of, "VARCHAR", "a function of text")
        if not isinstance(wanted.constant, str):
            # A row with two long texts would take time in proportion to their product.
            raise refusal("a text is looked for that is no constant", "write one")
        _check_short(wanted.constant, "a text that is looked for", _LONGEST_CONSTANT)
        text = template.format(value.text, wanted.text)
        return Expr(text, kind, *((0, 2**32) if kind == "BIGINT" else ()))

    return rule


def of_text(template: str, kind: str, count: int) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        kinds(of, "VARCHAR", "a function of text")
        if len(of) != count:
            raise refusal("a function of text has too many arguments", "leave them out")
        text = template.format(*(e.text for e in of))
        return Expr(text, kind, *((0, 2**32) if kind == "BIGINT" else ()))

    return rule


def concat(of: Sequence[Expr]) -> Expr:
    """``concat`` of SQL: NULLs are left out."""
    kinds(of, "VARCHAR", "concat")
    return Expr(f"concat_ws('', {', '.join(e.text for e in of)})", "VARCHAR")


def join(of: Sequence[Expr]) -> Expr:
    """``||``: NULL where one side is."""
    kinds(of, "VARCHAR", "||")
    a, b = of
    return Expr(f"concat({a.text}, {b.text})", "VARCHAR")


def substring(of: Sequence[Expr]) -> Expr:
    value, start, *length = of
    if not isinstance(start.constant, int) or not all(isinstance(e.constant, int) for e in length):
        raise refusal("SUBSTRING takes constants", "write whole numbers")
    if start.constant < 1 or any(int(e.constant or 0) < 0 for e in length):
        raise refusal("SUBSTRING counts from the end in another way there", "start from 1 or later")
    rest = length[0].text if length else str(2**31 - 1)
    return Expr(f"substring({value.text}, {start.constant}, CAST({rest} AS INT))", "VARCHAR")


def end(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        value, count = of
        if not isinstance(count.constant, int) or count.constant < 0:
            raise refusal(f"{function.upper()} takes a constant count there", "write a whole number from 0 on")
        return Expr(f"{function}({value.text}, {min(count.constant, 2**31 - 1)})", "VARCHAR")

    return rule


# What DuckDB trims where no characters are named: the separators of Unicode's class Zs.
_SPACES = "".join(map(chr, (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))


def trim(side: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        kinds(of, "VARCHAR", "TRIM")
        chars = of[1] if len(of) == 2 else string(_SPACES)
        if not chars.constant:
            raise refusal("TRIM takes constant characters", "write at least one")
        _check_short(str(chars.constant), "TRIM's second text", _LONGEST_SET)
        return short(Expr(f"trim({side} {chars.text} FROM {of[0].text})", "VARCHAR"))

    return rule


def cased(function: str) -> Rule:
    def rule(of: Sequence[Expr]) -> Expr:
        kinds(of, "VARCHAR", function)
        plain, other = _cases(function)
        return short(Expr(f"translate({of[0].text}, {string(plain).text}, {string(other).text})", "VARCHAR"))

    return rule


@functools.cache
def _cases(function: str) -> tuple[str, str]:
    """Characters that DuckDB's lower or upper changes, and what they become: one for one, whatever stands beside."""
    import duckdb

    plain, other = [], []
    with duckdb.connect() as con:
        rows = con.execute(
            f"SELECT chr(i), {function}(chr(i)) FROM (SELECT CAST(unnest(range(1, 1114112)) AS INTEGER) AS i) "  # noqa: S608
            "WHERE i NOT BETWEEN 55296 AND 57343"
        ).fetchall()
    for before, after in rows:
        if before != after:
            if len(after) != 1:
                raise refusal(f"{function.upper()} makes several characters of one", "compare the text as it is")
            plain.append(before)
            other.append(after)
    return "".join(plain), "".join(other)
