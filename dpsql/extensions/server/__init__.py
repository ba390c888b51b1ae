"""The custodian's service: one process that holds connection and ledger, and answers over PostgreSQL's protocol.

Trust. Whoever connects is an analyst: what they send is hostile, and what they get is released values, plans and
messages, none of which depends on a private row beyond what was charged for. Only ``Service`` has the
``dpsql.Connection``; it hands out results, and an error that is none of ``dpsql.errors`` is replaced by fixed text.

    listener ──> client ──> wire (bytes) ──> session ──> service ──> catalogue | releases | worker (charged)
"""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "server",
    "answers analysts over PostgreSQL's protocol, Arrow Flight SQL and the Model Context Protocol",
    requires="serve",
    commands="dpsql.extensions.server.command_line:COMMANDS",
    options="dpsql.extensions.server.command_line:OPTIONS",
)
