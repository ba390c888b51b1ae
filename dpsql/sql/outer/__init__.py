"""What is left to DuckDB after the noise: SQL over noisy tables, run in a sandbox."""
