"""Strategies for products: marginals and blocks of histograms, without the product of the domains."""
