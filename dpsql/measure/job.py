"""A job: everything public that a measurement needs, fixed before any data are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from dpsql.common.arrays import Json
from dpsql.engines.base import TableSource
from dpsql.errors import InternalError
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise
from dpsql.workloads.cells.integers import Integers
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.over_periods import Over
from dpsql.workloads.compile.sensitivity import rough_sensitivity


class Scanned(Protocol):
    """What scans need of a job, of whatever kind it is."""

    @property
    def layouts(self) -> tuple[Layout, ...]: ...
    @property
    def schemas(self) -> Mapping[str, Mapping[str, str]]: ...
    @property
    def sources(self) -> Mapping[str, TableSource]: ...
    @property
    def description(self) -> Json: ...


class Multiplied(Scanned, Protocol):
    """A job that measures integers times x."""

    @property
    def integers(self) -> Integers: ...
    @property
    def common_steps(self) -> int: ...


@dataclass(frozen=True)
class Job:
    """One measurement: y = B (L x) + noise over the cells of ``layouts``.

    ``integers`` are B (p x n), ``common_steps`` is L. ``sensitivity``
    is that of L B, exact: L1 for Laplace, squared L2 for Gaussian noise; ``blocks``, if any, are the sizes of the
    blocks of rows of B in whose norm it is taken instead (``dpsql.privacy.noise``). The noise is
    not given: it is what ``charge`` pays for at that sensitivity.
    ``schemas`` are the column types that the plan was made for, table by table.
    ``description`` is the public JSON that the ledger keeps beside the charge. ``charge_id``: the id of a charge
    that may be asked for again, where it has one. ``over``: the horizon that it is a release of, if any; layouts,
    integers and sensitivity are then those of ``over_time``.
    """

    layouts: tuple[Layout, ...]
    integers: Integers = field(repr=False)
    common_steps: int
    sensitivity: int
    charge: Charge
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    sources: Mapping[str, TableSource] = field(repr=False)
    description: Json = field(repr=False)
    label: str = ""
    blocks: tuple[int, ...] = ()
    charge_id: str = ""
    over: Over | None = None

    def __post_init__(self) -> None:
        if not self.blocks:
            return
        whole = min(self.blocks) > 0 and sum(self.blocks) == self.integers.shape[0]
        if self.charge.noise != "laplace" or not whole:
            raise InternalError("noise in blocks is pure, and its blocks are all the rows that are measured")

    def over_time(self, over: Over) -> Job:
        """The job of one period, measured of earlier ones, too. Raises SQLError as ``Over.all_layouts``."""
        held = over.all_layouts(), over.all_integers(), over.sensitivity(self.common_steps)
        return replace(self, layouts=held[0], integers=held[1], sensitivity=held[2], over=over)

    @property
    def noise(self) -> Noise:
        """The law of the noise, calibrated by the charge to the sensitivity."""
        return self.charge.calibrate(self.sensitivity, self.blocks)

    @cached_property
    def rough(self) -> float:
        """The sensitivity of B worked out again from what is measured; once, however often the job is measured."""
        return rough_sensitivity(self.charge.noise, self.integers, self.layouts, self.blocks)
