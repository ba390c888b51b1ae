"""Values kept by Google's library of differential privacy beside those of a discovery, on the same generated data.

    python benchmarks/discovery_google.py --write counts.npz    # where dpsql is installed
    other/bin/python benchmarks/discovery_google.py counts.npz  # where python-dp and numpy are

The data are those of ``benchmarks/discovery.py``. python-dp is Google's C++ library, from which PipelineDP takes its
partition selection, too; the two do not go into one environment. All numbers are expected ones: the sum of the chance
that a value of each count is kept, which the library tells (``probability_of_keep``). It splits epsilon and delta over
the groups of a user for all of its strategies but Gaussian thresholding.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

BUDGETS = ((0.1, 1e-9), (1.0, 1e-9), (1.0, 1e-5), (3.0, 1e-5))
GROUPS = (1, 4, 16, 64)
THEIRS = ("laplace", "truncated_geometric", "gaussian")


def write(place: Path) -> None:
    """How many values have each count, and how many of them a discovery is expected to show."""
    from discovery import ITEMS, expected, gaussian, generated, within

    users, items = generated()
    held = {}
    for groups in GROUPS:
        counts = np.bincount(within(users, items, groups)[1], minlength=ITEMS)
        held[f"counts_{groups}"] = counts[counts > 0]
        for number, (epsilon, delta) in enumerate(BUDGETS):
            held[f"kept_{number}_{groups}"] = np.array([expected(gaussian(groups, epsilon, delta), counts)])
    np.savez_compressed(place, **held)


def compare(place: Path) -> None:
    """Prints a line for each budget and number of groups."""
    from pydp.algorithms.partition_selection import create_partition_strategy

    held = np.load(place)
    heads = ("epsilon", "delta", "groups", *(f"their {name.split('_')[0]}" for name in THEIRS), "Gaussian")
    print(("{:>16}" * len(heads)).format(*heads))
    for number, (epsilon, delta) in enumerate(BUDGETS):
        for groups in GROUPS:
            counts, sizes = np.unique(held[f"counts_{groups}"], return_counts=True)
            kept = []
            for name in THEIRS:
                law = create_partition_strategy(name, epsilon, delta, groups)
                kept.append(float(sizes @ [law.probability_of_keep(int(count)) for count in counts]))
            row = (epsilon, delta, groups, *kept, *held[f"kept_{number}_{groups}"])
            print(("{:>16g}" * 3 + "{:>16.1f}" * 4).format(*row))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("counts", type=Path, help="the file of counts")
    options.add_argument("--write", action="store_true", help="write it")
    given = options.parse_args()
    if given.write:
        write(given.counts)
    else:
        compare(given.counts)


if __name__ == "__main__":
    main()
