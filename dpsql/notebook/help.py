"""What ``%dpsql help`` says."""

HELP = """\
%%dpsql [options]                  a cell of SQL: one batch, one budget
%dpsql [options] SELECT ...        the same on one line
%%dpsql name <<                    keep the results as the variable name; only the footer is shown
%%dpsql -o name                    keep them and show them

options
  -c, --connection NAME   ask this connection
  -o, --output NAME       keep the results as a Python variable, and show them
  --epsilon E             budget of the batch: pure, or with the policy's delta
  --delta D               with epsilon: (epsilon, delta)-differential privacy
  --rho R                 instead of both: zero-concentrated differential privacy
  --alpha A               1 - confidence of the intervals (0.05)
  --dry-run               show the plan with its errors; spends nothing
  --save NAME             keep the SELECT as the released view dp.NAME
  --save FILE             write the results to FILE: .csv, .parquet or .json
  {{x}}                   in the SQL: the value of the Python variable x, as one literal; IN ({{xs}}) for a list

commands
  %dpsql connect POLICY [DATABASE] [--as NAME] [--ledger FILE] [--releases FILE] [--anchor FILE] [--label TEXT]
                          [--epsilon-per-release E] [--delta-per-release D] [--rho-per-release R]
  %dpsql NAME             use this connection: the name of a variable, or of connect
  %dpsql connections      all connections
  %dpsql close [NAME]     close one
  %dpsql tables           what can be asked: tables, views, released views, with their columns
  %dpsql budget           what is spent and left
  %dpsql releases         every charge, oldest first
  %config DPSqlMagic      settings: epsilon, delta, rho, alpha, row_limit, style

Free: queries over released views, --dry-run, what an earlier release answers, and all commands."""
