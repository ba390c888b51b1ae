"""``dpsql analyst``: who may sign in to a server, and what each may spend."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsql.errors import OperationalError
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState
from dpsql.privacy.analysts import Analyst
from dpsql.surfaces import output


def add(options: argparse.Namespace) -> None:
    """A new analyst; a password that was made here is shown once."""
    accounts = _accounts(options)
    given = _password(options)
    analyst, password = accounts.add(options.name, _wish(options), given)
    if options.json:
        made = {} if given is not None else {"password": password}
        output.print_json({**_record(analyst, accounts.state(analyst.name)), **made})
        return
    print(f"{analyst.name} may spend {analyst.budget}{_within(analyst)}.")
    if given is None:
        print(f"Password: {password}\nIt is not kept and cannot be shown again; 'dpsql analyst set' makes another.")


def list_(options: argparse.Namespace) -> None:
    """Every analyst: what they may spend, and have spent."""
    found = _accounts(options).listed()
    if options.json:
        output.print_json({"analysts": [_record(analyst, state) for analyst, state in found]})
        return
    rows = []
    for analyst, state in found:
        for account in state.accounts:
            total, spent, left, _ = state.figures(account)
            tables = "all" if analyst.tables is None else ", ".join(analyst.tables)
            ends = "never" if analyst.expires is None else f"{analyst.expires:%Y-%m-%d %H:%M}"
            why = analyst.refusal()
            rows.append([analyst.name, account.name, total, spent, left, tables, ends, why or "may ask"])
    heads = ("analyst", "account", "total", "spent", "left", "tables", "expires (UTC)", "state")
    print(output.grid(heads, ["VARCHAR"] * len(heads), rows) if rows else "There are no analysts.")


def set_(options: argparse.Namespace) -> None:
    """Change what an analyst has."""
    accounts = _accounts(options)
    analyst = accounts.set(options.name, _wish(options), _password(options))
    _shown(accounts, analyst, options)


def suspend(options: argparse.Namespace) -> None:
    """Keep an analyst from asking until ``resume``."""
    accounts = _accounts(options)
    _shown(accounts, accounts.set(options.name, Wish(), suspended=True), options)


def resume(options: argparse.Namespace) -> None:
    """Let a suspended analyst ask again."""
    accounts = _accounts(options)
    _shown(accounts, accounts.set(options.name, Wish(), suspended=False), options)


def remove(options: argparse.Namespace) -> None:
    """Let an analyst go."""
    _accounts(options).remove(options.name)
    if options.json:
        output.print_json({"removed": options.name})
    else:
        print(f"{options.name} is removed; what was spent stays spent, and what was released stays.")


def token(options: argparse.Namespace) -> None:
    """A new token, shown once; with ``--revoke`` an end to all of them."""
    accounts = _accounts(options)
    if options.revoke:
        count = accounts.revoke(options.name)
        if options.json:
            output.print_json({"name": options.name, "revoked": count})
        else:
            print(f"{options.name} has no token any more; {count} were taken back.")
        return
    made = accounts.token(options.name)
    if options.json:
        output.print_json({"name": options.name, "token": made})
    else:
        print(f"Token: {made}\nIt is not kept and cannot be shown again; --revoke takes it back.")


def _accounts(options: argparse.Namespace) -> Accounts:
    policy = Policy.load(Path(options.policy))
    ledger = Path(options.ledger) if options.ledger is not None else Path(options.policy).with_suffix(".ledger")
    named = options.anchor if options.anchor is not None else policy.place("anchor")
    anchor = None if named is None else Path(named).absolute()
    passwords = None if options.passwords is None else Path(options.passwords).absolute()
    return Accounts.of(policy, ledger.absolute(), anchor, passwords)


def _wish(options: argparse.Namespace) -> Wish:
    tables = None
    if options.tables is not None:
        tables = tuple(name.strip() for name in options.tables.split(","))
    return Wish(
        options.epsilon,
        options.pure_epsilon,
        options.rho,
        options.local_epsilon,
        options.per_release,
        tables,
        options.expires,
    )


def _password(options: argparse.Namespace) -> str | None:
    """The first line of the file that holds the password, None where none is named."""
    if options.password_file is None:
        return None
    failure = ""
    try:
        return Path(options.password_file).read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except OSError as error:
        failure = error.strerror or "unreadable"
    except UnicodeDecodeError:
        failure = "it is not UTF-8"
    raise OperationalError(f"the password file {options.password_file}: {failure}; check the path")


def _shown(accounts: Accounts, analyst: Analyst, options: argparse.Namespace) -> None:
    if options.json:
        output.print_json(_record(analyst, accounts.state(analyst.name)))
    else:
        why = analyst.refusal()
        print(f"{analyst.name} {why or f'may spend {analyst.budget}'}{'' if why else _within(analyst)}.")


def _within(analyst: Analyst) -> str:
    parts = [] if analyst.tables is None else [f"of {', '.join(analyst.tables)}"]
    parts += [] if analyst.expires is None else [f"until {analyst.expires:%Y-%m-%d %H:%M} UTC"]
    return "".join(f" {part}" for part in parts)


def _record(analyst: Analyst, state: BudgetState | None) -> dict[str, object]:
    accounts = [] if state is None else state.accounts
    return {
        "name": analyst.name,
        "state": analyst.refusal() or "may ask",
        "tables": None if analyst.tables is None else list(analyst.tables),
        "expires": None if analyst.expires is None else analyst.expires.isoformat(),
        "accounts": {
            account.name: {"total": account.total, "spent": account.spent, "remaining": account.remaining}
            for account in accounts
        },
    }
