"""A tool's query of the catalogue in DuckDB's dialect: the text changed token by token, without a tree.

DuckDB reads most of PostgreSQL's syntax. What it lacks are the schema pg_catalog, types such as regclass, operators
with a schema and collations by name; what does not fit is left for DuckDB to refuse.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from dpsql.common.quoting import string
from dpsql.extensions.server.catalogue.pg_tables import columns

_TOKENS = re.compile(
    r"""(?P<text>\b[eE]'(?:\\.|''|[^'\\])*'|'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")*"|[^\W\d][\w$]*)"""
    r"""|(?P<blank>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<number>\d[\w.]*)|(?P<sign>::|[-+*/<>=~!@#%^&|`?]+|.)""",
    re.DOTALL,
)
# Types of PostgreSQL that are another type here.
_TYPES = {
    **{"name": "VARCHAR", '"char"': "VARCHAR", "char": "VARCHAR", "cstring": "VARCHAR", "regproc": "VARCHAR"},
    **{"regprocedure": "VARCHAR", "regoper": "VARCHAR", "regrole": "VARCHAR", "information_schema": "VARCHAR"},
    **{"oid": "BIGINT", "xid": "BIGINT", "cid": "BIGINT", "oidvector": "BIGINT[]", "int2vector": "SMALLINT[]"},
    **{"_text": "VARCHAR[]", "sql_identifier": "VARCHAR", "cardinal_number": "INTEGER", "character_data": "VARCHAR"},
    **{
        "yes_or_no": "VARCHAR",
        "regnamespace": "BIGINT",
        "regtype": "BIGINT",
        "regclass": "BIGINT",
        "bpchar": "VARCHAR",
    },
}
_LOOKED_UP = {"regclass": "to_regclass", "regtype": "to_regtype", "regnamespace": "to_regnamespace"}
_SHOWN = {"regclass": "regclass_name({})", "regtype": "format_type({}, NULL)", "regnamespace": "regnamespace_name({})"}
_MATCHES = {"~": ("~", ""), "!~": ("!~", ""), "~*": ("~", "(?i)"), "!~*": ("!~", "(?i)")}
_RENAMED = {"json_build_object": "json_object", "jsonb_build_object": "json_object", "json_agg": "json_group_array"}
_BARE = frozenset({"current_schema", "current_catalog", "current_user", "session_user", "current_role", "user"})
_FUNCTIONS = ("typreceive", "typsend", "typinput", "typoutput", "typmodin", "typmodout", "typanalyze", "typsubscript")
# A text that names none of these is no question to the catalogue.
_VIEWS = frozenset({"pg_database", "pg_tables", "pg_views"})
_LONGEST = 64_000
"""Characters of a question to the catalogue."""
_HINTS = re.compile(
    r"\bpg_|information_schema\b|regclass\b|regtype\b|\bcurrent_|\bsession_user\b|\bversion\s*\(|\bset_config\s*\("
    r"|_privilege\s*\(|_description\s*\(|\bformat_type\s*\(|\bto_reg|\binet_|\btxid_|\bgetdatabaseencoding\b",
    re.IGNORECASE,
)
_FROM = re.compile(r"\b(?:from|join)\b", re.IGNORECASE)


class _Token:
    """A token: what kind it is, and its text as it is to be written."""

    __slots__ = ("kind", "text")

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind == "name" else self.text


def tokens_of(text: str) -> list[_Token]:
    """The tokens of a text, blanks and comments left out."""
    found = [_Token(match.lastgroup or "sign", match[0]) for match in _TOKENS.finditer(text)]
    return [token for token in found if token.kind != "blank"]


def asks_catalogue(text: str) -> bool:
    """Whether a query reads the catalogue alone: each table after FROM and JOIN is one of its, or made in the query.

    None of a text that is longer than any tool's.
    """
    return len(text) <= _LONGEST and _asks(text)


@lru_cache(maxsize=1000)
def _asks(text: str) -> bool:
    if not _HINTS.search(text):
        return False
    tokens = tokens_of(text)
    known, made = columns(), {"generate_series", "unnest", "lateral", "rows", "only", "_pg_expandarray"}
    made |= {t.word for t, after in pairwise(tokens) if t.kind == "name" and after.word == "as"}
    for at, token in enumerate(tokens):
        if token.word not in ("from", "join") or not _FROM.fullmatch(token.text):
            continue
        if at and tokens[at - 1].word == "distinct":  # IS DISTINCT FROM
            continue
        words = [held.word.strip('"') for held in tokens[at + 1 : at + 4]]
        if not words or words[0] == "(" or words[:2] in (["pg_catalog", "."], ["information_schema", "."]):
            continue
        if not (words[0] in known or words[0] in made or words[0] in _VIEWS or words[1:2] == ["("]):
            return _within_call(tokens, at)
    return True


def _within_call(tokens: list[_Token], at: int) -> bool:
    """Whether a FROM stands inside of a function's parentheses, as in EXTRACT(year FROM x)."""
    depth = 0
    for place in range(at - 1, 0, -1):
        text = tokens[place].text
        depth += (text == ")") - (text == "(")
        if depth < 0:
            return tokens[place - 1].word in ("extract", "substring", "trim", "overlay", "position")
    return False


@lru_cache(maxsize=1000)
def in_duckdb(text: str) -> str:
    """The text of a query of the catalogue as DuckDB reads it."""
    tokens = _qualified(tokens_of(text))
    first = next((number for number, token in enumerate(tokens) if token.word == "cast"), len(tokens))
    out: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        after = tokens[at + 1] if at + 1 < len(tokens) else _Token("sign", "")
        if token.text == "::" or (token.word == "as" and at > first and _closes_cast(tokens, at)):
            at = _cast(tokens, at, out)
            continue
        if token.word == "collate" and after.kind == "name":
            at += 2
            continue
        if token.text in _MATCHES and after.kind == "text":
            sign, flag = _MATCHES[token.text]
            # Anywhere in the text, whether the operator asks for the whole of it or not.
            out += [sign, string(f"(?s){flag}.*(?:{_content(after.text)}).*")]
            at += 2
            continue
        if token.word in ("any", "all") and _is_array(tokens, at):
            items = ", ".join(
                string(item.strip().strip('"'))
                for item in re.findall(r'"[^"]*"|[^{},]+', _content(tokens[at + 2].text))
            )
            out += [token.text, "(", f"[{items}]::VARCHAR[]"]
            at += 2
        elif token.word in _RENAMED and after.text == "(":
            out.append(_RENAMED[token.word])
        elif token.word in _BARE and after.text != "(" and (not out or out[-1] != "."):
            out.append("current_user()" if token.word == "user" else f"{token.word}()")
        elif token.word in _FUNCTIONS and out[-5:-2] == [".", "oid", "="]:
            # The oid of a function; such columns hold its name here.
            out[-4] = "proname"
            out.append(token.text)
        elif token.word in _FUNCTIONS and after.text in ("=", "!=", "<>") and tokens[at + 2 : at + 3]:
            zero = tokens[at + 2].text == "0"
            out += [token.text, after.text, "'-'" if zero else tokens[at + 2].text]
            at += 2
        else:
            out.append(token.text)
        at += 1
    return _tight(out)


def _qualified(tokens: list[_Token]) -> list[_Token]:
    """Without the schema pg_catalog, and with info for information_schema; operators without their schema."""
    found: list[_Token] = []
    at = 0
    while at < len(tokens):
        word, dot = tokens[at].word.strip('"'), tokens[at + 1].text if at + 1 < len(tokens) else ""
        named = tokens[at].kind == "name"
        if named and dot == "." and word == "pg_catalog":
            at += 2
        elif named and dot == "." and word == "information_schema":
            found.append(_Token("name", "info"))
            at += 1
        elif named and word == "operator" and dot == "(":
            close = next((i for i in range(at, len(tokens)) if tokens[i].text == ")"), len(tokens) - 1)
            found.append(tokens[close - 1])
            at = close + 1
        else:
            found.append(tokens[at])
            at += 1
    return found


def _is_array(tokens: list[_Token], at: int) -> bool:
    """Whether a text such as '{a,b}' stands in parentheses after ANY: an array as clients send one."""
    after = tokens[at + 1 : at + 4]
    return len(after) == 3 and [after[0].text, after[2].text] == ["(", ")"] and after[1].text.startswith("'{")


def _closes_cast(tokens: list[_Token], at: int) -> bool:
    """Whether AS, somewhere after a CAST, stands before a type of PostgreSQL's that ends one."""
    after = tokens[at + 1 : at + 3]
    return len(after) == 2 and after[0].word in _TYPES and after[1].text == ")"


def _cast(tokens: list[_Token], at: int, out: list[str]) -> int:
    """Write a cast; the place after it."""
    kind = tokens[at + 1] if at + 1 < len(tokens) else _Token("sign", "")
    if kind.word not in _TYPES:
        out.append(tokens[at].text)
        return at + 1
    listed = [token.text for token in tokens[at + 2 : at + 4]] == ["[", "]"]
    stop = at + (4 if listed else 2)
    before = tokens[at - 1]
    if kind.word == "regproc" and before.kind == "text":
        out[-1] = string(_content(before.text).removeprefix("pg_catalog."))
        return stop
    if kind.word in _LOOKED_UP and not listed:
        if before.kind == "text":
            out[-1] = f"{_LOOKED_UP[kind.word]}({out[-1]})"
            if tokens[at].word == "as":
                out += [tokens[at].text, "BIGINT"]
            return stop
        if before.kind == "name" and tokens[at].text == "::":
            name = [out.pop()]
            while len(out) > 1 and out[-1] == ".":
                name = [out[-2], out[-1], *name]
                del out[-2:]
            out.append(_SHOWN[kind.word].format("".join(name)))
            return stop
    out += [tokens[at].text, _TYPES[kind.word] + "[]" * listed]
    return stop


def _content(text: str) -> str:
    """What a string literal holds."""
    inner = text[text.index("'") + 1 : -1].replace("''", "'")
    return re.sub(r"\\(.)", r"\1", inner) if text[0] in "eE" else inner


def _tight(parts: list[str]) -> str:
    """The parts with blanks between them, but for dots between names."""
    out: list[str] = []
    for part in parts:
        if out and not (part in (".", "(", "[") or out[-1] == "."):
            out.append(" ")
        out.append(part)
    return "".join(out)
