"""Lets Keras be imported in two thirds of the time.

Programs that tests start import this first. For its wrappers and its pictures Keras imports
scikit-learn and Matplotlib, where there are any; those programs need neither.
"""

import sys

for name in ("sklearn", "matplotlib"):
    sys.modules[name] = None
