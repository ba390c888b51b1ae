"""The grammar of the command line: argparse's parser, made of the commands of the kernel and of every extension."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import dpsql
from dpsql.registry import extensions, look_elsewhere, missing, missing_owner, resolve
from dpsql.surfaces.command_text import Commands
from dpsql.surfaces.kernel_commands import COMMANDS

DESCRIPTION = """\
Differentially private answers to whole batches of SQL queries, with error bars before the
budget is spent. Start with `dpsql demo`."""

EXAMPLES = """\
examples:
  dpsql demo
  dpsql policy init --database visits.duckdb > visits.toml
  dpsql policy import visits.yaml > visits.toml
  dpsql policy check visits.toml --database visits.duckdb
  dpsql plan batch.sql --database visits.duckdb --policy visits.toml --epsilon 1
  dpsql run batch.sql --database visits.duckdb --policy visits.toml --epsilon 1
  dpsql release --policy visits.toml --workload "ranges(age)" --workload "marginals(2, sex, state)" --epsilon 1
  dpsql sql --policy visits.toml "SELECT * FROM by_state ORDER BY n DESC LIMIT 3"
  dpsql releases export --policy visits.toml --format csv -o tables/
  dpsql report release --policy visits.toml -o report.html
  dpsql budget --policy visits.toml
  dpsql ledger backup /backups/visits.ledger --policy visits.toml
  dpsql discover visits.diagnosis --policy visits.toml --database visits.duckdb --epsilon 0.1 --delta 1e-9
  dpsql synthesize visits --policy visits.toml --database visits.duckdb --columns state,age_group --epsilon 1
  dpsql synthesize visits --policy visits.toml --ask "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
  dpsql synthesize visits --policy visits.toml --rows 10000 -o visits.parquet
  dpsql audit visits.toml batch.sql --epsilon 1
  dpsql schedule add monthly.sql --policy visits.toml --name monthly --every period --epsilon 0.5
  dpsql release --due --policy visits.toml
  dpsql analyst add ann visits.toml --epsilon 0.5
  dpsql serve visits.toml --port 5432

exit codes: 0 done, 1 refused or failed (one line on stderr says why), 2 wrong usage, 130 interrupted
"""

_FROM_ENVIRONMENT = ("--policy", "--database")
_OF_ALL = (
    ("--json", "print one JSON document instead of text"),
    ("--quiet", "print results only, no progress or remarks"),
)


@cache
def commands() -> tuple[Commands, ...]:
    """The commands of the kernel, then those of each extension."""
    return COMMANDS, *(resolve(extension.commands) for extension in extensions() if extension.commands)


@cache
def groups() -> dict[str, tuple[str, str]]:
    """The first word of commands of two words: a short and a long description of each."""
    return {name: said for some in commands() for name, said in some.groups.items()}


def action_of(options: argparse.Namespace) -> str:
    """The name of the function that does what was asked for: that of an option that has its own, or the command's."""
    actions = {name: action for some in commands() for name, action in some.actions.items()}
    for some in commands():
        for (command, option), action in some.instead.items():
            if command == options.action and getattr(options, option) not in (None, False):
                return action
    return actions[options.action]


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The grammar of the command line; of the command alone that ``words`` begin with, if they begin with one."""
    first = words[0] if words and not words[0].startswith("-") else ""
    if first and not any(name.split()[0] == first for name, _, _ in grammar()):
        look_elsewhere()  # an extension that another distribution has may add it
        commands.cache_clear()
        grammar.cache_clear()
        groups.cache_clear()
    top = argparse.ArgumentParser(
        prog="dpsql",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=20),
    )
    if first and missing_owner(first) and not any(name.split()[0] == first for name, _, _ in grammar()):
        top.error(missing(first, f"has the command {first}"))
    top.add_argument("--version", action="version", version=f"dpsql {dpsql.__version__}")
    places = {"": top.add_subparsers(title="commands", metavar="COMMAND", required=True)}
    details = {option: more for some in commands() for option, more in some.details.items()}
    every = grammar()
    for full, said, lines in [one for one in every if _begin(words, one[0])] or every:
        group, _, name = full.rpartition(" ")
        if group not in places:
            short, long = groups()[group]
            made = places[""].add_parser(group, help=short, description=long)
            places[group] = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
        command = places[group].add_parser(name, help=said, description=said[0].upper() + said[1:] + ".")
        # Options that do not go together are wrong usage too: argparse's own message and exit code.
        command.set_defaults(action=full, usage=command.error)
        for spelled, meaning in lines:
            _add(command, spelled, meaning, details)
    return top


def _begin(words: Sequence[str], command: str) -> bool:
    return [*words[: len(command.split())]] == command.split()


@cache
def grammar() -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Commands, what they do, and their options and arguments: how each is spelled and what it does."""
    said: dict[str, str] = {}
    lines: dict[str, list[tuple[str, str]]] = {}
    for some in commands():
        for name, meaning, options in some.lines():
            said.setdefault(name, meaning)
            lines.setdefault(name, [*_OF_ALL]).extend(options)
    return [(name, said[name], lines[name]) for name in said]


def _add(command: argparse.ArgumentParser, spelled: str, said: str, details: Mapping[str, Mapping[str, Any]]) -> None:
    """An option or a place of a command, from its line of the grammar."""
    words = spelled.split()
    flags = [word for word in words if word.startswith("-")] or words[:1]
    given: dict[str, Any] = {"help": said, **details.get(flags[-1], {})}
    value = words[-1] if len(words) > len(flags) else ""
    known = os.environ.get(f"DPSQL_{flags[-1].removeprefix('--').upper()}") if flags[-1] in _FROM_ENVIRONMENT else None
    if known:
        given["default"] = known
    elif value.endswith("!"):
        given["required"] = True
    elif value.endswith(("?", "*")):
        given["nargs"] = value[-1]
    if value.endswith("|NAME"):
        given["metavar"] = value  # the library knows which names there are
    elif "|" in value:
        given["choices"] = value.split("|")
    elif value:
        given["metavar"] = value.rstrip("!?*")
    else:
        given.setdefault("action", "store_true")
    command.add_argument(*flags, **given)
