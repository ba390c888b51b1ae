"""Rules: the extent of what a function gives, from the extents of its arguments."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from .constants import moment
from .extents import NUMBER, Extent, Rule, either, series, text, times, whole


def _total(args: Sequence[Extent]) -> float:
    return sum(one.size for one in args)


def any_number(args: Sequence[Extent]) -> Extent:
    return Extent()


def within(least: float, most: float) -> Rule:
    return lambda args: Extent(NUMBER, least, most)


def length(args: Sequence[Extent]) -> Extent:
    return Extent(NUMBER, 0, max((one.size for one in args), default=0))


def grown(factor: float) -> Rule:
    """A text, or a list of the elements of all arguments, ``factor`` times as long as these together."""
    return lambda args: Extent(
        max(NUMBER, factor * _total(args)),
        elements=sum(one.elements for one in args) + factor * _total(args) * (factor > 1),
        each=factor * max((one.each for one in args), default=NUMBER),
    )


def separated(args: Sequence[Extent]) -> Extent:
    """Values, and the elements of lists, one behind the other; the separator, between each two of them, comes first."""
    between = times(args[0].size, sum(max(1, one.elements) for one in args[1:])) if args else 0
    return text(_total(args) + between)


def listed_out(args: Sequence[Extent]) -> Extent:
    """The elements of a list as a text, with the last argument between each two of them."""
    between = times(args[0].elements, args[-1].size) if len(args) > 1 else 0
    return text(3 * _total(args) + between)


def list_aggregate(gathering: frozenset[str]) -> Rule:
    """Of a list, the name of an aggregate and its arguments: an element, or by ``gathering``, all or a text of all."""

    def rule(args: Sequence[Extent]) -> Extent:
        if len(args) > 1 and args[1].constant is not None and str(args[1].constant).lower() not in gathering:
            return first_argument(args)
        listed = listed_out([args[0], *args[2:]])
        return replace(listed, elements=max(listed.elements, args[0].elements), each=max(listed.each, args[0].each))

    return rule


def one_argument(args: Sequence[Extent]) -> Extent:
    return replace(either(args), type="")


def first_argument(args: Sequence[Extent]) -> Extent:
    return replace(args[0], constant=None, type="") if args else Extent()


def flat(args: Sequence[Extent]) -> Extent:
    size = args[0].size if args else NUMBER
    return Extent(size, elements=size, each=size)


def element(args: Sequence[Extent]) -> Extent:
    return replace(text(max((args[0].each if args else NUMBER), NUMBER)), type="")


def subscripts(args: Sequence[Extent]) -> Extent:
    """The places in a list, one a row, as many as it has elements."""
    count = args[0].elements if args else inf
    return Extent(NUMBER, 1, count, elements=count, each=NUMBER)


def packed(args: Sequence[Extent]) -> Extent:
    return Extent(
        _total(args) + NUMBER * len(args), elements=len(args), each=max((one.size for one in args), default=NUMBER)
    )


def _at(args: Sequence[Extent], place: int, otherwise: float = inf) -> float:
    """The largest value of a numeric argument."""
    return max(args[place].most, 0) if len(args) > place else otherwise


def repeated(args: Sequence[Extent]) -> Extent:
    count = _at(args, 1)
    return Extent(times(args[0].size, count), elements=times(args[0].elements, count), each=args[0].each)


def padded(args: Sequence[Extent]) -> Extent:
    return text(4 * _at(args, 1))


def bar(args: Sequence[Extent]) -> Extent:
    return text(4 * _at(args, 3, 80))


def replaced(args: Sequence[Extent]) -> Extent:
    return text(args[0].size * max(1, args[2].size if len(args) > 2 else inf))


def regexp_replaced(args: Sequence[Extent]) -> Extent:
    # What is put in stands at every place at most, and may repeat what was found half as often as it is long.
    return text(2 * (args[0].size + 1) * ((args[2].size if len(args) > 2 else inf) + 1))


def pieces(args: Sequence[Extent]) -> Extent:
    pieces = args[0].size + 1
    return Extent(17 * pieces, elements=pieces, each=args[0].size)


def series_between(last: int) -> Rule:
    """A series of numbers or moments, these in days; ``last``: 1 where the end is one of them."""

    def rule(args: Sequence[Extent]) -> Extent:
        start, stop = (args[0], args[1]) if len(args) > 1 else (Extent(NUMBER, 0, 0), args[0])
        start, stop = (one if one.constant is None else moment(one.constant) for one in (start, stop))
        step = args[2] if len(args) > 2 else Extent(NUMBER, 1, 1)
        span = inf
        if step.least > 0 and stop.most < inf and start.least > -inf:
            span = stop.most - start.least
        elif step.most < 0 and start.most < inf and stop.least > -inf:
            span = start.most - stop.least
        count = max(0.0, span) / max(step.least, -step.most) + last if span < inf else inf
        count = math.ceil(count) if count < inf else inf
        low, high = min(start.least, stop.least), max(start.most, stop.most)
        return Extent(times(count, 16), low, high, count, 16)

    return rule


def of_days(least: float, most: float) -> Rule:
    """An interval of so many times as long as one that has from ``least`` to ``most`` days."""
    return lambda args: product((args[0], Extent(NUMBER, least, most)))


def today(args: Sequence[Extent]) -> Extent:
    """A moment that is now, in days, in any time zone."""
    day = dt.datetime.now(tz=dt.UTC).date().toordinal()
    return Extent(NUMBER, day - 2, day + 3)


def resized(args: Sequence[Extent]) -> Extent:
    return series(_at(args, 1), max(args[0].each, args[2].size if len(args) > 2 else NUMBER))


def zipped(args: Sequence[Extent]) -> Extent:
    return series(max(one.elements for one in args), sum(one.each for one in args) + 8)


def mapped(args: Sequence[Extent]) -> Extent:
    """Of a list and what a lambda gives for an element."""
    return series(args[0].elements, args[1].size if len(args) > 1 else inf)


def formatted(sign: str) -> Rule:
    def rule(args: Sequence[Extent]) -> Extent:
        written = args[0].constant if args else None
        # A width may be another argument: {:{}} and %*d.
        if written is None or re.search(r"\{[^}]*\{", written.replace("{{", "")) or "*" in written:
            return Extent(inf)
        widths = sum(int(number) for number in re.findall(r"\d+", written))
        longest = max((one.size for one in args[1:]), default=0) + 512  # a DOUBLE may have 310 digits
        return text(len(written.encode()) + widths + written.count(sign) * longest)

    return rule


def dated(args: Sequence[Extent]) -> Extent:
    return text(32 * (_total(args) - NUMBER) if len(args) > 1 else NUMBER)


def plus(args: Sequence[Extent]) -> Extent:
    if len(args) == 1:
        return replace(args[0], type="")
    return Extent(_sized(args), args[0].least + args[1].least, args[0].most + args[1].most)


def difference(args: Sequence[Extent]) -> Extent:
    if len(args) == 1:
        return Extent(NUMBER, -args[0].most, -args[0].least)
    return Extent(_sized(args), args[0].least - args[1].most, args[0].most - args[1].least)


def _sized(args: Sequence[Extent]) -> float:
    """The bytes of arithmetic: those of a number, and of what is longer as much as it has (lists, for one)."""
    return _total(args) if any(one.size > NUMBER for one in args) else NUMBER


def product(args: Sequence[Extent]) -> Extent:
    corners = [times(a, b) for a in (args[0].least, args[0].most) for b in (args[-1].least, args[-1].most)]
    return Extent(NUMBER, min(corners), max(corners))


def quotient(args: Sequence[Extent]) -> Extent:
    most = max(abs(args[0].least), abs(args[0].most))
    return Extent(NUMBER, -most, most) if args[-1].least >= 1 or args[-1].most <= -1 else Extent()


def remainder(args: Sequence[Extent]) -> Extent:
    most = max(abs(args[-1].least), abs(args[-1].most))
    return Extent(NUMBER, -most, most)


def rounded(args: Sequence[Extent]) -> Extent:
    return whole(args[0]) if len(args) == 1 else Extent()


def power(args: Sequence[Extent]) -> Extent:
    low, high, exponent = args[0].least, args[0].most, args[-1].most
    if low >= 1 and args[-1].least >= 0 and high < 1e6 and exponent <= 50:
        return Extent(NUMBER, 0, high**exponent)
    return Extent()


def least(args: Sequence[Extent]) -> Extent:
    return replace(one_argument(args), most=min(one.most for one in args), least=min(one.least for one in args))


def greatest(args: Sequence[Extent]) -> Extent:
    return replace(one_argument(args), least=max(one.least for one in args))
