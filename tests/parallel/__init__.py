"""Tests of jobs of several ranks; the programs that they run are in `programs/`."""
