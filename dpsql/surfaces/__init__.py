"""Where people and programs meet dpsql; each surface reads options, calls the library, shows the outcome."""
