"""The grammar of the command line: argparse's parser, made of the commands of the kernel and of every extension."""

from __future__ import annotations

import argparse
import functools
import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import dpsql
from dpsql.common.options import COMMAND, Option, of_commands
from dpsql.errors import DataError, nearest
from dpsql.registry import extensions, look_elsewhere, missing, missing_owner, resolve
from dpsql.surfaces.command_text import Commands
from dpsql.surfaces.kernel_commands import COMMANDS

_HEAD = """\
usage: dpsql COMMAND ...    private answers to SQL, errors before spending
"""
_FOOT = """\
dpsql COMMAND --help says what it takes, dpsql --version which version this is
exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted
"""
_FROM_ENVIRONMENT = {"policy": "DPSQL_POLICY", "database": "DPSQL_DATABASE"}


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


def overview() -> str:
    """The help of all of dpsql, on one screen: who asks, who keeps the data, who serves."""
    first = {name.split()[0]: said for name, said, _ in grammar()} | {
        name: short for name, (short, _) in groups().items()
    }
    meanings = {word: re.split(r"[;:(]", said)[0].strip() for word, said in first.items()}
    place = {word: head for some in commands() for head, words in some.shown.items() for word in words.split()}
    text = _HEAD
    for head in ("ask", "keep", "serve"):
        words = [word for word in meanings if place.get(word, "keep") == head]
        for word in words:
            text += f"{head if word == words[0] else '':<7}{word:<12}{meanings[word]}\n"
    return text + _FOOT


class _Parser(argparse.ArgumentParser):
    """A parser with a help text of its own; of a command (``mixed``), whose arguments may stand among its options."""

    page = ""
    mixed = False

    def format_help(self) -> str:
        return self.page or super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.mixed:
            return super().parse_known_args(args, namespace)
        self.mixed = False
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.mixed = True


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The grammar of the command line; of the command alone that ``words`` begin with, if they begin with one.

    Wrong usage, with the nearest name, where they begin with no command, or name an option that it does not have.
    """
    first = words[0] if words and not words[0].startswith("-") else ""
    if first and not any(name.split()[0] == first for name, _, _ in grammar()):
        look_elsewhere()  # an extension that another distribution has may add it
        commands.cache_clear()
        grammar.cache_clear()
        groups.cache_clear()
    top = _Parser(prog="dpsql")
    top.page = overview()
    every = grammar()
    if first and missing_owner(first) and not any(name.split()[0] == first for name, _, _ in every):
        top.error(missing(first, f"has the command {first}"))
    top.add_argument("--version", action="version", version=f"dpsql {dpsql.__version__}")
    places = {"": top.add_subparsers(title="commands", metavar="COMMAND", required=True)}
    chosen = [one for one in every if _begin(words, one[0])]
    _check_command(top, words, [name for name, _, _ in chosen or every])
    for full, said, options in chosen or every:
        group, _, name = full.rpartition(" ")
        if group not in places:
            short, long = groups()[group]
            made = places[""].add_parser(group, help=short, description=long)
            places[group] = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
        command = places[group].add_parser(name, help=said, description=said[0].upper() + said[1:] + ".")
        # Options that do not go together are wrong usage too: argparse's own message and exit code.
        command.set_defaults(action=full, usage=command.error)
        command.mixed = True
        for option in options:
            _add(command, option)
        if chosen:
            _check_options(command, f"dpsql {full}", words, options)
    return top


def _begin(words: Sequence[str], command: str) -> bool:
    return [*words[: len(command.split())]] == command.split()


def _check_command(top: argparse.ArgumentParser, words: Sequence[str], names: Sequence[str]) -> None:
    """Wrong usage where the words name no command, or none of a group."""
    for at, word in enumerate(words[:2]):
        before = [name.split() for name in names if _begin(words[:at], " ".join(name.split()[:at]))]
        known = {name[at] for name in before if len(name) > at}
        if not known or word.startswith("-"):
            return
        if word not in known:
            top.error(f"there is no command {' '.join(words[: at + 1])[:60]}; {nearest(word, known)}")


def _check_options(
    command: argparse.ArgumentParser, where: str, words: Sequence[str], options: Sequence[Option]
) -> None:
    """Wrong usage where the words have an option that the command has not; the beginning of one is enough, as ever."""
    known = {flag for option in options for flag in option.flags} | {"--help", "-h"}
    for word in words[: words.index("--") if "--" in words else None]:
        name = word.partition("=")[0]
        if word.startswith("--") and " " not in word and not any(flag.startswith(name) for flag in known):
            command.error(f"{where} has no option {name[:60]}; {nearest(name, known)}")


@cache
def grammar() -> list[tuple[str, str, list[Option]]]:
    """Commands, what they do, and their options and arguments.

    Where the policy is an argument it is an option, too.
    """
    said: dict[str, str] = {}
    options: dict[str, list[Option]] = {}
    for some in commands():
        for name, meaning, added in some.lines():
            said.setdefault(name, meaning)
            options.setdefault(name, [*of_commands("of-all")]).extend(added)
    for every in options.values():
        if any(option.name == "policy" and not option.flags for option in every):
            every += of_commands("policy?")
    return [(name, said[name], options[name]) for name in said]


def _add(command: argparse.ArgumentParser, option: Option) -> None:
    """An option or an argument of a command."""
    given: dict[str, Any] = {"help": option.meaning, "default": option.default}
    flagged, many = bool(option.flags), option.many
    if "|" in option.value and "NAME" not in option.value:  # the library knows which names there are
        given["choices"] = option.choices
    elif option.value:
        given["metavar"] = option.value
    if option.name == "policy" and not flagged:
        given |= {"metavar": "POLICY", "nargs": "?"}
    elif many:
        ways: dict[str, dict[str, Any]] = {
            "!": {"required": True},
            "?": {"nargs": "?", "const": ""} if flagged else {"nargs": "?"},
            "*": {"action": "append", "default": []} if flagged else {"nargs": "*"},
            "+": {"nargs": "+", "action": "extend", "default": []},
        }
        given |= ways[many]
    usual = os.environ.get(_FROM_ENVIRONMENT.get(option.name, "")) if flagged else None
    if usual:
        given |= {"default": usual, "required": False}
    if flagged and not option.value:
        negative = option.flags[0].startswith("--no-")
        given |= {"action": "store_false" if negative else "store_true", "default": negative}
    elif option.kind != "text":
        given["type"] = functools.partial(_read, option)
    if flagged:
        command.add_argument(*option.flags, dest=option.name, **given)
    else:
        command.add_argument("as_policy" if option.name == "policy" else option.name, **given)


def _read(option: Option, text: str) -> object:
    try:
        return option.read(text, COMMAND)
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
