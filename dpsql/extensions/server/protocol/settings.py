"""The settings of one session: what a batch may spend, what results show, and what clients of PostgreSQL set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.driver.session import Amounts
from dpsql.errors import DataError, SQLError, nearest
from dpsql.extensions.server.protocol.sqlstate import SessionError
from dpsql.privacy.accountant import Request
from dpsql.privacy.amounts import exact

SERVER_VERSION = "16.0"
"""The version of PostgreSQL whose protocol and catalogue this is like."""

# What a client is told at the start, and again where it changes.
REPORTED = {
    "server_version": f"{SERVER_VERSION} (dpsql)",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "off",
    "in_hot_standby": "off",
    "is_superuser": "off",
    "application_name": "",
}
# What clients set and ask for, with no effect here.
_QUIET = {
    **{name.lower(): value for name, value in REPORTED.items()},
    "server_version_num": "160000",
    "search_path": "dp, public",
    "transaction_isolation": "read committed",
    "transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "session_characteristics": "",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "lc_collate": "C",
    "lc_ctype": "C",
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_min_messages": "notice",
    "row_security": "off",
    "jit": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "synchronous_commit": "on",
    "geqo": "on",
    "enable_seqscan": "on",
    "ssl_renegotiation_limit": "0",
    "session_authorization": "",
    "role": "none",
    "escape_string_warning": "on",
    "backslash_quote": "safe_encoding",
    "xmloption": "content",
    "timezone_abbreviations": "Default",
    "cursor_tuple_fraction": "0.1",
    "default_tablespace": "",
    "temp_tablespaces": "",
    "check_function_bodies": "on",
    "quote_all_identifiers": "off",
}
_FIXED = {"client_encoding": ("utf8", "utf-8", "unicode"), "standard_conforming_strings": ("on", "true", "1")}
OWN = ("dpsql.epsilon", "dpsql.delta", "dpsql.mu", "dpsql.rho", "dpsql.errors", "dpsql.confidence", "dpsql.population")
_SET = re.compile(
    r"SET\s+(?:SESSION\s+|LOCAL\s+)?(?:(?P<zone>TIME\s+ZONE)\s+|(?P<name>[\w.]+|\"[^\"]+\")\s*(?:=|\bTO\b)\s*)(?P<value>.+)",
    re.IGNORECASE | re.DOTALL,
)
_QUIETLY = re.compile(
    r"SET\s+(?:SESSION\s+CHARACTERISTICS\b|(?:SESSION\s+|LOCAL\s+)?TRANSACTION\b|(?:SESSION\s+)?ROLE\s+NONE\b|NAMES\b"
    r"|CONSTRAINTS\b|SESSION\s+AUTHORIZATION\s+DEFAULT\b)",
    re.IGNORECASE,
)
_LONGEST = 1_000
"""Characters of a value."""
_SWITCH = {"on": True, "true": True, "1": True, "yes": True} | dict.fromkeys(("off", "false", "0", "no"), False)


@dataclass
class Settings:
    """What a session has set. A budget is what each batch may spend that no earlier release answers."""

    budget: dict[str, str] = field(default_factory=dict)
    errors: bool = False
    confidence: Fraction | None = None
    population: str | None = None
    others: dict[str, str] = field(default_factory=dict)

    @property
    def amounts(self) -> Amounts:
        """Epsilon, delta and rho of a batch, exactly as they were written."""
        rho = self.budget.get("rho")
        if "mu" in self.budget:
            return None, None, Fraction(self.budget["mu"]) ** 2 / 2  # the Gaussian mechanism of mu is rho-zCDP
        return self.budget.get("epsilon"), self.budget.get("delta"), rho

    @property
    def alpha(self) -> float | None:
        """1 - confidence, where it was set."""
        return None if self.confidence is None else float(1 - self.confidence)

    def execute(self, text: str) -> str | None:
        """Run SET; the name of a setting whose value clients are told of. Raises SessionError, DataError, SQLError."""
        if _QUIETLY.match(text):
            return None
        found = _SET.fullmatch(text)
        if found is None:
            raise SQLError("SET is not understood; write SET dpsql.epsilon = 0.1", code="syntax")
        name = "timezone" if found["zone"] else found["name"].strip('"')
        return self.set(name, _plain(found["value"]))

    def set(self, name: str, value: str) -> str | None:
        """Give a setting its value; DEFAULT takes it back."""
        name = name.lower()
        if len(value) > _LONGEST:
            raise SessionError(
                f"{name[:60]} has a value of more than {_LONGEST:,} characters; give a shorter one", "22023"
            )
        default = value.lower() == "default"
        if name in ("dpsql.epsilon", "dpsql.delta", "dpsql.mu", "dpsql.rho"):
            self._set_budget(name.removeprefix("dpsql."), "" if default else value)
        elif name == "dpsql.errors":
            if not default and value.lower() not in _SWITCH:
                raise DataError(f"dpsql.errors is {value[:40]!r}; write on or off")
            self.errors = not default and _SWITCH[value.lower()]
        elif name == "dpsql.confidence":
            self.confidence = None if default else _confidence(value)
        elif name == "dpsql.population":
            if not default and value.lower() not in ("sample", ""):
                raise DataError(f"dpsql.population is {value[:40]!r}; write sample or default")
            self.population = "sample" if value.lower() == "sample" else None
        elif name in _QUIET:
            if not default and name in _FIXED and value.lower() not in _FIXED[name]:
                raise SessionError(f"{name} is always {_QUIET[name]}; leave it as it is", "0A000")
            if name == "application_name":
                self.others[name] = "" if default else value[:64]
                return "application_name"
            if not (name in {known.lower() for known in REPORTED} or default):
                self.others[name] = value
        else:
            raise SessionError(f"there is no setting {name[:60]}; {nearest(name, OWN)}", "42704")
        return None

    def reset(self, text: str) -> None:
        """Run RESET: one setting, or all of them."""
        name = text[len("RESET") :].strip().strip('"')
        if name.lower() == "all":
            self.budget, self.errors, self.confidence, self.population, self.others = {}, False, None, None, {}
        else:
            self.set(name, "default")

    def show(self, name: str) -> str:
        """The value of a setting. Raises SessionError."""
        name = re.sub(r"\s+", " ", name.strip().strip('"').lower())
        name = {"transaction isolation level": "transaction_isolation", "time zone": "timezone"}.get(name, name)
        if name in self.values():
            return self.values()[name]
        raise SessionError(
            f"there is no setting {name[:60]}; {nearest(name, (*OWN, 'dpsql.budget', 'dpsql.requests'))}", "42704"
        )

    def values(self) -> Mapping[str, str]:
        """All settings by name, those of dpsql first."""
        own = {f"dpsql.{name}": self.budget.get(name, "") for name in ("epsilon", "delta", "mu", "rho")}
        own |= {"dpsql.errors": "on" if self.errors else "off"}
        own |= {"dpsql.confidence": "0.95" if self.confidence is None else f"{float(self.confidence):g}"}
        own |= {"dpsql.population": self.population or ""}
        return {**own, **_QUIET, **self.others}

    def _set_budget(self, name: str, value: str) -> None:
        budget = dict(self.budget)
        if not value:
            budget.pop(name, None)
        else:
            # Three ways to say what a batch may spend, of which one counts: the last.
            for other in {"delta": ("mu", "rho"), "epsilon": ("mu", "rho")}.get(
                name, ("epsilon", "delta", "mu", "rho")
            ):
                budget.pop(other, None)
            budget[name] = value
            if name == "delta":
                Request.of(epsilon=budget.get("epsilon", 1), delta=value)
            else:
                Request.of(**({"rho": value} if name in ("mu", "rho") else {"epsilon": value}))
        self.budget = budget


def _confidence(value: str) -> Fraction:
    found = exact("dpsql.confidence", value)
    if not Fraction(1, 2) <= found < 1:
        raise DataError(f"dpsql.confidence is {value[:40]!r}; write a number from 0.5 to below 1, such as 0.95")
    return found


def _plain(value: str) -> str:
    """A value as it was meant: without quotes, of a list its items with commas."""
    items = re.findall(r"'(?:[^']|'')*'|\"[^\"]*\"|[^,\s]+", value.strip())
    return ", ".join(item[1:-1].replace("''", "'") if item[0] in "'\"" else item for item in items)
