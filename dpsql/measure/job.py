"""Mechanisms as values: everything public that a measurement needs, fixed before any data are read.

``Mechanism`` is what ``dpsql.measure.measure`` carries out; ``Job`` is the matrix mechanism, whose guarantee is in
``dpsql.measure``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Protocol, Self, TypeVar

from dpsql.common.arrays import Json
from dpsql.engines.base import Engine, TableSource
from dpsql.errors import IntegrityError, InternalError
from dpsql.measure import cells
from dpsql.measure.checks import check_periods, check_schemas, read_by
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.noise import Noise
from dpsql.privacy.periods import Reads
from dpsql.workloads.cells.integers import Integers
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.over_periods import Over
from dpsql.workloads.compile.sensitivity import rough_sensitivity, sensitivity_of

Opener = TypeVar("Opener", bound=Engine, contravariant=True)
Observed = TypeVar("Observed", covariant=True)

FAILED = (
    "the measurement failed; details may depend on private data and are not shown. "
    "What was charged stays charged; check memory and disk, then run again"
)


class Mechanism(Protocol[Opener, Observed]):
    """What is charged once, then observed. ``failed``: what an error says whose cause may depend on private data.

    ``reads``: the tables' sources, by name. ``charge_id``: the id of a charge that may be asked for again, else "".
    ``aside``: what is charged first, if anything. ``check`` holds tables, noise and charge against each other before
    the charge, from public values (IntegrityError, InternalError). ``observe`` reads the tables, and gives what may be
    released by the guarantee that is charged: noise included.
    """

    @property
    def charge(self) -> Charge: ...
    @property
    def description(self) -> Json: ...
    @property
    def label(self) -> str: ...
    @property
    def charge_id(self) -> str: ...
    @property
    def aside(self) -> tuple[Charge, Json] | None: ...
    @property
    def failed(self) -> str: ...
    @property
    def reads(self) -> Mapping[str, TableSource]: ...
    def check(self, engine: Opener, ledger: Ledger, /) -> None: ...
    def observe(self, engine: Opener, /) -> Observed: ...


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
    aside, failed = None, FAILED

    def __post_init__(self) -> None:
        if not self.blocks:
            return
        whole = min(self.blocks) > 0 and sum(self.blocks) == self.integers.shape[0]
        if self.charge.noise != "laplace" or not whole:
            raise InternalError("noise in blocks is pure, and its blocks are all the rows that are measured")

    def over_time(self, over: Over) -> Job:
        """The job of one period, measured of earlier ones, too. Raises SQLError as ``Over.all_layouts``."""
        parts = over.all_layouts(), over.all_integers(), over.sensitivity(self.common_steps)
        return replace(self, layouts=parts[0], integers=parts[1], sensitivity=parts[2], over=over)

    @property
    def noise(self) -> Noise:
        """The law of the noise, calibrated by the charge to the sensitivity."""
        return self.charge.calibrate(self.sensitivity, self.blocks)

    @property
    def audited(self) -> Self:
        """What is audited: the job itself."""
        return self

    @cached_property
    def rough(self) -> float:
        """The sensitivity of B worked out again from what is measured; once, however often the job is measured."""
        return rough_sensitivity(self.charge.noise, self.integers, self.layouts, self.blocks)

    reads = property(read_by)

    def check(self, engine: Engine, ledger: Ledger) -> None:
        """Hold tables, sensitivity, periods and horizon to what is charged."""
        check_schemas(self, engine)
        self.check_sensitivity()
        check_periods(self, self.over)
        if self.over is not None:
            self._check_over(self.over, ledger)

    def observe(self, engine: Engine) -> list[int]:
        """y. All noise is drawn before the first scan."""
        return cells.observed(self, engine, self.noise.sample(self.integers.shape[0]))

    def check_sensitivity(self) -> None:
        """Work the sensitivity out again, from what will be measured and the cells that the scan fills.

        Over all that a unit can change in the layouts (``dpsql.workloads.families.contributions``), whatever the plan
        says. The plan's own figure is exact or a bound; this one, in floats, is right to 1e-5 and holds the two
        together. Before the charge; depends on public values only.
        """
        self.integers.check()
        order = 1 if self.charge.noise == "laplace" else 2
        if not self.rough <= float(Fraction(self.sensitivity, self.common_steps**order)) * (1.0 + 1e-4):
            raise IntegrityError("the plan's sensitivity is not that of its strategy; plan again (nothing was charged)")

    def _check_over(self, over: Over, ledger: Ledger) -> None:
        """Hold a release of a horizon to what its periods have paid. Before the charge; depends on public values.

        Neighbours: one row more or less of a table whose unit is the row. **Claim.** Release t of a horizon measures
        y_t = sum_(s <= t) C_ts L B x_s + z_t, x_s the cells of period s and z_t rounded Gaussian noise of variance D^2
        / mu^2, fresh in each, D^2 = (max_s sum_t C_ts^2) D_B^2 with D_B the L2 norm by which one row moves L B x. All
        releases of the horizon together are mu-GDP for the row, whatever else the questions between them depended on.
        **Proof.** Let the row be of period s. Release t with t < s does not depend on it. Given what was released
        before, release t moves by C_ts L B c for the row's c, or by nothing where the row was not there yet, so it is
        mu_t-GDP with mu_t^2 = C_ts^2 D_B^2 mu^2 / D^2, a number that is fixed beforehand; by the composition of such
        releases all of them are GDP with the square root of sum_t mu_t^2 <= mu^2 (Dong, Roth and Su 2022, Cor. 2). So
        the charge mu^2 that names period s, made before s is read for the first time, pays for all that later releases
        read of s. Of an endless horizon sum_t C_ts^2 is the squared norm of its kernel, of however many t. A row whose
        day is changed moves each release as a row of one period or another, and is promised what
        ``dpsql.privacy.periods`` says.

        That is so where C is the same in each release and earlier charges are no smaller than this one; where t's noise
        is drawn for D^2; and where no release is measured twice: the id of its charge belongs to its place
        (`Ledger.record`).
        """
        one = sensitivity_of("gaussian", over.integers, over.layouts)
        again = one * self.common_steps**2
        if (
            self.charge.noise != "gaussian"
            or self.blocks
            or self.sensitivity != over.measured.l2_squared * again
            or self.integers.digest() != over.all_integers().digest()
            or self.rough > float(max(value * value for value in over.measured.row(over.place)) * one) * (1.0 + 1e-4)
            or self.description.get("horizon") != over.description
            or len(over.paid) != over.place
            or any(layout.source.unit is not None for layout in self.layouts)
        ):
            raise IntegrityError("the plan's noise is not that of its horizon; plan again (nothing was charged)")
        reads = Reads.of(self.description)
        charged = {entry.charge_id: entry for entry in ledger.entries()} if over.paid else {}
        for place, charge_id in enumerate(over.paid):
            earlier = charged.get(charge_id)
            period = over.periods.start(over.first + place).isoformat()
            mine = None if earlier is None else earlier.reads
            if (
                earlier is None
                or mine is None
                or reads is None
                or (mine.table, mine.rule, mine.read) != (reads.table, reads.rule, (period,))
                or earlier.description.get("horizon") != {**over.description, "place": place}
                or (earlier.charge.noise, earlier.dataset) != ("gaussian", ledger.dataset)
                or earlier.charge.units < self.charge.units
            ):
                raise IntegrityError(
                    f"period {period} has not paid for this release of its horizon: it was charged otherwise, or of "
                    "other data, or not at all; add a schedule of a new name from here on (nothing was charged)"
                )
