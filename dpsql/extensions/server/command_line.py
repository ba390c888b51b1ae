"""The commands of the server: ``dpsql serve``, ``mcp``, ``analyst`` and ``requests``."""

from __future__ import annotations

from dpsql.common.options import rows
from dpsql.surfaces.command_text import Commands

OPTIONS = tuple(
    rows("""
--mu M:amount/epsilon,delta,rho  setting  instead of these: Gaussian differential privacy
--errors on|off:switch=off  setting  whether results have the columns of errors
--confidence C:share=0.95  setting  confidence of the intervals
""")
)
LEDGER = """
policy POLICY  policy file (TOML)
+ ledger anchor
"""
BOOKS = f"""{LEDGER.rstrip()}
--passwords FILE  file of the analysts' password verifiers; default: beside the ledger
"""
SHARE = """
--epsilon E  what the analyst may spend in all, at the policy's delta
--pure-epsilon E  how much of it without a delta; default: as large a part as in the policy
--rho R  instead of epsilon where the policy's budget is in rho
--local-epsilon E  what of the local account
--per-release E  most that one release may cost: epsilon, or rho
--tables A,B  private tables that may be asked; default: all, * for all again
--expires DATE  when the account ends (UTC), such as 2027-01-01; never for no end
--password-file FILE  the password, the first line of a file
"""
_GRAMMAR = f"""
dpsql serve  answer analysts over PostgreSQL's protocol; until SIGTERM or Ctrl-C (needs the extra: dpsql[serve])
{BOOKS}
+ database releases
--host HOST:text=127.0.0.1  where to listen; beyond this machine with TLS only (default: 127.0.0.1)
--port PORT:whole=5432  the port (default: 5432; 0: any that is free)
--tls-cert FILE  certificate, and those between it and the root (PEM)
--tls-key FILE  its key (PEM)
--mcp-port PORT:whole  the port of agents' tools, by the Model Context Protocol over HTTP (needs the extra: dpsql[mcp])
--flight-port PORT:whole  the port of Arrow Flight SQL, for whole results as Arrow (needs the extra: dpsql[flight])
--status PLACE  port, or host:port, of /healthz and Prometheus' /metrics; not encrypted, without data
--log FILE  audit log, a line of JSON for each statement; default: beside the ledger
--connections N:whole=200  most sessions at once (default: 200)
--per-account N:whole=50  most sessions of one analyst (default: 50)
--statement-bytes N:whole=1000000  most bytes of one message (default: 1000000)
--statements-per-minute N:whole=6000  most statements of an analyst in a minute (default: 6000)
--idle-timeout SECONDS:number=3600  end a session after so long without a message (default: 3600)
--grace SECONDS:number=30  how long running statements may take to end when the server stops (default: 30)
+ scanning

dpsql mcp  tools for an analyst's agent, over stdin and stdout (needs the extra: dpsql[mcp])
{BOOKS}
--analyst NAME!  whose account is asked and charged
+ database releases
--log FILE  audit log; default: beside the ledger
+ scanning

dpsql analyst add  let somebody sign in, with a budget of their own
name NAME  the name that they sign in with, which is the label of their charges
{BOOKS}{SHARE}

dpsql analyst list  list who may sign in, what each may spend and has spent
{BOOKS}

dpsql analyst set  change budget, tables, end or password of an analyst
name NAME  the analyst
{BOOKS}{SHARE}

dpsql analyst suspend  keep an analyst from asking until resume
name NAME  the analyst
{BOOKS}

dpsql analyst resume  let a suspended analyst ask again
name NAME  the analyst
{BOOKS}

dpsql analyst remove  let an analyst go; what was spent stays spent
name NAME  the analyst
{BOOKS}

dpsql analyst token  make a token for an analyst's agents, shown once
name NAME  the analyst
{BOOKS}
--revoke  take all of their tokens back instead

dpsql requests list  list the batches that wait, who asks, and what each would cost
{LEDGER}
--all  those that were decided, too

dpsql requests show  show one batch whole, with its plan: the error of every number
number N:whole  the request
{LEDGER}

dpsql requests approve  let a batch be charged, once, when its analyst asks for it again
number N:whole  the request
{LEDGER}
--note TEXT  what the analyst is told

dpsql requests refuse  keep a batch from being charged
number N:whole  the request
{LEDGER}
--note TEXT  what the analyst is told
"""

COMMANDS = Commands(
    _GRAMMAR,
    {
        "serve": "dpsql.extensions.server.serve:serve",
        "mcp": "dpsql.extensions.server.serve:mcp",
        "analyst add": "dpsql.extensions.server.analysts:add",
        "analyst list": "dpsql.extensions.server.analysts:list_",
        "analyst set": "dpsql.extensions.server.analysts:set_",
        "analyst suspend": "dpsql.extensions.server.analysts:suspend",
        "analyst resume": "dpsql.extensions.server.analysts:resume",
        "analyst remove": "dpsql.extensions.server.analysts:remove",
        "analyst token": "dpsql.extensions.server.analysts:token",
        "requests list": "dpsql.extensions.server.requests:list_",
        "requests show": "dpsql.extensions.server.requests:show",
        "requests approve": "dpsql.extensions.server.requests:approve",
        "requests refuse": "dpsql.extensions.server.requests:refuse",
    },
    shown={"serve": "serve mcp analyst requests"},
    groups={
        "analyst": (
            "say who may sign in to a server, and what each may spend",
            "The analysts of a server: each has a budget of its own inside the policy's, held to by the ledger.",
        ),
        "requests": (
            "see, approve or refuse the batches that wait for it",
            "Batches of a server's analysts that wait as plans, where the policy has approval = true in [budget].",
        ),
    },
)
