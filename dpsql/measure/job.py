"""A job: everything public that a measurement needs, fixed before any data are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsql.engines.base import TableSource
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise
from dpsql.workload.compile import Layout


@dataclass(frozen=True)
class Job:
    """One measurement: y = mixing @ basis @ (L x) + noise over the cells of ``layouts``.

    ``mixing`` (p x v) and ``basis`` (v x n) are integers, ``common_steps`` is L. ``noise`` is
    calibrated by ``charge`` to the exact integer sensitivity of L mixing basis.
    ``schemas`` are the column types that the plan was made for, table by table.
    ``description`` is the public JSON that the ledger keeps beside the charge.
    """

    layouts: tuple[Layout, ...]
    mixing: Any = field(repr=False)
    basis: Any = field(repr=False)
    common_steps: int
    noise: Noise
    charge: Charge
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    sources: Mapping[str, TableSource] = field(repr=False)
    description: Mapping[str, Any] = field(repr=False)
    label: str = ""
