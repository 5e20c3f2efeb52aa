"""Trains a softmax over 50,000 classes, and asks it for the best labels of new documents."""

import keras

from tf_dslide import DSlideDense, PrecisionAtK, SparseAdam, SparseDense, top_k_model
from tf_dslide.data import TEST_START, batches, make_synthetic

# Made-up documents of some 20 words, each with one of 50,000 labels.
shape = {"num_features": 20_000, "num_labels": 50_000, "features_per_sample": 20, "noise": 0.2}
train = make_synthetic(100_000, labels_per_sample=1, **shape)
test = make_synthetic(2_000, labels_per_sample=1, start=TEST_START, **shape)

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((20_000,), sparse=True)])
model.add(SparseDense(128, activation="relu"))
model.add(DSlideDense(50_000))
model.compile(SparseAdam(1e-2), "slide_crossentropy", metrics=[PrecisionAtK(1)])
data = batches(train, 512, shuffle=True)
model.fit(data, validation_data=batches(test, 512), epochs=3, shuffle=False, verbose=2)

scores, labels = top_k_model(model, k=3).predict(batches(test, 512), verbose=0)
for document in range(3):
    print(f"label {test.labels.indices[document]}, best three {labels[document]}")
