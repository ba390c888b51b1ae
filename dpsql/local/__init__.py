"""SQL over a local release: what was randomised, the questions that it answers, and their estimates. All public.

released      a local release as a value, and as what the ledger keeps of it
scope         the policy under which questions are read: released columns, public ids, public tables
places        an in-memory DuckDB of released rows and of declared values: regions and sums of both
listing       the joint domain as few weighted states, factor by factor, never combination by combination
functions     row functions phi of a statement's numbers over such states
estimators    estimates, covariances, bounds (Wang, Ying and Zhang 2015, Eqs. 12 to 15)
comparison    a plan's errors beside those of a local release

``dpsql.running.local_questions`` is SQL to a result with its errors; ``dpsql.running.local_release`` makes a release
and finds it again.

Nothing here draws, charges or reads a private row: released rows come from the ledger, public tables through a function
that the caller hands over.
"""
