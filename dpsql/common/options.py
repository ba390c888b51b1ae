"""The options of dpsql in one table, which the command line, notebooks, servers, SQL's OPTIONS and calls read.

A line is an option: how it is spelled, with its value; the surfaces that have it; what it means. Two blanks separate
these, and an indented line goes on with the one above. "[name]" begins a group, which a command can take whole.
``-o --output FILE`` is an option, ``name NAME`` an argument, an option without a value a switch, ``--no-x`` a switch
that makes x false. After the value "!" says that it must be given, "?" that it may be left out, "*" that the option may
be repeated (an argument: that there may be several), "+" that it takes several. ``:kind=default`` names one of
``KINDS``, and ``/x,y`` the options that contradict it. Extensions have rows too (``dpsql.registry.added_options``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpsql.errors import DataError

CALL, RUN, COMMAND, CELL, CONNECT, SETTING, CLAUSE = "call", "run", "command", "cell", "connect", "setting", "clause"
"""Keywords of ``plan``, of ``run`` alone; ``dpsql``; ``%%dpsql``, and its connect; a server's SET; SQL's OPTIONS."""
FORMATS = ("table", "csv", "json", "parquet")

_ROWS = f"""
[budget]
--epsilon E:amount  call command cell setting clause  budget of the batch: pure, or with the policy's delta
--delta D:amount  call command cell setting clause  with epsilon: (epsilon, delta)-differential privacy
--rho R:amount/epsilon,delta  call command cell setting  instead of both: zero-concentrated differential privacy
[level]
--alpha A:level=0.05  call command cell  1 - confidence of the intervals (default: 0.05)
[population]
--population sample|rows:population  command cell setting  whether intervals of what is computed from releases are about
    a population that the rows are a sample of, or about the rows
[batch]
file FILE?  command  SQL file of the batch, or - for stdin
--sql TEXT  command  the batch itself, instead of FILE
[search]
--tolerance X:number=0.001  call  the certified gap to the least error that planning aims at, for Gaussian noise
--time-limit SECONDS:number  call command  stop searching for a better strategy after that
--progress FUNCTION  call  hears how far planning is
--objective balanced|total|max:text  call command  what is least: the mean over the columns of their squared error
    beside asking each alone, the total squared error, or the largest error of an answer (default: balanced; with a
    wanted error, the budget)
--method auto|adaptive|sparse|mwem|mwem-strategy|NAME:text=auto  call command  auto: the strategy of least error, known
    before anything is spent; adaptive: for counts over many columns, marginals chosen by the data in rounds, errors
    estimated only; sparse: for one COUNT by groups of which most are empty, those that noise does not hide; mwem,
    mwem-strategy: the papers' way, over few cells; NAME: a strategy of the catalogue, such as haar or eigen-design
--no-earlier  call command  plan as if nothing had been released before
--rounds N:whole  call command  rounds of adaptive and mwem; chosen by simulation if left out
--rows-per-unit N:whole  call command  at most N rows of a unit count, where the policy lets more count; errors fall
--max-error [NAME=]E*/relative  call command  instead of a budget: spend the least that gives each number +-E (or
    those of result NAME; repeatable)
--relative R:number  call command  the same, +-R times what the policy's expected_rows let expect
--simultaneous  call command  with a wanted error: all intervals together, not each alone
--expect --expected NAME=ROWS*  call command  with a wanted error: rows that a group of result NAME is guessed to have
    (repeatable)
[places]
--policy FILE!  command connect  policy file (TOML); or set DPSQL_POLICY
--database FILE  command connect  DuckDB file with the private tables; not needed where the policy names it, or sources;
    or set DPSQL_DATABASE
--ledger FILE  command connect  ledger file; default: beside the policy
--releases FILE  command connect  releases file; default: beside the policy
--anchor FILE  command connect  file kept elsewhere that detects an older copy of the ledger put back
[cursor]
--epsilon-per-release E:amount  connect  budget of a batch that names none: pure, or with the policy's delta
--delta-per-release D:amount  connect  the delta of that budget
--rho-per-release R:amount  connect  that budget, in a rho policy
[run]
--fresh  command run  measure and pay again even where the ledger has the answers
--no-errors  command run  leave the _stderr, _low and _high columns out
--estimates unbiased|feasible|whole|auto:text=unbiased  command run  feasible: the nearest numbers that a table could
    have, none negative; whole: whole numbers, too; auto: feasible where expected_rows lets expect less error of them.
    Free, also of an earlier run of the same batch
--lower-at-zero  run  intervals of counts, and of sums that no row lowers, begin at 0 or above
--label TEXT  command connect run  who asks or why, written beside the charge
[scanning]
--memory-limit SIZE  command  the most memory of a scan, such as 4GB
--scan-timeout SECONDS:number  command  stop a scan after that; it is charged
[delivered]
--format {"|".join(FORMATS)}:text  command  how to show it; default: by the suffix of --output, else table; json is the
    document of --json
-o --output FILE  command  write to FILE; a folder, such as out/, for a file each of several results
[of-growing-tables]
--today DATE  command  the day that decides which periods of a growing table are over (default: the day that it is, UTC)
[of-the-clause]
--privacy-unit-column NAME  clause  the unit, which must be the one that the policy declares
--max-groups-contributed N:whole  clause  most groups of one unit; not fewer than its rows that the policy lets count
[of-all]
--json  command  print one JSON document instead of text
--quiet  command  print results only, no progress or remarks
"""


def _between(low: float, high: float, text: str) -> Fraction:
    value = Decimal(text)
    if not low <= value < high or value.adjusted() < -400:  # a fraction of millions of digits would take all memory
        raise ValueError
    return Fraction(value)


_SWITCH = {"on": True, "true": True, "1": True, "yes": True} | dict.fromkeys(("off", "false", "0", "no"), False)
_POPULATION = {"sample": "sample", "rows": None}

KINDS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "amount": (str, "a number", "0.1"),  # as it was written: budgets are exact
    "level": (lambda text: float(_between(1e-300, 1, text)), "1 - confidence, between 0 and 1", "0.05"),
    "share": (lambda text: _between(0.5, 1, text), "a number from 0.5 to below 1", "0.95"),
    "number": (float, "a number", "0.5"),
    "seconds": (lambda text: float(_between(0, 1e6, text)), "seconds, 0 for no limit", "60"),
    "whole": (int, "a whole number", "5"),
    "periods": (lambda text: text if text == "endless" else int(text), "a number of periods, or endless", "120"),
    "switch": (lambda text: _SWITCH[text.lower()], "on or off", ""),
    "population": (lambda text: _POPULATION[text.lower()], "sample or rows", ""),
    "text": (str, "a text", ""),
}
"""How the text of a value is read, what to write where it cannot be, and an example of it."""


@dataclass(frozen=True)
class Option:
    """An option, or an argument of a command, which has no ``flags``.

    ``name``: its keyword in Python. ``value``: how help shows it, "" of a switch. ``many``: "!", "?", "*", "+" or "".
    """

    name: str
    flags: tuple[str, ...]
    value: str
    many: str
    kind: str
    default: object
    against: tuple[str, ...]
    surfaces: frozenset[str]
    group: str
    meaning: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that there are, where they are listed; after a bar NAME stands for any other."""
        return tuple(word for word in self.value.split("|") if word != "NAME") if "|" in self.value else ()

    def spelled(self, surface: str) -> str:
        """What a user of that surface writes."""
        if surface == SETTING:
            return f"dpsql.{self.name}"
        if surface in (CALL, RUN, CLAUSE) or not self.flags:
            return self.name
        return next(flag for flag in self.flags if flag.startswith("--"))

    def example(self, surface: str) -> str:
        """The option with a value that it may have."""
        value = KINDS[self.kind][2] or (self.choices or (self.value,))[0]
        return f"{self.spelled(surface)} {'= ' * (surface in (SETTING, CLAUSE))}{value}"

    def read(self, text: str, surface: str) -> Any:
        """The value that a text says. Raises DataError, in the words of the surface."""
        reader, words, example = KINDS[self.kind]
        try:
            return reader(text)
        except (ValueError, KeyError, ArithmeticError):
            such = f", such as {self.example(surface)}" if example else ""
            raise DataError(f"{self.spelled(surface)} is {text[:40]!r}; write {words}{such}") from None


def option_of(spelled: str, meaning: str, surfaces: str = COMMAND, group: str = "") -> Option:
    """The option that a line of the table, or of a command, says."""
    words = spelled.split()
    flags = tuple(word for word in words if word.startswith("-"))
    rest, _, against = "".join(words[max(1, len(flags)) :]).partition("/")
    rest, _, kind = rest.partition(":")
    kind, _, default = kind.partition("=")
    value = rest.rstrip("!?*+")
    return Option(
        flags[-1].removeprefix("--").removeprefix("no-").replace("-", "_") if flags else words[0],
        *(flags, value, rest[len(value) :], kind or "text"),
        KINDS[kind][0](default) if default else None,
        *(tuple(against.split(",") if against else ()), frozenset(surfaces.split()), group, meaning),
    )


def rows(text: str) -> Iterator[Option]:
    """The options of a table in the language above."""
    group = ""
    for line in re.sub(r"\n +", " ", text).strip().split("\n"):
        if line.startswith("["):
            group = line[1:-1]
        else:
            spelled, surfaces, meaning = line.split("  ", 2)
            yield option_of(spelled, meaning, surfaces, group)


TABLE = tuple(rows(_ROWS))


def of_commands(name: str) -> tuple[Option, ...]:
    """The options of commands of that name, or of a group; with "?" none of them need be given."""
    plain = name.removesuffix("?")
    shown = [option for option in TABLE if COMMAND in option.surfaces and plain in (option.name, option.group)]
    return tuple(replace(option, many="") if plain != name and option.many == "!" else option for option in shown)


def on(surface: str, options: Iterable[Option] = TABLE) -> dict[str, Option]:
    """The options of a surface, by each way to spell them there."""
    flags = surface in (COMMAND, CELL, CONNECT)
    there = [option for option in options if surface in option.surfaces]
    return {name: option for option in there for name in (option.flags if flags else (option.spelled(surface),))}
