"""A ledger with bytes changed: refused with a clear error, or read as it was; never a wrong balance."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import LedgerError
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.ledger import Ledger

BUDGET = Budget.of("4", "1e-9", "1")
(CHARGE,) = charge_for(Request.of("0.25"), BUDGET)


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, bytes, Any]:
    """The path of a ledger, its bytes, and what it says."""
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, "corrupt-1", BUDGET)
    ledger.record(ledger.charge(CHARGE, "one", {"names": ["a"]}, label="ann"), b"noisy" * 100)
    ledger.charge(CHARGE, "two", {"names": ["b"]})
    return path, path.read_bytes(), told(path)


def told(path: Path) -> tuple[Any, ...]:
    ledger = Ledger.open(path, "corrupt-1", BUDGET)
    return ledger.state(), list(ledger.releases()), ledger.unreleased()


def outcome(path: Path, content: bytes, truth: Any) -> str:
    """Read a changed file, then spend from it: "refused", "as it was", or an AssertionError."""
    path.write_bytes(content)
    try:
        assert told(path) == truth
    except LedgerError as error:
        said = error
    else:
        said = None
    if said is not None:
        assert "\n" not in str(said)
        assert said.__context__ is None
        return "refused"
    # What reads well must also add up well: the next charge is granted and counted, or refused.
    ledger = Ledger.open(path, "corrupt-1", BUDGET)
    try:
        ledger.charge(CHARGE, "three", {})
        spent = Ledger.open(path, "corrupt-1", BUDGET).state().account("pure")
    except LedgerError:
        return "refused"
    assert spent is not None
    assert spent.spent_units == 3 * CHARGE.units
    return "as it was"


def clean(path: Path) -> None:
    for name in ("-journal", "-wal", "-shm"):
        path.with_name(path.name + name).unlink(missing_ok=True)


@pytest.mark.long
def test_every_region_flipped(world: tuple[Path, bytes, Any], record_assurance: Any) -> None:
    path, good, truth = world
    found: Counter[str] = Counter()
    size = 16
    for at in range(0, len(good), size):
        region = bytes(byte ^ 0xFF for byte in good[at : at + size])
        # Pages have free space in the middle: flipped zeros there are nobody's bytes.
        if any(good[at : at + size]):
            found[outcome(path, good[:at] + region + good[at + size :], truth)] += 1
            clean(path)
    assert found["refused"] > 200
    injected = sum(found.values())
    record_assurance("faults.ledger_regions", {"injected": injected, "survived": injected, **found})


def test_every_byte_of_the_header_and_single_bits(world: tuple[Path, bytes, Any], record_assurance: Any) -> None:
    path, good, truth = world
    found: Counter[str] = Counter()
    draws = random.Random(1)
    used = [at for at, byte in enumerate(good) if byte]
    flips = [(at, 1 << draws.randrange(8)) for at in (*range(100), *draws.sample(used, 200))]
    for at, bit in flips:
        found[outcome(path, good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :], truth)] += 1
        clean(path)
    assert found["refused"] > found["as it was"] > 0
    record_assurance("faults.ledger_bits", {"injected": len(flips), "survived": len(flips), **found})


@pytest.mark.long
def test_every_seventh_byte_flipped(world: tuple[Path, bytes, Any], record_assurance: Any) -> None:
    path, good, truth = world
    found: Counter[str] = Counter()
    # Free space of a page is zeros and nobody's: one byte in 64 of it is enough.
    places = [at for at, byte in enumerate(good) if (byte and at % 7 == 0) or at % 64 == 0]
    for at in places:
        found[outcome(path, good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :], truth)] += 1
        clean(path)
    assert found["refused"] > found["as it was"] > 0
    record_assurance("faults.ledger_bytes_long", {"injected": len(places), "survived": len(places), **found})


def test_a_shortened_or_lengthened_file(world: tuple[Path, bytes, Any], record_assurance: Any) -> None:
    path, good, truth = world
    lengths = range(0, len(good), 1024)
    found = Counter(outcome(path, good[:length], truth) for length in lengths)
    # A tail that holds nothing but an index may go unnoticed until verify(); what is read is what was written.
    assert found["refused"] > len(lengths) * 3 // 4
    for tail in (b"x" * 10, bytes(4096), good[:4096]):
        outcome(path, good + tail, truth)
    record_assurance("faults.ledger_lengths", {"injected": len(lengths) + 3, "survived": len(lengths) + 3})
