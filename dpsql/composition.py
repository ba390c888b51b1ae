"""The composition root: it finds the extensions that are installed and gives them to the registry.

Beside the public faces (``dpsql``, ``dpsql.workload``, ``dpsql.strategy``, ``dpsql.bounds``) it is the only module of
the kernel that may import an extension. An extension is a package in ``dpsql/extensions`` whose ``EXTENSION`` says what
it adds; a folder that is not there adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from dpsql.errors import NotSupportedError
from dpsql.registry import Extension, missing

if TYPE_CHECKING:  # the classes as type checkers see them; at run time extensions add their methods to the kernel's
    from dpsql.driver.opening import connect as kernel_connect
    from dpsql.extensions.advice.connection import Advising
    from dpsql.extensions.advice.plan import Advised
    from dpsql.extensions.discovery.discovering import Discovering
    from dpsql.extensions.local.connection import ReleasingLocally
    from dpsql.extensions.periods.connection import Standing
    from dpsql.extensions.reports.plan import Drawn
    from dpsql.extensions.synthetic.connection import MakingRows
    from dpsql.planning.options import PlanKeywords, PlanOptions

    P = ParamSpec("P")
    T = TypeVar("T")

    def _making(made: type[T], function: Callable[P, Any]) -> Callable[P, T]: ...

    class Plan(Advised, Drawn):
        """A plan with the methods that extensions add."""

    class Connection(Advising, Discovering, ReleasingLocally, Standing, MakingRows):
        """A connection with the methods that extensions add."""

        def plan(
            self,
            sql: str,
            epsilon: object = None,
            delta: object = None,
            rho: object = None,
            *,
            options: PlanOptions | None = None,
            **keywords: Unpack[PlanKeywords],
        ) -> Plan: ...

    connect = _making(Connection, kernel_connect)  # type: ignore[has-type]  # decided in a later pass

_FOLDER = Path(__file__).with_name("extensions")


def shipped() -> Iterator[Extension]:
    """The extensions in ``dpsql/extensions``."""
    for folder in sorted(_FOLDER.glob("*/__init__.py")):
        yield import_module(f"dpsql.extensions.{folder.parent.name}").EXTENSION


def of_distributions() -> Iterator[Extension]:
    """The extensions that other distributions name as entry points of the group ``dpsql.extensions``."""
    from importlib import metadata

    for point in metadata.entry_points(group="dpsql.extensions"):
        yield point.load()


def from_papers(face: str, name: str, names: Mapping[str, str]) -> Any:
    """What a public face has from the extension ``papers``; ``names``: the module of each name.

    Raises AttributeError for a name that the face does not have, NotSupportedError where the extension is missing.
    """
    if name not in names:
        raise AttributeError(f"module {face!r} has no attribute {name!r}")
    if not (_FOLDER / "papers").is_dir():
        raise NotSupportedError(missing("mwem", f"has {face}.{name}"))
    return getattr(import_module(f"dpsql.extensions.papers.{names[name]}"), name)
