"""The command ``dpsql policy import``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_GRAMMAR = """
dpsql policy import  print a first policy made from SmartNoise's YAML metadata
metadata FILE  YAML of one collection (needs the extra: dpsql[yaml])
--dataset NAME  id of the data set; default: the collection's name and -1
--epsilon E  the whole budget, where it is decided already
--delta D  the delta of that budget
"""

COMMANDS = Commands(_GRAMMAR, {"policy import": "dpsql.extensions.smartnoise.command:import_"})
