"""``dpsql serve``: the server in the foreground, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsql.common.extras import install_command
from dpsql.driver.connection import Connection
from dpsql.errors import InterfaceError, ProgrammingError
from dpsql.planning.figures import counted
from dpsql.surfaces import inputs, output

if TYPE_CHECKING:
    from dpsql.extensions.server.accounts import Accounts
    from dpsql.extensions.server.flight import Flights
    from dpsql.extensions.server.listener import Server
    from dpsql.extensions.server.status import Status

log = logging.getLogger("dpsql")
_HANGUP = "SIGHUP changes nothing; to read policy and certificate again, stop the server with SIGTERM and start it"


def serve(options: argparse.Namespace) -> None:
    """Answer analysts until SIGTERM or Ctrl-C; running statements may end first."""
    if importlib.util.find_spec("pygwire") is None:
        raise InterfaceError(f"a server needs pygwire; install it with: {install_command('serve')}")
    if (options.tls_cert is None) != (options.tls_key is None):
        options.usage("TLS needs a certificate and its key; give --tls-cert FILE and --tls-key FILE, or neither")
    if options.mcp_port is not None:
        _check_mcp()
    with inputs.connected(options) as con:
        ended = asyncio.run(_served(con, options))
    if not ended:  # a client that takes no more of its rows is not waited for
        sys.stdout.flush()
        os._exit(0)


async def _served(con: Connection, options: argparse.Namespace) -> bool:
    """Serve until told to stop; whether all calls had ended then."""
    from dpsql.extensions.server.accounts import Accounts
    from dpsql.extensions.server.journal import Journal
    from dpsql.extensions.server.listener import Server, tls_context
    from dpsql.extensions.server.protocol.limits import Limits
    from dpsql.extensions.server.service import Service

    loop = asyncio.get_running_loop()
    if sys.platform != "win32":
        loop.add_signal_handler(signal.SIGHUP, log.warning, _HANGUP)
    limits = Limits(
        connections=options.connections,
        per_account=options.per_account,
        statement=options.statement_bytes,
        statements=options.statements_per_minute,
        idle=options.idle_timeout,
    )
    con.schemas()  # what is wrong with the tables is said now, not to the first analyst
    accounts = Accounts.of(con.policy, con.ledger_path, _anchor(con, options), _path(options.passwords))
    tls: ssl.SSLContext | None = None
    if options.tls_cert is not None:
        tls = tls_context(options.tls_cert, options.tls_key)
    journal = Journal(_path(options.log) or con.ledger_path.with_suffix(".audit.jsonl"))
    service = Service(con, limits, accounts)
    server = Server(service, accounts.verifier, options.host, options.port, tls, limits, journal)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agents, status = _agents(server, accounts, tls, options), _status(server, options)
    flights = _flights(server, accounts, options)
    await server.start()
    ports = {"port": server.port}
    if agents is not None:
        await agents.start()
        ports["mcp_port"] = agents.port
    if flights is not None:
        await flights.start()
        ports["flight_port"] = flights.port
    if status is not None:
        await status.start()
        ports["status_port"] = status.port
    _announce(server.host, ports, len(accounts.listed()), options, secure=tls is not None)
    await stop.wait()
    if not options.quiet:
        print("dpsql: stopping; running statements may end first", file=sys.stderr)
    ends = [server.stop(options.grace), *([agents.stop(options.grace)] if agents is not None else [])]
    flown = asyncio.ensure_future(_stopped(flights, options.grace))
    await asyncio.gather(flown, *ends)
    if status is not None:
        await status.stop()
    await loop.run_in_executor(None, service.close)
    journal.close()
    return flown.result()


async def _stopped(flights: Flights | None, seconds: float) -> bool:
    return flights is None or await flights.stop(seconds)


def _agents(server: Server, accounts: Accounts, tls: ssl.SSLContext | None, options: argparse.Namespace) -> Any:
    if options.mcp_port is None:
        return None
    from dpsql.extensions.server.web import Agents

    return Agents(server, accounts.owner, options.mcp_port, tls)


def _flights(server: Server, accounts: Accounts, options: argparse.Namespace) -> Flights | None:
    if options.flight_port is None:
        return None
    if importlib.util.find_spec("pyarrow") is None:
        raise InterfaceError(f"Arrow Flight SQL needs pyarrow; install it with: {install_command('flight')}")
    from dpsql.extensions.server.flight import Flights

    return Flights(server, accounts.owner, options.flight_port, options.tls_cert, options.tls_key)


def _status(server: Server, options: argparse.Namespace) -> Status | None:
    if options.status is None:
        return None
    from dpsql.extensions.server.status import Status

    host, _, port = options.status.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        options.usage(f"--status is {options.status!r}; give a port, such as 9090, or a host and a port, 0.0.0.0:9090")

    def well() -> None:
        server.well()
        server.service.check()

    return Status(server.journal, well, server.gauges, host.strip("[]") or "127.0.0.1", int(port))


def mcp(options: argparse.Namespace) -> None:
    """Answer an agent on stdin and stdout until it leaves, under an analyst's account."""
    _check_mcp()
    from dpsql.extensions.server.accounts import Accounts
    from dpsql.extensions.server.agents import Agent, tools
    from dpsql.extensions.server.journal import Journal
    from dpsql.extensions.server.protocol.limits import Allowance, Limits
    from dpsql.extensions.server.service import Service

    with inputs.connected(options) as con:
        accounts = Accounts.of(con.policy, con.ledger_path, _anchor(con, options), _path(options.passwords))
        analyst = accounts.analyst(options.analyst)
        why = "is unknown" if analyst is None else analyst.refusal()
        if why:
            raise ProgrammingError(f"the analyst {options.analyst} {why}; 'dpsql analyst list' shows who there is")
        journal = Journal(_path(options.log) or con.ledger_path.with_suffix(".audit.jsonl"))
        service = Service(con, accounts=accounts)
        tools(Agent(service, options.analyst, journal, Allowance(Limits().statements))).run("stdio")
        service.close()
        journal.close()


def _check_mcp() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("mcp", "uvicorn", "pygwire")):
        raise InterfaceError(f"agents need the package mcp; install it with: {install_command('mcp')}")


def _announce(host: str, ports: dict[str, int], analysts: int, options: argparse.Namespace, *, secure: bool) -> None:
    if options.json:
        output.print_json({"host": host, **ports, "tls": secure, "analysts": analysts})
    elif not options.quiet:
        tls, who = " with TLS" if secure else "", counted(analysts, "analyst")
        print(f"dpsql: listening at {host} port {ports['port']}{tls}, for {who}")
        if "mcp_port" in ports:
            print(f"dpsql: agents at http{'s' if secure else ''}://{host}:{ports['mcp_port']}/mcp")
        if "flight_port" in ports:
            print(f"dpsql: Arrow Flight SQL at grpc{'+tls' if secure else ''}://{host}:{ports['flight_port']}")
        if "status_port" in ports:
            print(f"dpsql: /healthz and /metrics at port {ports['status_port']}")
        if not analysts:
            print(f"dpsql: nobody can sign in yet; add somebody with 'dpsql analyst add NAME {options.policy} ...'")
    sys.stdout.flush()


def _anchor(con: Connection, options: argparse.Namespace) -> Path | None:
    named = options.anchor if options.anchor is not None else con.policy.place("anchor")
    return None if named is None else Path(named).absolute()


def _path(named: str | None) -> Path | None:
    return None if named is None else Path(named).absolute()
