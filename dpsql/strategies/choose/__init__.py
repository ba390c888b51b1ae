"""The catalogue of methods, and the choice among them by computed error."""
