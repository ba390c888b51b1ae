"""Engines: what runs the one generated scan over private tables. Only ``dpsql.measure`` imports them."""
