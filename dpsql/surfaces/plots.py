"""The public face of pictures (the extension ``reports``)."""

from __future__ import annotations

from dpsql.extensions.reports.plots import *  # noqa: F403 - the names of its __all__
from dpsql.extensions.reports.plots import __all__ as __all__
