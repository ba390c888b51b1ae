"""Measurement in rounds that adapt to what came out."""
