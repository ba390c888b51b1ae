"""The public face of pages of plans and releases (the extension ``reports``)."""

from __future__ import annotations

from dpsql.extensions.reports.report import report_plan as report_plan
from dpsql.extensions.reports.report import report_release as report_release

__all__ = ["report_plan", "report_release"]
