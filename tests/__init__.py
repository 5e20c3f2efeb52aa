"""Tests of tf_dslide."""
