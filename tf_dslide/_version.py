"""The version of the package, kept apart so that the build can read it without importing TensorFlow."""

__version__ = "0.1.0"
