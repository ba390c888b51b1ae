"""The registry of extensions: what each of them adds to the kernel, by name.

The kernel looks things up here and imports no extension. ``dpsql.composition`` finds the extensions that are installed
and hands them over when the registry is first asked; a program may add one of its own with ``register``.

Whatever an extension adds is written as ``"package.module:name"`` and imported when it is first used, so that an
extension costs nothing where nobody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from dpsql.common.options import Option
from dpsql.errors import DataError, InterfaceError, NotSupportedError, quoted


@dataclass(frozen=True)
class Registered:
    """A strategy of an extension: the name of a function that makes its pieces.

    ``tried_with_effort``: whether ``select`` may try it unasked, where it is given more effort than usual. ``needs``:
    "line" where cells are to be those of one column in its order, "pure" where noise is to be pure, "" for neither.
    """

    pieces: str
    tried_with_effort: bool = False
    needs: str = ""


@dataclass(frozen=True)
class Extension:
    """What one extension adds. Each value is ``"package.module:name"``.

    ``requires``: the optional extra whose packages it needs, "" where it needs none. ``commands``: a
    ``dpsql.surfaces.command_text.Commands``, for the command line. ``options``: rows of the table of options
    (``dpsql.common.options.rows``). ``connection`` and ``plan``: classes whose methods
    every ``Connection`` and every ``Plan`` gets. ``methods``: what ``con.plan(method=...)`` may name, each a function
    that plans a batch as ``dpsql.planning.plan.make_plan`` does. ``strategies``: methods that ``dpsql.strategy.select``
    may name, each a function of the name, the workload and ``Terms`` that returns pieces. ``provides``: by the name of
    one of ``PORTS``, what the extension does there.
    """

    name: str
    summary: str
    version: str = ""
    requires: str = ""
    commands: str = ""
    options: str = ""
    connection: str = ""
    plan: str = ""
    methods: Mapping[str, str] = field(default_factory=dict)
    strategies: Mapping[str, Registered] = field(default_factory=dict)
    provides: Mapping[str, str] = field(default_factory=dict)


PORTS: Mapping[str, str] = {
    "engine": "returns a function that makes an engine of what connect() was given; None where that is not its kind",
    "plan_with_finding": "plans a batch whose groups are to be found first; None where no GROUP BY waits for that",
    "find_groups": "finds the groups that a plan waits for, and plans the batch again over them",
    "expected_estimates": "says which estimates are expected to be nearest, for run(estimates='auto')",
    "free_answer": "answers a batch from what a discovery counted; None where none did",
    "measure_losses": "measures what limits cut, where the policy has [budget] losses and the ledger does not know it",
    "horizon": "says how a release of several periods follows from the measurements that it rests on",
    "schedule": "says how a release of one period follows from its measurement",
    "compared_locally": "compares a plan with a local release of the same columns; None where there is none",
    "synthetic_rows": "makes rows that agree with the counts of a release",
}
"""The places where the kernel asks an extension, and what is done there."""

SHIPPED: Mapping[str, tuple[str, ...]] = {
    "adaptive": ("adaptive",),
    "advice": (
        *("expected_estimates", "policy", "release", "prospects", "workload", "release_workload"),
        *("curve", "marginal_costs", "suggestions", "what_if"),
    ),
    "audit": ("audit",),
    "discovery": (
        *("sparse", "plan_with_finding", "find_groups", "free_answer", "discover", "plan_discovery", "survey"),
        *("plan_survey", "plan_coverage", "coverage", "losses", "plan_losses", "measure_losses"),
    ),
    "local": ("compared_locally", "synthesize", "synthetic"),
    "papers": (
        *("mwem", "mwem-strategy", "workload-separation", "hierarchical", "weighted-hierarchical", "haar"),
        *("weighted-haar", "range-transform", "eigen-design", "level-selection", "workload-generalisation"),
        *("svd-approximation", "l2-approximation", "min-sensitivity", "augmented", "low-rank-mechanism", "smoothed"),
    ),
    "periods": ("horizon", "schedule", "schedules", "budget_by_period"),
    "reports": ("report", "glossary", "plot", "plot_curve"),
    "server": ("serve", "mcp", "analyst", "requests"),
    "synthetic": ("synthetic_rows",),
}
"""What extensions that dpsql comes with add, for the message where one is missing."""

_EXTENSIONS: dict[str, Extension] = {}
_FINDERS: list[Callable[[], Iterable[Extension]]] = []
_ELSEWHERE: list[Callable[[], Iterable[Extension]]] = []
_EXTENSIBLE: dict[str, type] = {}
_COMPLETED: set[tuple[str, str]] = set()


def register(extension: Extension) -> None:
    """Add an extension. Raises InterfaceError where another one has its name, or for a port that is unknown."""
    extensions()
    _add(extension)


def _add(extension: Extension) -> None:
    known = _EXTENSIONS.get(extension.name)
    if known is not None and known != extension:
        raise InterfaceError(f"an extension named {extension.name!r} is registered already; choose another name")
    for port in extension.provides.keys() - PORTS.keys():
        raise InterfaceError(f"there is no port {port!r} to provide; the ports are {', '.join(PORTS)}")
    _EXTENSIONS[extension.name] = extension


def find_with(finder: Callable[[], Iterable[Extension]], elsewhere: Callable[[], Iterable[Extension]]) -> None:
    """Have ``finder`` give its extensions when the registry is first asked, ``elsewhere`` when it looks elsewhere."""
    _FINDERS.append(finder)
    _ELSEWHERE.append(elsewhere)


def look_elsewhere() -> None:
    """Add the extensions that other distributions have; asked for where something is named that is not known."""
    while _ELSEWHERE:
        for extension in _ELSEWHERE.pop()():
            register(extension)


def extensions() -> tuple[Extension, ...]:
    """All extensions, in the order of their names."""
    while _FINDERS:
        for extension in _FINDERS.pop()():
            _add(extension)
    return tuple(_EXTENSIONS[name] for name in sorted(_EXTENSIONS))


def added_options() -> tuple[Option, ...]:
    """The rows of extensions in the table of options (``dpsql.common.options``)."""
    return tuple(row for extension in extensions() if extension.options for row in resolve(extension.options))


def resolve(name: str) -> Any:
    """What ``"package.module:name"`` names; the module is imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def provided(port: str) -> Any:
    """What the first extension that provides ``port`` does there, None where none does."""
    for extension in extensions():
        if port in extension.provides:
            return resolve(extension.provides[port])
    return None


def needed(port: str) -> Any:
    """As ``provided``. Raises NotSupportedError where no extension provides it."""
    found = provided(port)
    if found is None:
        raise NotSupportedError(missing(port, PORTS[port]))
    return found


def missing(name: str, what: str) -> str:
    """The message for something that an extension adds which is not installed."""
    owner = missing_owner(name)
    if not owner:
        return f"no extension {what}; dpsql.installed() lists those that are installed"
    return (
        f"the extension {owner!r} {what}, and it is not installed: it is a part of dpsql, in the folder "
        f"dpsql/extensions/{owner}"
    )


def missing_owner(name: str) -> str:
    """The extension of dpsql that adds ``name`` and is not installed; "" where there is none."""
    owners = [owner for owner, names in SHIPPED.items() if name in names and owner not in _EXTENSIONS]
    return owners[0] if owners else ""


def methods() -> dict[str, str]:
    """The methods of planning that extensions add, by name."""
    return {name: made for extension in extensions() for name, made in extension.methods.items()}


def method_named(name: str, kernel: Iterable[str] = ()) -> Any:
    """The function that plans by a method of that name. Raises DataError, with all names, where no extension has it.

    ``kernel``: the strategies that are named without any extension.
    """
    known = methods()
    if name in known:
        return resolve(known[name])
    if missing_owner(name):
        raise NotSupportedError(missing(name, f"plans by method={name!r}"))
    own = ", ".join(repr(one) for one in ("auto", *kernel))
    added = (((*some.methods, *some.strategies), some.name) for some in extensions())
    listed = [f"of the extension {owner} {', '.join(map(repr, names))}" for names, owner in added if names]
    raise DataError(f"method {quoted(name)} is not known; use {'; '.join([own, *listed])}")


def strategies() -> dict[str, Registered]:
    """The strategies that extensions add, by name."""
    return {name: made for extension in extensions() for name, made in extension.strategies.items()}


def extensible(kind: str) -> Callable[[type], Any]:
    """Decorate a class of the kernel whose methods extensions add to: "connection" or "plan".

    What an extension of dpsql adds and is not installed is an AttributeError that names it.
    """

    def absent(one: object, name: str) -> Any:
        what = f"{type(one).__name__!r} object has no attribute {name!r}"
        raise AttributeError(missing(name, f"has {kind}.{name}") if missing_owner(name) else what, name=name, obj=one)

    def remember(extended: type) -> type:
        _EXTENSIBLE[kind] = extended
        type.__setattr__(extended, "__getattr__", absent)  # unseen by type checkers, which know declared classes
        return extended

    return remember


def complete() -> None:
    """Give the extensible classes that are imported by now the methods of all extensions. Twice is as once.

    Raises InterfaceError where two extensions, or one and the kernel, have a method of the same name.
    """
    for extension in extensions():
        for kind, extended in _EXTENSIBLE.items():
            if getattr(extension, kind) and (extension.name, kind) not in _COMPLETED:
                _COMPLETED.add((extension.name, kind))
                _extend(extended, resolve(getattr(extension, kind)), extension.name)


def _extend(extended: type, added: type, name: str) -> None:
    for method, value in vars(added).items():
        if method.startswith("__"):
            continue
        if hasattr(extended, method):
            raise InterfaceError(
                f"the extension {name!r} adds {method} to {extended.__name__}, which has one already; rename it"
            )
        setattr(extended, method, value)
