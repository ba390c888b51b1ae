"""Numbers, names and tables as a plan prints them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dpsql.release.text_table import cell_width


class Columns:
    """Columns of a terminal that the parts of a printed plan take."""

    ALL = 80
    LABEL, WORD, EXPLAINED = 11, 13, 13
    SHORTENED = 6  # of a name that is cut


def figure(value: float) -> str:
    """A number to three significant digits, without an exponent where it is short."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def releases_named(numbers: Sequence[int]) -> str:
    return f"release{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def budget_name(account: str) -> str:
    """A budget account as plans call it: "the pure budget", "the Gaussian budget"."""
    return f"{account.replace('gaussian', 'Gaussian')} budget"


def aligned(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int], width: float = math.inf
) -> list[str]:
    """A table as lines, set right but for the columns ``left``, whose texts are shortened to fit ``width`` columns.

    Texts that differ are shortened only as far as they still do, unless that leaves no room.
    """
    lines = [head, *rows]
    widths = [max(cell_width(line[i]) for line in lines) for i in range(len(head))]
    texts = {i: {line[i] for line in lines} for i in left}
    while sum(widths) + 2 * (len(widths) - 1) > width:
        longer = [i for i in left if widths[i] > Columns.SHORTENED]
        distinct = [i for i in longer if len({shortened(text, widths[i] - 1) for text in texts[i]}) == len(texts[i])]
        if not longer:
            break
        widths[max(distinct or longer, key=lambda i: widths[i])] -= 1
    return ["  ".join(_cell(line[i], widths[i], i in left) for i in range(len(head))).rstrip() for line in lines]


def _cell(text: str, width: int, left: bool) -> str:
    shown = shortened(text, width) if left else text
    space = " " * (width - cell_width(shown))
    return shown + space if left else space + shown


def shortened(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns, the middle left out of a longer one.

    >>> shortened("number_of_admissions_by_ward", 16)
    'number_...y_ward'
    """
    if cell_width(text) <= width:
        return text
    first, last = text[: (width - 2) // 2], text[len(text) - (width - 3) // 2 :]
    while cell_width(first) + cell_width(last) > width - 3:  # characters of two columns
        first, last = first[:-1], last[1:]
    return f"{first}...{last}"


def under(label: str, text: str, room: int) -> list[str]:
    """``text`` as lines beside its ``label``, which takes ``room`` columns, or a few more if it is longer."""
    return wrapped(text, f"{label.ljust(room - 2)}  ", " " * room)


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """``text`` as lines of at most 80 columns, the first after ``first``, the others after ``rest``."""
    room = Columns.ALL - max(len(first), len(rest))
    lines = [""]
    for piece in (piece for word in text.split() for piece in _pieces(word, room)):
        longer = f"{lines[-1]} {piece}".lstrip()
        lines[-1:] = [longer] if cell_width(longer) <= room else [lines[-1], piece]
    return [(rest if number else first) + line for number, line in enumerate(lines)]


def _pieces(word: str, room: int) -> Iterator[str]:
    """A word in parts that fit a line."""
    while cell_width(word) > room:
        at = next(at for at in range(room, 0, -1) if cell_width(word[:at]) <= room)
        yield word[:at]
        word = word[at:]
    yield word
