"""Markdown tables, figures beside those of a paper, and trends that hold or deviate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

CLOSE = 0.01  # a figure of a paper holds where ours is within 1 % of it


class Report:
    """Prints as it goes and counts: ``deviations`` are the lines that a reader should see."""

    def __init__(self) -> None:
        self.held = 0
        self.corrected = 0
        self.deviations: list[str] = []

    def beside(self, what: str, paper: str, here: float) -> str:
        """``paper / here``: with a dagger where they differ by more than 1 %, which counts as a deviation.

        A star in ``paper`` marks a figure that is known not to hold: shown, not compared.
        """
        shown = f"{paper} / {here:.4g}"
        if paper.endswith("*"):
            self.corrected += 1
        elif abs(here - float(paper)) <= CLOSE * abs(float(paper)):
            self.held += 1
        else:
            self.deviations.append(f"{what}: the paper {paper}, here {here:.4g}")
            shown += " †"
        return shown

    def trend(self, text: str, holds: bool, figures: str) -> None:
        """One line: a trend that a paper's text states, whether it shows here, and the figures that decide."""
        print(f"- {'holds' if holds else '**deviates**'}: {text} ({figures})")
        if holds:
            self.held += 1
        else:
            self.deviations.append(f"{text}: {figures}")
        sys.stdout.flush()

    def heading(self, text: str) -> None:
        print(f"\n## {text}")

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], notes: str = "") -> None:
        print(f"\n### {title}\n")
        print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
        for row in rows:
            print("| " + " | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row) + " |")
        print(f"\n{notes}" if notes else "")
        sys.stdout.flush()

    def summary(self) -> None:
        self.heading("Summary")
        print(f"\n{self.held} figures and trends hold, {self.corrected} figures are known not to hold (`*`), ", end="")
        print(f"{len(self.deviations)} deviate:\n")
        for line in self.deviations:
            print(f"- {line}")
