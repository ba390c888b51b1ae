"""Workload matrices as products, and the families that papers study."""
