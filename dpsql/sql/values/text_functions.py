"""Functions of text, as a table: DuckDB's name, what each argument may be, and what comes out.

Each is total on arguments whose bytes are capped (``row_cost``). RE2 reads a text once, with at most a step for each
sign of the pattern; the pattern is a constant, tried on an empty text beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isqrt, prod
from typing import TypeAlias

from sqlglot import exp

from dpsql.errors import InternalError
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.casts import to_text
from dpsql.sql.values.evaluation import evaluate_one
from dpsql.sql.values.literals import fold, is_constant
from dpsql.sql.values.row_cost import LONGEST_PART, LONGEST_SET, LONGEST_WANTED, capped, longest
from dpsql.sql.values.typed import MOMENTS, Typed, exact, gaps
from dpsql.workloads.expr.total import LONGEST_READ, MOST_STEPS, longest_searched
from dpsql.workloads.expr.value_sql import expression_of
from dpsql.workloads.expr.values import Call, CaseValue, Cast, Compared, Constant, Value

Inner: TypeAlias = Callable[[exp.Expr], Typed]
Role: TypeAlias = int | str
"""What an argument may be: a text of at most so many bytes, or a constant (``COUNT`` and so on)."""

COUNT, GROUP, PATTERN, OPTIONS, FORMAT, WORD = "count", "group", "pattern", "options", "format", "text to find or put"
_MOST_COUNT = 10**9
_MOST_PARTS = 100
_LEAST_READ = 64  # bytes: a pattern that could not be held against so short a text is refused


@dataclass(frozen=True)
class Rule:
    """A function: its name in DuckDB, its arguments by the parser's names for them, and the type of its result.

    The first ``least`` arguments must be given. ``skips``: NULLs are left out, as CONCAT does.
    """

    name: str
    takes: tuple[tuple[str, Role], ...]
    gives: str = "VARCHAR"
    least: int = 2
    skips: bool = False


_READ = ("this", LONGEST_READ)
_WANTED = (_READ, ("expression", LONGEST_WANTED))
_MATCHED = (_READ, ("expression", PATTERN))
_REPLACED = (_READ, ("expression", WORD), ("replacement", WORD))
RULES: Mapping[type[exp.Expr], Rule] = {
    exp.Lower: Rule("lower", (_READ,), least=1),
    exp.Upper: Rule("upper", (_READ,), least=1),
    exp.Length: Rule("length", (_READ,), "BIGINT", least=1),
    exp.StrPosition: Rule("strpos", (_READ, ("substr", LONGEST_WANTED)), "BIGINT"),
    exp.Substring: Rule("substring", (_READ, ("start", COUNT), ("length", COUNT))),
    exp.Left: Rule("left", (_READ, ("expression", COUNT))),
    exp.Right: Rule("right", (_READ, ("expression", COUNT))),
    exp.Trim: Rule("trim", (_READ, ("expression", LONGEST_SET)), least=1),
    exp.DPipe: Rule("||", (("this", LONGEST_PART), ("expression", LONGEST_PART))),
    exp.Concat: Rule("concat", (("expressions", LONGEST_PART),), least=1, skips=True),
    exp.StartsWith: Rule("starts_with", _WANTED, "BOOLEAN"),
    exp.EndsWith: Rule("ends_with", _WANTED, "BOOLEAN"),
    exp.Contains: Rule("contains", _WANTED, "BOOLEAN"),
    exp.Replace: Rule("replace", _REPLACED, least=3),
    exp.RegexpLike: Rule("regexp_matches", (*_MATCHED, ("flag", OPTIONS)), "BOOLEAN"),
    exp.RegexpFullMatch: Rule("regexp_full_match", (*_MATCHED, ("options", OPTIONS)), "BOOLEAN"),
    exp.SimilarTo: Rule("regexp_full_match", _MATCHED, "BOOLEAN"),
    exp.RegexpExtract: Rule("regexp_extract", (*_MATCHED, ("group", GROUP), ("parameters", OPTIONS))),
    exp.RegexpReplace: Rule("regexp_replace", (*_MATCHED, ("replacement", WORD), ("modifiers", OPTIONS)), least=3),
    exp.StrToTime: Rule("try_strptime", (("this", LONGEST_WANTED), ("format", FORMAT)), "TIMESTAMP"),
}
NAMED: Mapping[str, Rule] = {
    "prefix": RULES[exp.StartsWith],
    "suffix": RULES[exp.EndsWith],
    "try_strptime": RULES[exp.StrToTime],
    "strlen": Rule("strlen", (_READ,), "BIGINT", least=1),
}
"""Functions that the parser knows by name alone, with their arguments in order."""
# A regular expression without these signs is a choice of words, for which RE2 needs few states.
_WILD = frozenset(".[]\\*+?{}")
_WORDS = r"(?i)[\s\x0b]*(-?infinity|epoch)[\s\x0b]*"
_SIDES = {"": "trim", "BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}


def text_function(node: exp.Expr, inner: Inner) -> Typed | None:
    """The value of a function of text; None for any other node."""
    if isinstance(node, exp.SplitPart):
        return text_function(_split(node), inner)
    if isinstance(node, exp.Pad):
        return _padded(node, inner)
    rule, given = RULES.get(type(node)), node.args
    if isinstance(node, exp.Anonymous):
        rule = NAMED.get(str(node.this).lower())
        if rule is None or len(node.expressions) != len(rule.takes):
            return None
        given = {name: part for (name, _), part in zip(rule.takes, node.expressions, strict=True)}
    if rule is None:
        return None
    if isinstance(node, exp.RegexpLike) and "start" not in node.meta:
        # Versions of DuckDB differ in whether ~ matches the whole text.
        raise refuse(
            f"{shown(node)}: the operator ~ differs between versions of DuckDB; write regexp_matches or "
            "regexp_full_match",
            node,
            code="function",
        )
    if isinstance(node, exp.Trim):
        rule = replace(rule, name=_SIDES[str(node.args.get("position") or "")])
    arguments = [_argument(part, role, node, inner) for name, role in rule.takes for part in _listed(given.get(name))]
    if len(arguments) < rule.least:
        raise refuse("a function or operator of the statement lacks an operand; write it", node, code="syntax")
    if rule.takes[1:2] == (("expression", PATTERN),):
        arguments[0] = _matched(arguments, rule, node)
    if rule.name in {"replace", "regexp_replace"}:
        arguments[0] = _capped(arguments[0], _longest_replaced(arguments, rule), node)
    return _result(rule, arguments, node)


def _split(node: exp.SplitPart) -> exp.RegexpExtract:
    """split_part as a regular expression: DuckDB's own is a macro that makes a list of all parts."""
    given = [node.args.get(name) for name in ("delimiter", "part_index")]
    word, place = (fold(part) if isinstance(part, exp.Expr) and is_constant(part) else None for part in given)
    if not isinstance(word, str) or not word or not isinstance(place, int) or not 1 <= place <= _MOST_PARTS:
        raise refuse(
            f"{shown(node)} takes a constant to split at and the number of a part from 1 to {_MOST_PARTS}", node
        )
    sign = expression_of((character, False) for character in word).removeprefix("(?s)")
    before = f"(?:.*?{sign}){{{place - 1}}}" if place > 1 else ""
    pattern = exp.Literal.string(f"(?s)^{before}(.*?)(?:{sign}|$)")
    return exp.RegexpExtract(this=node.this.copy(), expression=pattern, group=exp.Literal.number(1))


def _padded(node: exp.Pad, inner: Inner) -> Typed:
    """lpad and rpad to a constant length, with constant characters."""
    given = [node.expression, node.args.get("fill_pattern")]
    size, fill = (fold(part) if isinstance(part, exp.Expr) and is_constant(part) else None for part in given)
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= LONGEST_WANTED:
        raise refuse(f"{shown(node)} takes a constant length between 0 and {LONGEST_WANTED:,}", node, code="function")
    if not isinstance(fill, str) or not 0 < len(fill.encode()) <= LONGEST_WANTED:
        raise refuse(f"{shown(node)} takes constant characters to fill up with", node, code="function")
    t = _capped(inner(node.this), LONGEST_READ, node)
    name = "lpad" if node.args.get("is_left") else "rpad"
    value = Call(name, (t.value, Constant(size, "INTEGER"), Constant(fill, "VARCHAR")), "VARCHAR")
    return Typed("text", value, nulls=t.nulls, gap=t.gap)


def _listed(given: object) -> list[exp.Expr]:
    return [part for part in (given if isinstance(given, list) else [given]) if isinstance(part, exp.Expr)]


def _argument(part: exp.Expr, role: Role, node: exp.Expr, inner: Inner) -> Typed:
    """An argument in its role: a text with a cap, or a constant."""
    if isinstance(role, int):
        argument = inner(part)
        if isinstance(node, exp.Concat) and argument.kind == "null":
            argument = Typed("text", Constant(None, "VARCHAR"))
        elif isinstance(node, exp.DPipe | exp.Concat) and argument.kind not in {"text", "null"}:
            argument = to_text(argument, node)  # DuckDB casts what is joined
        return _capped(argument, role, node)
    value = fold(part) if is_constant(part) else None
    if role in {COUNT, GROUP}:
        low, high = (-_MOST_COUNT, _MOST_COUNT) if role == COUNT else (0, 9)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(f"{shown(node)} takes whole-number constants between {low} and {high}", node)
        return Typed("exact", Constant(value, "BIGINT" if role == COUNT else "INTEGER"), nulls=False)
    if not isinstance(value, str):
        raise refuse(f"{shown(node)} takes one constant text for its {role}", node, code="function")
    if len(value.encode()) > LONGEST_WANTED:
        raise refuse(
            f"{shown(node)} takes a {role} of at most {LONGEST_WANTED:,} bytes; write a shorter one",
            node,
            code="too-large",
        )
    return Typed("text", Constant(value, "VARCHAR"), nulls=False)


def _capped(t: Typed, most: int, node: exp.Expr) -> Typed:
    """A text, NULL where it has more than ``most`` bytes."""
    if t.kind != "text":
        raise refuse(f"{shown(node)} takes text, not {t.words}; write CAST(... AS VARCHAR)", node, code="mixed-types")
    if isinstance(t.value, Constant) and longest(t.value) > most:
        raise refuse(
            f"{shown(node)} takes a constant of at most {most:,} bytes; write a shorter one", node, code="too-large"
        )
    value = capped(t.value, most)
    return t if value is t.value else replace(t, value=value, nulls=True, column=None)


def _matched(arguments: list[Typed], rule: Rule, node: exp.Expr) -> Typed:
    """The text that a pattern is held against, with a cap by the steps that the pattern may take for each byte."""
    pattern = _word(arguments[1])
    if r"\C" in pattern:
        # One byte of a character: some versions of DuckDB then make texts that end the whole instance.
        raise refuse(f"{shown(node)}: \\C matches a part of a character; write . for one", node, code="function")
    _tried(_on_empty(rule, arguments), node)
    weight, wild = _weight(pattern), not _WILD.isdisjoint(pattern)
    most = longest_searched(weight, wild=wild)
    if rule.name == "regexp_replace":
        # Replacing every match starts again after each of them, and may look at the rest of the text each time.
        most = min(most, isqrt(4 * MOST_STEPS // weight))
    if most < _LEAST_READ:
        raise refuse(
            f"{shown(node)} has a pattern that may take too many steps for a row; write fewer repetitions",
            node,
            code="too-large",
        )
    return _capped(arguments[0], most, node)


def _weight(pattern: str) -> int:
    """The steps that RE2 may take for each byte of a text: the pattern's length with its counted repetitions."""
    counts = [max(int(n) for n in bounds if n) for bounds in re.findall(r"\{(\d+)(?:,(\d*))?\}", pattern)]
    classes = 64 if re.search(r"\\[pP]", pattern) else 1
    return max(1, len(pattern)) * prod(max(1, count) for count in counts) * classes


def _longest_replaced(arguments: list[Typed], rule: Rule) -> int:
    """The bytes of a text that replacing makes at most ``LONGEST_PART`` bytes longer."""
    replacement = _word(arguments[2])
    size = len(replacement.encode())
    if rule.name == "replace":
        size_found = max(1, len(_word(arguments[1]).encode()))
        return LONGEST_READ if size <= size_found else LONGEST_PART * size_found // (size - size_found)
    # A match may be empty, before each byte and at the end; the parts of all matches are no longer than the text.
    references = replacement.count("\\")
    return LONGEST_READ if not size else (LONGEST_PART - size) // (size + references)


def _word(t: Typed) -> str:
    return str(t.value.value) if isinstance(t.value, Constant) else ""


def _tried(value: Value, node: exp.Expr) -> object:
    """A value of constants: whether DuckDB takes them is known before a row is read."""
    try:
        return evaluate_one(value, "text")
    except InternalError as error:
        message = str(error).split(": ", 2)[-1].splitlines()[0][:120]
        raise refuse(f"{shown(node)} is not run by DuckDB: {message}", node, code="function") from None


def _on_empty(rule: Rule, arguments: list[Typed]) -> Call:
    """The call on an empty text, outside of a TRY: DuckDB reads a pattern when it runs, in some versions before."""
    return replace(_call(rule, [Typed("text", Constant("", "VARCHAR")), *arguments[1:]]), bare=True)


def _call(rule: Rule, arguments: list[Typed]) -> Call:
    values: list[Value] = [t.value for t in arguments]
    return Call(rule.name, tuple(values), rule.gives)


def _result(rule: Rule, arguments: list[Typed], node: exp.Expr) -> Typed:
    value, nulls = _call(rule, arguments), not rule.skips and any(t.nulls for t in arguments)
    if rule.gives == "BIGINT":
        return exact(value, 0, LONGEST_READ, "integer", *arguments)
    if rule.gives == "BOOLEAN":
        return Typed("boolean", value, nulls=nulls)
    if rule.gives == "TIMESTAMP":
        kind = _tried(Call("typeof", (_on_empty(rule, arguments),), "VARCHAR"), node)
        if kind != "TIMESTAMP":
            raise refuse(
                f"{shown(node)} gives a {kind}; write a format without a time zone or nanoseconds",
                node,
                code="function",
            )
        # try_strptime takes the words for the first and the infinite moments for 1900-01-01; strptime does not.
        words = Call("regexp_full_match", (arguments[0].value, Constant(_WORDS, "VARCHAR")), "BOOLEAN")
        is_word = Compared(words, "=", Constant(True, "BOOLEAN"))
        moment = CaseValue(((is_word, Cast(arguments[0].value, "TIMESTAMP", tries=True)),), value, "TIMESTAMP")
        return Typed("timestamp", moment, low=MOMENTS[0], high=MOMENTS[1], gap=gaps(*arguments))
    return Typed("text", value, nulls=nulls, gap=gaps(*arguments))
