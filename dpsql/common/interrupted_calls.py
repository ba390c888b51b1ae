"""Public calls that end before their time, by Ctrl-C or as memory runs out: what became of the charges that they made.

Ctrl-C stays a KeyboardInterrupt, whose message says whether something was charged. Where memory runs out there is one
error, which says that, too. Whoever cancels a call from another thread is asked right before each charge
(``checked_before_charges``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, wraps
from types import FunctionType
from typing import ParamSpec, TypeVar

from dpsql.errors import Error, RequestError, listed

P = ParamSpec("P")
R = TypeVar("R")
Outcome = tuple[int, bool] | None
"""The release that a charge is, and whether its answer is recorded; None where the charge was not made."""

_charges: ContextVar[list[Callable[[], Outcome]] | None] = ContextVar("charges", default=None)
_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def checked_before_charges(check: Callable[[], None]) -> Iterator[None]:
    """Within, ``check`` is called before each charge, which is not made where it raises."""
    before = _check.set(check)
    try:
        yield
    finally:
        _check.reset(before)


def note_charge(outcome: Callable[[], Outcome]) -> None:
    """Note a charge that is about to be made within a public call; ``outcome`` finds what became of it."""
    charges, check = _charges.get(), _check.get()
    if check is not None:
        check()
    if charges is not None:
        charges.append(outcome)


def has_charged() -> bool:
    """Whether the public call that runs has made a charge."""
    return any(outcome() is not None for outcome in _charges.get() or ())


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """A public function that raises RequestError where memory runs out, once what filled it is gone.

    A KeyboardInterrupt that leaves it says what became of its charges.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        outermost = None if _charges.get() is not None else _charges.set([])
        try:
            try:
                return function(*args, **kwargs)
            except MemoryError:
                pass  # its frames hold what filled the memory
            except KeyboardInterrupt as interrupt:
                if outermost is not None:
                    interrupt.args = (_interrupt_message(_charges.get() or ()),)
                raise
            raise RequestError(_memory_message([outcome() for outcome in _charges.get() or ()]))
        finally:
            if outermost is not None:
                _charges.reset(outermost)

    return call


def guards_calls(kind: type[R]) -> type[R]:
    """A public class whose public methods and properties are all ``guarded``."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, FunctionType):
            if not hasattr(member, "__wrapped__"):  # ``taking`` guards, too
                setattr(kind, name, guarded(member))
        elif isinstance(member, classmethod):
            setattr(kind, name, classmethod(guarded(member.__func__)))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(guarded(member.fget), member.fset, member.fdel))
        elif isinstance(member, cached_property):
            member.func = guarded(member.func)
    return kind


def _memory_message(outcomes: Sequence[Outcome]) -> str:
    """The message after memory ran out, by the charges that the ledger has."""
    made = dict(outcome for outcome in outcomes if outcome is not None)
    if not made:
        return "memory ran out, and nothing was charged; give the process more memory, or ask for less at a time"
    lost = [str(release) for release, recorded in made.items() if not recorded]
    if lost:
        return (
            f"memory ran out: what was charged as release {listed(lost)} has no answer in the ledger and stays "
            "charged; give the process more memory, or ask for less at a time, then ask again"
        )
    return (
        f"memory ran out: what was charged is recorded as release {listed(list(map(str, made)))}, and is not charged "
        "again unless fresh; give the process more memory, and ask the same again"
    )


def _interrupt_message(charges: Sequence[Callable[[], Outcome]]) -> str:
    """What is said after Ctrl-C, by the charges that the ledger has."""
    try:
        made = dict(found for outcome in charges if (found := outcome()) is not None)
    except Error:
        return "interrupted while the ledger was written, which cannot be read now; look there for what was charged"
    if not made:
        return "interrupted: nothing was charged"
    lost = [str(release) for release, recorded in made.items() if not recorded]
    if lost:
        return f"interrupted: release {listed(lost)} is charged and stays charged, and has no answer in the ledger"
    return (
        f"interrupted: release {listed(list(map(str, made)))} is charged, and its answer is in the ledger: asking the "
        "same again is free"
    )
