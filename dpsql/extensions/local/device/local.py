"""Randomised response where the data are: on a person's own device, before anything is sent.

Nobody is trusted with the record: this code runs where it lies, in the person's own process. It opens no database
and no file, knows no ledger and charges nobody; what it returns may be published. Whoever collects such records has to
count epsilon by the rows that one person sends.

Guarantee (neighbours: replace one record by any other; that it was sent is public): each record's answer is
epsilon-DP by itself, whatever else is sent and whoever collects it, since its law depends on nothing else. Proof:
``dpsql.privacy.response``. A record is one value of the joint domain, so epsilon is for all its columns together; the
same columns randomised one by one would cost the sum of their epsilons. Randomise a record once: the epsilons of
repeated answers about it add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dpsql.errors import InterfaceError
from dpsql.extensions.local.device.domain import Domain, Objects
from dpsql.policy import ColumnPolicy
from dpsql.privacy.amounts import Number
from dpsql.privacy.response import Response

Declared = Domain | Mapping[str, ColumnPolicy | Iterable[object]]
"""A domain, or what `Domain.of` makes one of."""


def as_domain(domain: Declared) -> Domain:
    """``domain`` itself, or the domain that a mapping of columns to their values declares."""
    return domain if isinstance(domain, Domain) else Domain.of(domain)


def randomise(record: Mapping[str, object], domain: Declared, *, epsilon: Number) -> dict[str, object]:
    """One record after randomised response over the joint domain: column -> declared value, OTHER or None.

    record: column -> value, with every column of the domain (None where nothing is known); others are left out of the
    answer. What a column does not declare has its place too (see ``dpsql.extensions.local.device.domain``): no value
    makes this fail. Which columns a record has is taken for public; they come from the program, not from the person.

    Privacy: epsilon-DP for replacing the record, see the module; OS entropy, drawn before the record is looked at.
    Errors: InterfaceError for a missing column, PolicyError for the domain, DataError for epsilon.
    """
    joint = as_domain(domain)
    if not isinstance(record, Mapping):
        raise InterfaceError("a record is a mapping of columns to values, such as {'smoker': 'yes'}")
    response = Response.of(joint.size, epsilon)
    offset = response.sample(1)
    for name in joint.names:
        if name not in record:
            raise InterfaceError(f"the record has no column {name!r}; give every column of the domain, None for NULL")
    code = joint.encode({name: [record[name]] for name in joint.names})
    return {name: column[0] for name, column in joint.decode(response.shifted(code, offset)).items()}


def randomise_many(columns: Mapping[str, object], domain: Declared, *, epsilon: Number) -> dict[str, Objects]:
    """`randomise` for n records given column by column, each on its own: column -> (n,) object array.

    columns: column -> list or one-dimensional array of n values, all columns of the domain. Each of the n records is
    epsilon-DP; a person with several of them pays epsilon for each. Cost about 0.4 microseconds a value.
    Errors as `randomise`, and InterfaceError where columns differ in length.
    """
    joint = as_domain(domain)
    if not isinstance(columns, Mapping):
        raise InterfaceError("give records column by column, such as {'smoker': ['yes', 'no']}")
    response = Response.of(joint.size, epsilon)
    first = columns.get(joint.names[0])
    # The number of rows is public, so the lies can be drawn before any value is read.
    offsets = response.sample(len(first) if isinstance(first, list | tuple) else int(np.asarray(first).size))
    return joint.decode(response.shifted(joint.encode(columns), offsets))
