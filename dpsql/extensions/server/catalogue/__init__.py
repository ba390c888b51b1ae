"""A catalogue of PostgreSQL's for tools: what tables there are, with columns, types and comments, and nothing of rows.

A DuckDB in memory holds PostgreSQL's own catalogue tables, filled from the policy and the names of what is released;
the text of a tool's query is brought into DuckDB's dialect by its tokens. No private table can be reached from it.
"""
