"""The text of a batch as statements with their places, and what is refused before anything else."""
