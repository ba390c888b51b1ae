"""The command ``dpsql policy import``."""

from __future__ import annotations

import argparse

from dpsql.extensions.smartnoise.metadata import policy_from_smartnoise
from dpsql.surfaces import inputs, output


def import_(options: argparse.Namespace) -> None:
    """Print a first policy made from SmartNoise's YAML metadata, for the custodian to complete."""
    text, tables = policy_from_smartnoise(
        inputs.from_file(options.metadata, "metadata", ""),
        options.dataset,
        epsilon=options.epsilon,
        delta=options.delta,
    )
    if options.json:
        output.print_json({"policy": text, "tables": tables})
    else:
        print(text, end="")
