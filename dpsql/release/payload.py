"""What the ledger keeps of a release: its tables and the noisy measurement behind them. Public."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from dpsql.common.arrays import Json
from dpsql.common.pattern_block import PatternBlock, decoded, encoded
from dpsql.privacy.noise import Noise

from .columns import packed_bytes, packed_text
from .record import ReleaseRecord, UnreadableReleaseError

FORMAT = 1
PACKED_FORMAT = 2  # of a packed y
PATTERN_FORMAT = 3  # of noise in blocks for patterns
_FORMATS = (FORMAT, PACKED_FORMAT, PATTERN_FORMAT)
_LONG = 2**22


@dataclass(frozen=True)
class Measurement:
    """y = mixing @ basis @ (L x) + noise, as it was observed.

    ``y`` (p,) Python ints; ``noise`` "gaussian", "laplace" or "blocks" with its exact ``parameter``, and the sizes of
    these ``blocks``; ``common_steps`` L; ``strategy`` the hash of mixing and basis, which follow from the batch, the
    policy and the column types of the release. ``stored``: the integers themselves and what they were measured over, as
    JSON holds it (``dpsql.running.earlier.stored_measurements``), so that later questions can rest on y; None where
    they are too many.
    """

    y: tuple[int, ...]
    noise: str
    parameter: Fraction
    common_steps: int
    strategy: str
    stored: Json | None = field(default=None, repr=False)
    blocks: tuple[int, ...] = ()

    @property
    def law(self) -> Noise:
        """The law of the noise."""
        return Noise(self.noise, self.parameter, self.blocks)


def pack(record: ReleaseRecord, measurement: Measurement, local: Json | None = None) -> bytes:
    """One release as bytes; ``unpack`` reads it back, and ``local_of`` what a local release keeps beside its table."""
    y = _encoded(measurement.y)
    patterned = any(isinstance(block, PatternBlock) for block in measurement.blocks)
    body: dict[str, Any] = {
        "format": PATTERN_FORMAT if patterned else PACKED_FORMAT if isinstance(y, dict) else FORMAT,
        "release": record.to_bytes().decode("utf-8", "surrogatepass"),
        "measurement": {
            "y": y,
            "noise": measurement.noise,
            "parameter": str(measurement.parameter),
            "common_steps": str(measurement.common_steps),
            "strategy": measurement.strategy,
        },
    }
    if measurement.blocks:
        body["measurement"]["blocks"] = [encoded(block) for block in measurement.blocks]
    if measurement.stored is not None:
        body["measurement"]["kept"] = dict(measurement.stored)
    if local is not None:
        body["local"] = dict(local)
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def record_of(payload: bytes) -> ReleaseRecord:
    """The record of ``unpack`` alone: of a large release, whose y is not made again. Raises as it does."""
    try:
        body = json.loads(payload.decode("utf-8", "surrogatepass"))
        if body["format"] in _FORMATS:
            text = body["release"]
            del body
            return ReleaseRecord.from_bytes(text.encode("utf-8", "surrogatepass"))
    except (ValueError, KeyError, TypeError):
        pass
    return unpack(payload)[0]  # says what is amiss


def _encoded(y: tuple[int, ...]) -> object:
    """y for JSON: the digits of each, or of many that fit 64 bits one compressed array in base 64."""
    if len(y) >= _LONG and max(y) < 2**63 and min(y) >= -(2**63):
        return {"integers": packed_text(np.array(y, dtype="<i8"))}
    return [str(value) for value in y]


def _decoded(encoded: Json | list[str]) -> tuple[int, ...]:
    """Inverse of ``_encoded``."""
    if isinstance(encoded, dict):
        return tuple(np.frombuffer(packed_bytes(encoded["integers"]), dtype="<i8").tolist())
    return tuple(int(value) for value in encoded)


def local_of(payload: bytes) -> Json | None:
    """What ``pack`` was given as ``local``, None where nothing was. For bytes that ``unpack`` reads."""
    found: Json | None = json.loads(payload.decode("utf-8", "surrogatepass")).get("local")
    return found


def moment_of(payload: bytes) -> dt.datetime:
    """When the release of ``pack`` was made, in a fraction of the time of ``unpack``; raises as it does."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return dt.datetime.fromisoformat(
            json.loads(json.loads(payload.decode("utf-8", "surrogatepass"))["release"])["released_at"]
        )
    return unpack(payload)[0].released_at  # says what is amiss


def unpack(payload: bytes) -> tuple[ReleaseRecord, Measurement]:
    """The release of ``pack``. Raises IntegrityError where the bytes are none."""
    body: Json = {}
    damaged = False
    try:
        body = json.loads(payload.decode("utf-8", "surrogatepass"))
        if body["format"] in _FORMATS:
            found = body["measurement"]
            measurement = Measurement(
                _decoded(found["y"]),
                found["noise"],
                Fraction(found["parameter"]),
                int(found["common_steps"]),
                found["strategy"],
                found.get("kept"),
                tuple(decoded(block) for block in found.get("blocks", ())),
            )
            return ReleaseRecord.from_bytes(body["release"].encode("utf-8", "surrogatepass")), measurement
    except (ValueError, KeyError, TypeError, AttributeError):
        damaged = True
    if damaged:
        raise UnreadableReleaseError(
            "a release in the ledger is damaged and cannot be read; restore the ledger from a good copy"
        )
    raise UnreadableReleaseError("a release in the ledger has a newer format; upgrade dpsql to read it")
