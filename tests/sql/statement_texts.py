"""Random statements over the tables of ``batches``, in the user's text and in the oracle's."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import combinations

from batches import BOUNDS, HIDDEN, JOINS, Key, Pair, Scope, Statement, groups_of

_CONSTANTS = {
    "state": ["'NY'", "'CA'", "'XX'", "''"],
    "sex": ["'f'", "'m'", "''"],
    "age": ["-1", "0", "9", "10", "18", "29", "30", "2147483647", "-2147483648"],
    "kids": ["0", "1", "3", "127", "-128"],
    "day": ["DATE '2020-01-31'", "'2020-02-01'", "DATE '0001-01-01'", "'9999-12-31'::DATE"],
    "cost": ["0", "-10", "7.5", "30", "3.2", "1e300"],
    "price": ["0", "0.01", "-5", "5.01", "4.995"],
    "mass": ["0", "512", "1024.0", "-1"],
    "big": ["-9223372036854775808", "9223372036854775807", "0", "-7", "3000"],
    "note": ["'a'", "''", "'A'", "'it''s'", "'日本'"],
    "pid": ["1", "7", "40"],
    "seen": ["TIMESTAMP '2020-02-29 12:00:00'", "'2020-01-01'", "TIMESTAMP '9999-12-31 23:59:59.999999'"],
}
_PATTERNS = ["'a%'", "'%'", "'_'", "'%b%'", "''", "'N_'", "'%Y'", "'日%'", "'%''%'"]


def atom(scope: Scope, rng: random.Random) -> str:
    """A condition over one column or two; the same in both texts, as it is about raw values."""
    name = rng.choice(list(scope.columns))
    column = scope.raw(name)
    kind = rng.random()
    if kind < 0.1:
        return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
    if name == "flag":
        return rng.choice([column, f"NOT {column}", f"{column} IS NOT TRUE", f"{column} = false"])
    constant = rng.choice(_CONSTANTS[name])
    if name in {"note", "state", "sex"} and kind < 0.4:
        return f"{column} {rng.choice(['', 'NOT '])}LIKE {rng.choice(_PATTERNS)}"
    if kind < 0.5:
        listed = ", ".join(rng.sample(_CONSTANTS[name], rng.randint(1, 3)) + ["NULL"] * (rng.random() < 0.1))
        if rng.random() < 0.25 and name not in {"day", "seen"}:  # DuckDB takes no text for a date there
            return rng.choice([f"{column} = ANY([{listed}])", f"{column} <> ALL([{listed}])"])
        return f"{column} {rng.choice(['', 'NOT '])}IN ({listed})"
    if kind < 0.62:
        return f"{column} {rng.choice(['', 'NOT '])}BETWEEN {constant} AND {rng.choice(_CONSTANTS[name])}"
    if kind < 0.7:
        return f"{column} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {constant}"
    if kind < 0.72 and name not in {"day", "seen"} and "age" in scope.columns:
        rows = ", ".join(f"({rng.choice(_CONSTANTS[name])}, {rng.choice(_CONSTANTS['age'])})" for _ in range(2))
        return f"({column}, {scope.raw('age')}) {rng.choice(['', 'NOT '])}IN ({rows})"
    if kind < 0.76:
        typed = next((c for c in _CONSTANTS[name] if name not in {"day", "seen"} or c[0] in "DT"), constant)
        return f"coalesce({column}, {typed}) = {typed}"
    if kind < 0.8 and name in {"note", "state", "sex"}:
        return rng.choice([f"length({column}) > 1", f"lower({column}) = 'ny'", f"upper({column}) LIKE 'A%'"])
    if kind < 0.84 and {"age", "kids"} <= set(scope.columns):
        return f"{scope.raw('age')} > {scope.raw('kids')}"
    return f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {constant}"


def condition(scope: Scope, rng: random.Random, depth: int = 2) -> str:
    """A Boolean combination of atoms."""
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        return atom(scope, rng)
    if kind < 0.55:
        return f"NOT ({condition(scope, rng, depth - 1)})"
    if kind < 0.62:
        return f"({condition(scope, rng, depth - 1)}) IS {rng.choice(['TRUE', 'NOT FALSE', 'NULL'])}"
    parts = [condition(scope, rng, depth - 1) for _ in range(2)]
    return "(" + f" {rng.choice(['AND', 'OR'])} ".join(parts) + ")"


# -- what is read ------------------------------------------------------------------------------


def source(rng: random.Random, table: str) -> Scope:
    """The table, an alias of it, or one to three row-wise queries over it, as WITH or derived tables."""
    names = sorted({*_CONSTANTS, "flag"} - (set() if table in JOINS else {"pid"}))
    scope = Scope((JOINS.get(table, table), f"p_{table}"), [], {name: name for name in names}, joined=table in JOINS)
    if table not in JOINS and rng.random() < 0.2:
        scope = Scope((f"{table} AS z", f"p_{table} AS z"), [], scope.columns, {}, "z.")
    for depth in range(rng.choice([0, 0, 1, 1, 2, 3])):
        scope = _derived(scope, rng, depth)
    return scope


def _after(scope: Scope, where: str) -> str:
    """WHERE as it follows a FROM that may have one already, of a join by commas."""
    begun = " WHERE " in scope.source[0] and not scope.source[0].startswith("(")
    return where.replace(" WHERE ", " AND ", 1) if begun else where


def _derived(scope: Scope, rng: random.Random, depth: int) -> Scope:
    columns, keys, items = {}, {}, []
    if rng.random() < 0.25:
        columns, keys = dict(scope.columns), dict(scope.keys)
        items = [f"{scope.prefix}*" if scope.prefix else "*"]
    else:
        for name in scope.columns:
            if rng.random() < 0.1:
                continue
            kept = scope.columns[name]
            columns[name] = kept if rng.random() < 0.7 else rng.choice([f"{name}{depth}", f'"{name} {depth}"'])
            items.append(scope.raw(name) + ("" if columns[name] == kept else f" AS {columns[name]}"))
        for name, text in scope.keys.items():
            keys[name] = text
            items.append(f"{scope.prefix}{text}")
        fresh = [key for key in scope.available() if not key.column and key.name not in keys]
        if fresh and rng.random() < 0.5:
            key = rng.choice(fresh)
            keys[key.name] = f"d{depth}"
            items.append(f"{scope.key(key)} AS d{depth}")
    everything = len(items) == 1 and items[0].endswith("*")
    where = f" WHERE {condition(scope, rng)}" if rng.random() < 0.5 else ""
    hidden = [] if everything else [f"{scope.prefix}{name}" for name in HIDDEN]
    user = f"SELECT {', '.join(items)} FROM {scope.source[0]}{_after(scope, where)}"
    oracle = f"SELECT {', '.join([*items, *hidden])} FROM {scope.source[1]}{where}"
    alias = f"s{depth}"
    prefix = f"{alias}." if rng.random() < 0.3 else ""
    if rng.random() < 0.5:
        with_ = [*scope.with_, (f"{alias} AS ({user})", f"{alias} AS ({oracle})")]
        return Scope((alias, alias), with_, columns, keys, prefix, scope.joined)
    return Scope((f"({user}) AS {alias}", f"({oracle}) AS {alias}"), scope.with_, columns, keys, prefix, scope.joined)


# -- aggregates --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """An aggregate in both texts; ``exact``: both sides give the same double, so that it may decide an order."""

    user: str
    oracle: str
    exact: bool = True


def _filtered(scope: Scope, rng: random.Random, user: str, oracle: str) -> Pair:
    if rng.random() < 0.25:
        where = condition(scope, rng, 1)
        return f"{user} FILTER (WHERE {where})", f"{oracle} FILTER (WHERE pad IS NULL AND ({where}))"
    return user, f"{oracle} FILTER (WHERE pad IS NULL)"


def _summand(scope: Scope, rng: random.Random) -> Pair:
    known = [name for name in BOUNDS if name in scope.columns]
    name = rng.choice(known)
    kind = rng.random()
    plain = scope.raw(name), scope.hidden(name, "c")
    if kind < 0.45:
        return plain
    if kind < 0.75:
        default = rng.choice(["", " ELSE 0", " ELSE 1"])
        first, second = condition(scope, rng, 1), condition(scope, rng, 1)
        two = rng.choice(["", f" WHEN {second} THEN 2"])
        return tuple(f"CASE WHEN {first} THEN {text}{two}{default} END" for text in plain)  # type: ignore[return-value]
    whole = [n for n in ("age", "kids") if n in scope.columns]
    if kind < 0.85 or not whole:
        form = rng.choice(["{0} * 2", "{0} + 1", "3 - {0}", "coalesce({0}, 1)"])
        return form.format(plain[0]), form.format(plain[1])
    other = rng.choice(whole)
    form = rng.choice(["{0} + {1}", "{0} * {1}", "{0} - 2 * {1}"])
    return form.format(plain[0], scope.raw(other)), form.format(plain[1], scope.hidden(other, "c"))


def linear(scope: Scope, rng: random.Random) -> Number:
    """COUNT, COUNT_IF or SUM in one of its forms."""
    kind = rng.random()
    if kind < 0.3:
        user, oracle = _filtered(scope, rng, "count(*)", "count(*)")
    elif kind < 0.45:
        column = scope.raw(rng.choice(list(scope.columns)))
        user, oracle = _filtered(scope, rng, f"count({column})", f"count({column})")
    elif kind < 0.6 or not set(BOUNDS) & set(scope.columns):
        where = condition(scope, rng)
        user, oracle = _filtered(scope, rng, f"count_if({where})", f"count_if({where})")
    else:
        inside = _summand(scope, rng)
        user, oracle = _filtered(scope, rng, f"sum({inside[0]})", f"sum({inside[1]})")
        if rng.random() < 0.3:
            user = f"coalesce({user}, 0)"
    return Number(user, f"coalesce({oracle}, 0)::DOUBLE")


def number(scope: Scope, rng: random.Random, *, exact: bool = False) -> Number:
    """A linear number, a combination of some, or a formula over them."""
    kind = rng.random()
    one = linear(scope, rng)
    if kind < 0.55:
        return one
    if kind < 0.75:
        two = linear(scope, rng)
        form = rng.choice(["{0} + {1}", "{0} - {1}", "2 * ({0}) - {1}", "{0} + {1} * 3 - 1", "-({0}) / 4", "100 - {0}",
                           "({0} + {1}) / 2", "({0})::DOUBLE * 0.5"])  # fmt: skip
        return Number(form.format(one.user, two.user), form.format(one.oracle, two.oracle))
    known = [name for name in BOUNDS if name in scope.columns]
    if exact or not known:
        return one
    return _formula(scope, rng, rng.choice(known))


_DESCENDING = "percentile_{}({}) WITHIN GROUP (ORDER BY {{0}} DESC)"


def _formula(scope: Scope, rng: random.Random, name: str) -> Number:
    """AVG, a variance, a ratio or a quantile; over nothing each is NULL."""
    kind, column, clamped = rng.random(), scope.raw(name), scope.hidden(name, "c")
    if "pid" in scope.columns and rng.random() < 0.3:
        unit = scope.raw("pid")
        counted = unit if rng.random() < 0.6 else f"CASE WHEN {condition(scope, rng, 1)} THEN {unit} END"
        inside = f"count(DISTINCT {counted})"
        user, oracle = _filtered(scope, rng, inside, inside)
        return Number(user, f"{oracle}::DOUBLE", False)
    told = [n for n in ("state", "note", "age", "big", "day", "price") if n in scope.columns]
    if told and rng.random() < 0.12:
        inside = f"count(DISTINCT {scope.raw(rng.choice(told))})"
        user, oracle = _filtered(scope, rng, inside, inside)
        return Number(user, f"{oracle}::DOUBLE", False)
    if kind < 0.35:
        user, oracle = _filtered(scope, rng, f"avg({column})", f"avg({clamped})")
        return Number(user, oracle, False)
    if kind < 0.5:
        function = rng.choice(["var_pop", "stddev_pop"])
        user, oracle = _filtered(scope, rng, f"{function}({column})", f"{function}({clamped})")
        return Number(user, oracle, False)
    if kind < 0.65:
        part = condition(scope, rng, 1)
        form = rng.choice(["{0} / {1}", "100.0 * {0} / {1}", "{0} / nullif({1}, 0)", "1 - {0} / {1}"])
        real = " FILTER (WHERE pad IS NULL)"
        texts = ((f"count_if({part})", "count(*)"), (f"coalesce(count_if({part}){real}, 0)", f"count(*){real}"))
        user, oracle = (f"CASE WHEN {bottom} > 0 THEN {form.format(top, bottom)} END" for top, bottom in texts)
        return Number(user, oracle, False)
    if kind < 0.8:
        user = f"sum({column}) / count({column})"
        oracle = f"sum({clamped}) FILTER (WHERE pad IS NULL) / nullif(count({clamped}) FILTER (WHERE pad IS NULL), 0)"
        return Number(user, f"({oracle})::DOUBLE", False)
    name = next((n for n in ("age", "kids", "big") if n in scope.columns and n != "big"), "")
    if not name:
        return linear(scope, rng)
    column, clamped = scope.raw(name), scope.hidden(name, "c")
    function = rng.choice(["median({0})", "min({0})", "max({0})", _DESCENDING.format("cont", 0.25),
                           _DESCENDING.format("disc", 0.4), "quantile_cont({0}, 0.25)"])  # fmt: skip
    user, oracle = _filtered(scope, rng, function.format(column), function.format(clamped))
    return Number(user, f"({oracle})::DOUBLE", False)


# -- SELECT over rows --------------------------------------------------------------------------


@dataclass
class _Core:
    """A SELECT with aggregates while it is made."""

    scope: Scope
    keys: list[Key]
    simple: bool  # one grouping set that holds every key
    clear: bool  # rows are told apart by the labels of their keys

    def shown(self, key: Key) -> Pair:
        return self.scope.key(key), f"{key.name}__g"

    def outer(self, rng: random.Random, *, exact: bool = True) -> Number:
        """A private number as part of outer SQL."""
        return number(self.scope, rng, exact=exact)


def _grouping(core: _Core, rng: random.Random, items: list[str]) -> Pair:
    """GROUP BY in both texts; ``items`` are the keys' texts or aliases."""
    if not core.keys:
        return "", ""
    both = [f"{key.name}__g, {key.name}__o" for key in core.keys]
    pairs = [(item, f"({inside})") for item, inside in zip(items, both, strict=True)]
    if core.simple:
        return f" GROUP BY {', '.join(items)}", f" GROUP BY {', '.join(both)}"
    kind = rng.choice(["ROLLUP", "CUBE", "SETS", "MARGINALS", "MIXED"])
    if kind == "SETS":
        chosen = [rng.sample(pairs, rng.randint(0, len(pairs))) for _ in range(rng.randint(1, 3))]
        chosen.append(pairs)
        user = ", ".join("(" + ", ".join(a for a, _ in part) + ")" for part in chosen)
        oracle = ", ".join("(" + ", ".join(b.strip("()") for _, b in part) + ")" for part in chosen)
        return f" GROUP BY GROUPING SETS ({user})", f" GROUP BY GROUPING SETS ({oracle})"
    if kind == "MARGINALS":
        order = rng.randint(1, len(pairs))
        parts = [part for size in range(1, order + 1) for part in combinations(both, size)]
        sets = ", ".join(f"({', '.join(part)})" for part in parts)
        return f" GROUP BY dp_marginals({order}, {', '.join(items)})", f" GROUP BY GROUPING SETS ({sets})"
    if kind == "MIXED" and len(pairs) > 1:
        (first, one), *rest = pairs
        user, oracle = ", ".join(a for a, _ in rest), ", ".join(b for _, b in rest)
        return f" GROUP BY {first}, CUBE ({user})", f" GROUP BY {one}, CUBE ({oracle})"
    word = "CUBE" if kind == "CUBE" else "ROLLUP"
    return (
        f" GROUP BY {word} ({', '.join(a for a, _ in pairs)})",
        f" GROUP BY {word} ({', '.join(b for _, b in pairs)})",
    )


def _together(keys: list[Key]) -> list[list[Key]]:
    """The keys, those that are functions of one column together."""
    found: dict[tuple[str, ...], list[Key]] = {}
    for key in keys:
        found.setdefault(key.needs if len(key.needs) == 1 else (key.name,), []).append(key)
    return list(found.values())


def _left(core: _Core, keys: list[Key], table: str, where: str) -> tuple[str, ...]:
    """The groups of keys that WHERE, here or in what is read, leaves."""
    scope = core.scope
    with_ = "WITH " + ", ".join(pair[0] for pair in scope.with_) + " " if scope.with_ else ""
    text = f"{scope.source[0]}{_after(scope, where)}"
    if "WHERE" not in with_ + text and len(keys) == 1:
        return keys[0].groups
    shown = ", ".join(f"{scope.key(key)} AS k{at}" for at, key in enumerate(keys))
    positions = ", ".join(str(at + 1) for at in range(len(keys)))
    statement = f"{with_}SELECT {shown}, count(*) AS n FROM {text} GROUP BY {positions}"
    return groups_of(keys, re.sub(rf"\b{table}\b", "rows_", statement) if table not in JOINS else statement)


def _padded(core: _Core, left: list[tuple[str, ...]]) -> str:
    """What the oracle reads: the rows, and one for each group that a row could be in."""
    source = core.scope.source[1]
    if not core.keys:
        return f"(SELECT *, NULL::BOOLEAN AS pad FROM {source})"
    groups = " CROSS JOIN ".join(
        f"(VALUES {', '.join(found)}) AS v{at}({', '.join(f'{key.name}__g, {key.name}__o' for key in keys)})"
        for at, (keys, found) in enumerate(zip(_together(core.keys), left, strict=True))
    )
    return f"(SELECT * FROM {source} UNION ALL BY NAME SELECT true AS pad, * FROM {groups})"


def _scalar(one: Number, two: Number, rng: random.Random) -> Pair:
    """A function of aggregates that only outer SQL can answer; both sides must agree to the last digit."""
    form = rng.choice([
        "round({0}, 0)", "abs({0})", "greatest({0}, {1})", "CASE WHEN {0} > 2 THEN 'many' ELSE 'few' END",
        "round(({0}) / 2)", "({0}) % 3", "({0}) > ({1})", "least({0}, 5) + 1", "floor(({0}) / 2)",
        "({0}) BETWEEN 1 AND ({1})",
        "(({0}) + 0)::VARCHAR || '!'", "CASE WHEN {0} = 0 THEN NULL ELSE sqrt(abs({1})) END",
    ])  # fmt: skip
    return form.format(one.user, two.user), form.format(one.oracle, two.oracle)


def _window(core: _Core, rng: random.Random) -> Pair:
    one = core.outer(rng)
    forms = ["sum({0}) OVER ()", "max({0}) OVER ()", "rank() OVER (ORDER BY {0} DESC)", "count(*) OVER ()",
             "dense_rank() OVER (ORDER BY {0})", "{0} - min({0}) OVER ()"]  # fmt: skip
    user_key = oracle_key = ""
    if core.keys and core.simple:
        user_key, oracle_key = core.shown(rng.choice(core.keys))
        forms += ["sum({0}) OVER (PARTITION BY {1})", "count({0}) OVER (PARTITION BY {1} IS NULL)"]
        forms += ["sum({0}) FILTER (WHERE {1} IS NOT NULL) OVER ()"]
    form = rng.choice(forms)
    return form.format(one.user, user_key), form.format(one.oracle, oracle_key)


def _having(core: _Core, rng: random.Random) -> Pair:
    one = core.outer(rng)
    forms = ["({0}) > 1", "{0} BETWEEN 0 AND 20", "NOT ({0} = 0)", "{0} >= 0 OR {1}", "{0} < 10 AND {1}"]
    test = ("count(*) >= 0", "count(*) >= 0")
    if core.keys:
        user_key, oracle_key = core.shown(rng.choice(core.keys))
        form = rng.choice(["{0} IS NOT NULL", "{0} IS NULL", "coalesce({0} = {0}, false)"])
        test = form.format(user_key), form.format(oracle_key)
    form = rng.choice(forms)
    return form.format(one.user, test[0]), form.format(one.oracle, test[1])


def core(
    rng: random.Random, table: str, name: str, *, most: int = 3, plain: bool = False, nested: Pair | None = None
) -> Statement:
    """A SELECT over rows of ``table``. ``plain``: keys with clear labels and linear numbers only, for joins and unions.

    ``nested`` is a scalar subquery that HAVING may compare with.
    """
    scope = source(rng, table)
    known = [key for key in scope.available() if key.clear or not plain]
    keys = rng.sample(known, min(len(known), rng.randint(1 if plain else 0, most)))
    # Every group is a row of the result, and joins have the most axes.
    while _size(keys) > (40 if scope.joined else 200):
        keys.pop()
    simple = plain or not keys or rng.random() < 0.7
    made = _Core(scope, keys, simple, simple and all(key.clear for key in keys))
    items: list[tuple[str, str, str]] = []  # user, oracle, name
    texts = []
    for at, key in enumerate(keys):
        user, oracle = made.shown(key)
        label = user if key.column and not scope.prefix and rng.random() < 0.5 else f"g{at}"
        label = label if key.column or label.startswith("g") else f"g{at}"
        items.append((user if label == user else f"{user} AS {label}", oracle, label))
        # Positions and aliases are for plain GROUP BY alone.
        texts.append(rng.choice([user, str(at + 1), label]) if simple else user)
    shown = list(items)
    for at in range(rng.randint(1, 3)):
        one = number(scope, rng, exact=plain)
        shown.append((f"{one.user} AS n{at}", one.oracle, f"n{at}"))
    if not plain:
        if rng.random() < 0.3:
            pair = _scalar(made.outer(rng), made.outer(rng), rng)
            shown.append((f"{pair[0]} AS f0", pair[1], "f0"))
        if rng.random() < 0.25:
            pair = _window(made, rng)
            shown.append((f"{pair[0]} AS w0", pair[1], "w0"))
        if not simple and rng.random() < 0.5:
            key = rng.choice(keys)
            shown.append((f"GROUPING({scope.key(key)}) AS b0", f"GROUPING({key.name}__g)", "b0"))
    others = [f"{key.name}__o IS DISTINCT FROM 'outside'" for key in keys]
    group, oracle_group = _grouping(made, rng, texts)
    if simple and keys and rng.random() < 0.15 and not any(user.startswith(("f0", "w0")) for user, _, _ in shown):
        group = " GROUP BY ALL"
    user_tail, oracle_tail, ordered, distinct = _tail(made, rng, shown, nested, plain, others)
    where = condition(scope, rng) if rng.random() < 0.5 else ""
    filter_ = (f" WHERE {where}", f" WHERE (({where}) OR pad)") if where else ("", "")
    left = [_left(made, part, table, filter_[0]) for part in _together(keys)]
    others_of = {
        key.name
        for part, found in zip(_together(keys), left, strict=True)
        for key in part
        if key.other and any("'other'" in row for row in found)
    }
    alias = scope.prefix.removesuffix(".") or "rows_"
    with_ = ["WITH " + ", ".join(pair[i] for pair in scope.with_) + " " if scope.with_ else "" for i in (0, 1)]
    user_items = ", ".join(text for text, _, _ in shown)
    oracle_items = []
    columns = []
    for at, (_, oracle, label) in enumerate(shown):
        oracle_items.append(f"{oracle} AS {label}")
        columns.append(label.strip('"'))
        if at < len(keys) and not distinct and keys[at].name in others_of:
            oracle_items.append(f"{keys[at].name}__o = 'other' AS \"{label.strip(chr(34))}_other\"")
            columns.append(f"{label.strip(chr(34))}_other")
    user = (
        f"{with_[0]}SELECT {distinct}{user_items} FROM {scope.source[0]}{_after(scope, filter_[0])}{group}{user_tail}"
    )
    oracle = (
        f"{with_[1]}SELECT {distinct}{', '.join(oracle_items)} FROM {_padded(made, left)} AS {alias}{filter_[1]}"
        f"{oracle_group}{oracle_tail}"
    )
    return Statement(name, user, oracle, ordered, tuple(columns), tuple(label for _, _, label in items), plain)


def _size(keys: list[Key]) -> int:
    size = 1
    for key in keys:
        size *= len(key.values) + key.null + key.other
    return size


def _tail(
    made: _Core, rng: random.Random, shown: list[tuple[str, str, str]], nested: Pair | None, plain: bool,
    others: list[str],
) -> tuple[str, str, bool, str]:  # fmt: skip
    """HAVING, QUALIFY, ORDER BY and LIMIT in both texts; whether the order is total; DISTINCT."""
    user, oracle = "", ""
    held = list(others)
    if not plain and rng.random() < 0.35:
        having = _having(made, rng)
        if nested is not None and rng.random() < 0.7:
            one = made.outer(rng)
            having = f"{one.user} >= {nested[0]}", f"{one.oracle} >= {nested[1]}"
        user += f" HAVING {having[0]}"
        held.append(f"({having[1]})")
    if held:
        oracle += f" HAVING {' AND '.join(held)}"
    if plain:
        return user, oracle, False, ""
    if made.clear and made.keys and rng.random() < 0.12:
        one = made.outer(rng)
        names = [made.shown(key) for key in made.keys]
        lists = [", ".join(name[i] for name in names) for i in (0, 1)]
        user += f" QUALIFY row_number() OVER (ORDER BY {one.user} DESC, {lists[0]}) <= 3"
        oracle += f" QUALIFY row_number() OVER (ORDER BY {one.oracle} DESC, {lists[1]}) <= 3"
    distinct = "DISTINCT " if rng.random() < 0.06 and all(key.clear for key in made.keys) else ""
    if rng.random() < 0.5:
        return user, oracle, False, distinct
    labels = [label for _, _, label in shown]
    direction = rng.choice(["", " DESC", " ASC NULLS FIRST", " DESC NULLS LAST"])
    total = made.clear and len(made.keys) > 0
    kind = rng.random()
    if kind < 0.25:
        user, oracle = user + f" ORDER BY ALL{direction}", oracle + " ORDER BY " + ", ".join(
            f"{label}{direction}" for label in labels)  # fmt: skip
    elif kind < 0.6 or distinct:
        at = rng.randrange(len(labels))
        rest = list(range(len(made.keys)))
        user += f" ORDER BY {at + 1}{direction}" + "".join(f", {i + 1}" for i in rest)
        oracle += f" ORDER BY {labels[at]}{direction}" + "".join(f", {labels[i]}" for i in rest)
    else:
        one = made.outer(rng)
        user += f" ORDER BY {one.user}{direction}" + "".join(f", {made.scope.key(key)}" for key in made.keys)
        oracle += f" ORDER BY {one.oracle}{direction}" + "".join(f", {key.name}__g" for key in made.keys)
    if total and rng.random() < 0.5:
        limit = f" LIMIT {rng.randint(0, 5)}" + rng.choice(["", " OFFSET 1"])
        user, oracle = user + limit, oracle + limit
    return user, oracle, total, distinct
