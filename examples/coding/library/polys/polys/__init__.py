"""Polynomials as lists of coefficients, that of the lowest power first."""
