"""Run under mpirun: a training by `fit`, then another in which something befalls rank 1.

The argument is `exception` or `leave`.
"""

import sys

import tests.fewer_imports  # noqa: F401

# isort: split
import keras

from tests.parallel.training_cases import build, stream
from tf_dslide.parallel import MPIModelParallel


class Trouble(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and split.rank == 1:
            if sys.argv[1] == "exception":
                raise KeyError("something of the user's own")
            sys.exit(0)


split = MPIModelParallel(timeout=20, check_every=4)
model, train = build(split), stream()
history = model.fit(train, epochs=8, shuffle=False)
result = model.evaluate(train, return_dict=True, verbose=0)
assert history.history["loss"][-1] < history.history["loss"][0]
assert result["precision_at_1"] > 0.8, result
# One write with its line's end: `print` makes two, between which the other rank's may come.
sys.stderr.write(f"precision on rank {split.rank}: {result['precision_at_1']}\n")
model.fit(train, epochs=2, shuffle=False, callbacks=[Trouble()])
