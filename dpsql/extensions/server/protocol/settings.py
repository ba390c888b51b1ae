"""The settings of one session: what a batch may spend, what results show, and what clients of PostgreSQL set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpsql.common.options import SETTING, TABLE, Option, on
from dpsql.driver.session import Amounts
from dpsql.errors import SQLError, nearest
from dpsql.extensions.server.protocol.sqlstate import SessionError
from dpsql.privacy.accountant import Request
from dpsql.registry import added_options

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
OWN = on(SETTING, (*TABLE, *added_options()))
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


@dataclass
class Settings:
    """What a session has set. A budget is what each batch may spend that no earlier release answers.

    ``given``: the options of dpsql, by name, as they were written; ``others``: what clients of PostgreSQL set.
    """

    given: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)

    @property
    def amounts(self) -> Amounts:
        """Epsilon, delta and rho of a batch, exactly as they were written."""
        if "mu" in self.given:
            return None, None, Fraction(self.given["mu"]) ** 2 / 2  # the Gaussian mechanism of mu is rho-zCDP
        return self.given.get("epsilon"), self.given.get("delta"), self.given.get("rho")

    @property
    def alpha(self) -> float | None:
        """1 - confidence, where it was set."""
        return float(1 - self._value("confidence")) if "confidence" in self.given else None

    @property
    def errors(self) -> bool:
        """Whether results have the columns of errors."""
        return bool(self._value("errors"))

    @property
    def population(self) -> str | None:
        """Of which population intervals are, as ``Connection.sql`` takes it."""
        return None if self._value("population") is None else "sample"

    def _value(self, name: str) -> Any:
        option = OWN[f"dpsql.{name}"]
        return option.read(self.given[name], SETTING) if name in self.given else option.default

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
        if name in OWN:
            self._set(OWN[name], "" if default else value)
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
            self.given, self.others = {}, {}
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
        own = {name: self.given.get(option.name, "") for name, option in OWN.items()}
        own |= {"dpsql.errors": "on" if self.errors else "off", "dpsql.population": self.population or ""}
        own |= {"dpsql.confidence": f"{float(self._value('confidence')):g}"}
        return {**own, **_QUIET, **self.others}

    def _set(self, option: Option, text: str) -> None:
        """Set an option, in place of those that contradict it: of several ways to name a budget the last one counts."""
        name = option.name
        given = {other: written for other, written in self.given.items() if other != name}
        if text:
            option.read(text, SETTING)
            for other in [other for other in given if other in option.against or name in OWN[f"dpsql.{other}"].against]:
                del given[other]
            if name == "delta":
                Request.of(epsilon=given.get("epsilon", 1), delta=text)
            elif option.kind == "amount":
                Request.of(**({"epsilon": text} if name == "epsilon" else {"rho": text}))
            given[name] = text
        self.given = given


def _plain(value: str) -> str:
    """A value as it was meant: without quotes, of a list its items with commas."""
    items = re.findall(r"'(?:[^']|'')*'|\"[^\"]*\"|[^,\s]+", value.strip())
    return ", ".join(item[1:-1].replace("''", "'") if item[0] in "'\"" else item for item in items)
