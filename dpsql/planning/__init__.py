"""A batch understood, compiled and planned: what it costs, how exact it is, and what else could be asked. Free."""
