"""Strategies kept on disk, checked again when they are read."""
