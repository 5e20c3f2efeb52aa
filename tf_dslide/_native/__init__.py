"""The compiled ops: loading them, and one thin Python function for each."""

from tf_dslide._native.loader import build_info

__all__ = ["build_info"]
