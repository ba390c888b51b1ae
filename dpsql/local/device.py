"""The public face of randomised response on the device of a record's owner (``dpsql.extensions.local.device``)."""

from __future__ import annotations

from dpsql.extensions.local.device import *  # noqa: F403 - the names of its __all__
from dpsql.extensions.local.device import __all__ as __all__
