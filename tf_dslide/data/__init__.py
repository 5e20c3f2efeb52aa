"""Data sets: reading, writing, making, and feeding to Keras."""
