"""One model over many ranks: `mpirun -np 4 python examples/parallel.py`.

Trains on made-up data; `--preset amazon-670k` has the shape of Amazon-670K (670,091 classes). Every
rank runs this same program on the same batches and holds a range of each layer's units. Needs the
extra `mpi`: `pip install 'tf-dslide[mpi]'`.
"""

import argparse

import keras

from tf_dslide import DSlideDense, PrecisionAtK, SlideCrossentropy, SparseAdam, SparseDense
from tf_dslide.data import PRESETS, batches, make_preset
from tf_dslide.parallel import MPIModelParallel


def arguments() -> argparse.Namespace:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="small", choices=sorted(PRESETS))
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--wire", default="float32", choices=["float32", "bfloat16"])
    return parser.parse_args()


def main() -> None:
    """Trains on this rank."""
    args = arguments()
    strategy = MPIModelParallel(wire=args.wire)
    keras.utils.set_random_seed(0)
    spec = PRESETS[args.preset].spec
    model = keras.Sequential(
        [
            keras.Input((spec.num_features,), sparse=True),
            SparseDense(args.hidden, activation="relu", strategy=strategy),
            DSlideDense(spec.num_labels, strategy=strategy),
        ]
    )
    model.compile(SparseAdam(1e-2), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    train = batches(
        make_preset(args.preset, num_samples=args.samples), args.batch_size, shuffle=True
    )
    test = batches(make_preset(args.preset, split="test", num_samples=1024), args.batch_size)
    model.fit(train, epochs=args.epochs, validation_data=test, shuffle=False)
    if strategy.rank == 0:
        print(strategy.stats.table())


if __name__ == "__main__":
    main()
