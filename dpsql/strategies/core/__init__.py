"""What all strategies share: integer rows with exact sensitivity, reduction, ascent, certificates."""
