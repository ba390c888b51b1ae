"""The lowest versions that pyproject.toml admits, as constraints of pip: ``make test-lowest`` installs them.

The core and the extras that its tests use: of each the version after ``>=``.
"""

import re
import tomllib
from pathlib import Path

EXTRAS = ("pandas", "arrow", "polars", "yaml", "plot", "serve")


def constraints(project: dict) -> list[str]:
    """``name==version`` of every dependency. Raises ValueError for one that has no lower bound."""
    named = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    found = []
    for requirement in named:
        bound = re.match(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", requirement)
        if bound is None:
            raise ValueError(f"{requirement} has no lower bound; write NAME>=VERSION")
        found.append(f"{bound[1]}=={bound[2]}")
    return found


if __name__ == "__main__":
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    print("\n".join(constraints(tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"])))
