"""Connections as users hold them: opening, asking by SQL, PEP 249 cursors, first policies."""
