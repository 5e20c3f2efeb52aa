"""Tests of the compiled ops against plain NumPy."""
