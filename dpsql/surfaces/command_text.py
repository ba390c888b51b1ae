"""The small language in which commands are written, and the class that holds some of them.

A line a command, and below it its options and arguments, in the language of ``dpsql.common.options`` without surfaces:
how it is spelled, two blanks, what it does. "+ search places" takes options of the table there, by name or group. An
indented line goes on with the one above. A command that both the kernel and an extension write has the options of both.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from dpsql.common.options import Option, of_commands, option_of

Action: TypeAlias = Callable[[argparse.Namespace], int | None]


@dataclass(frozen=True)
class Commands:
    """Commands of the kernel or of one extension.

    ``text``: the commands in the language above. ``actions``: what each does, a function by its name
    ``"package.module:name"``, which is imported when it is asked for. ``groups``: of the first word of commands of two
    words, a short and a long description. ``instead``: by command and option, what is done in place of the command's
    own action where the option is given. ``shown``: under which head of the help ("ask", "keep" or "serve") the first
    words of commands stand; under "keep" where nothing says it.
    """

    text: str
    actions: Mapping[str, str]
    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    instead: Mapping[tuple[str, str], str] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[str, str, list[Option]]]:
        """Each command, what it does, and its options and arguments."""
        for block in re.sub(r"\n +", " ", self.text).split("\ndpsql ")[1:]:
            (name, said), *lines = [line.split("  ", 1) for line in block.split("\n") if line]
            options: list[Option] = []
            for spelled, *meaning in lines:
                if meaning:
                    options.append(option_of(spelled, *meaning))
                else:
                    options += [option for word in spelled.split()[1:] for option in of_commands(word)]
            yield name, said, options
