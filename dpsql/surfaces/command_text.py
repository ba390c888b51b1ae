"""The small language in which commands are written, and the class that holds some of them.

A line a command, and a line each of its options and arguments: names and value, two blanks, what it does. "FILE?" may
be left out, "NAME*" may be several, "FILE!" must be given; an argument has its name in the code before it. An indented
line goes on with the one above. A command that both the kernel and an extension write has the options of both.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Action: TypeAlias = Callable[[argparse.Namespace], int | None]


@dataclass(frozen=True)
class Commands:
    """Commands of the kernel or of one extension.

    ``text``: the commands in the language above. ``actions``: what each does, a function by its name
    ``"package.module:name"``, which is imported when it is asked for. ``groups``: of the first word of commands of two
    words, a short and a long description. ``details``: what argparse is told of an option besides its line.
    ``instead``: by command and option, what is done in place of the command's own action where the option is given.
    """

    text: str
    actions: Mapping[str, str]
    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    instead: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
        """Each command, what it does, and its options and arguments: how each is spelled and what it does."""
        for block in re.sub(r"\n +", " ", self.text).split("\ndpsql ")[1:]:
            (name, said), *lines = [line.split("  ", 1) for line in block.split("\n") if line]
            yield name, said, [(spelled, meaning) for spelled, meaning in lines]


def seconds(text: str) -> float:
    """The value of --timeout. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give one such as 60, or 0 for no limit")
    return value


def horizon(text: str) -> int | str:
    """A number of periods, or that there is no last one."""
    if text == "endless":
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of periods; give one such as 120, or endless")


def number(text: str) -> float:
    """A float, which argparse calls a number in its messages."""
    return float(text)
