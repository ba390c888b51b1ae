"""Earlier measurements: what the ledger keeps of them, and what they say together about a new batch.

``stored_measurements`` turns the integers of a measurement into what a payload holds, and back. ``joint`` finds the
cells that earlier batches and a new one separate, and reads every earlier measurement over them. ``combined``
works out what follows for the new batch, by generalised least squares (``dpsql.reconstruct.combined``).
``combined_plan`` plans a batch that they know in part: its own measurement, and the answers of all together. All of it
is public and free: noisy measurements, policies and SQL text decide, never a row.
"""

from __future__ import annotations

from .combined import Combination, alone, combine
from .joint import Past, past_of
from .stored_measurements import keep, meaning_of

__all__ = ["Combination", "Past", "alone", "combine", "keep", "meaning_of", "past_of"]
