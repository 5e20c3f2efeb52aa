"""The methods that are compared."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple

from baselines.training import Method, Session


class Kind(NamedTuple):
    """A method before it runs.

    Attributes:
        title: Its name for people.
        make: Module, class and further arguments, imported in the run's processes alone.
        on_all_ranks: Whether it uses all ranks; otherwise one process, on one host.
        needs: Packages that may be missing.
        learning_rate: Its usual one.
        settings: What else a reader must know, written into the run record.
        hidden_layer: Whether it trains one of the width asked for.
        in_steps: Whether it trains on batches at a learning rate.
    """

    title: str
    make: tuple[str, ...]
    on_all_ranks: bool
    needs: tuple[str, ...] = ()
    learning_rate: float = 1e-2
    settings: Mapping[str, str] = MappingProxyType({})
    hidden_layer: bool = True
    in_steps: bool = True

    def processes(self, ranks: int) -> int:
        """How many it runs in, where there are so many ranks."""
        return ranks if self.on_all_ranks else 1

    def missing(self) -> list[str]:
        """Packages that it needs and that are not installed."""
        return [package for package in self.needs if find_spec(package) is None]

    def build(self, session: Session) -> Method:
        """The method at work, in one process of a run."""
        module, name, *arguments = self.make
        kind: Callable[..., Method] = getattr(import_module(f"baselines.{module}"), name)
        return kind(session, *arguments)


_SPARSE = {"optimizer": "SparseAdam", "prior": "label counts"}
_ROWS = {"optimizer": "row-sparse Adam", "prior": "label counts"}
_DENSE = {"optimizer": "Adam, TensorFlow's fused kernel", "prior": "label counts"}
_NEGATIVES = {"negatives": "uniform, the batch's labels"}


def _network(title: str, negatives: str, *make: str) -> Kind:
    """D-SLIDE's network with a sampler, and perhaps a hash family."""
    settings = {**_SPARSE, "negatives": negatives}
    return Kind(title, ("dslide", "DSlide", *make), True, settings=settings)


def _hashed(family: str) -> Kind:
    title = f"D-SLIDE, active sets a sample by {family}"
    return _network(title, f"LSH ({family}), a sample", "LshSampler", family)


METHODS = {
    "dslide-lsh": _network(
        "D-SLIDE, active sets a sample", "LSH (SimHash), a sample", "LshSampler"
    ),
    "dslide-shared_lsh": _network(
        "D-SLIDE, one active set a batch", "LSH, the batch, and its labels", "SharedLshSampler"
    ),
    "dslide-wta": _hashed("WTA"),
    "dslide-dwta": _hashed("DWTA"),
    "dslide-minhash": _hashed("MinHash"),
    "dslide-learned": _hashed("LearnedHash"),
    "dslide-uniform": _network("D-SLIDE, uniform negatives", "uniform", "UniformSampler"),
    "dslide-all": _network("D-SLIDE, all neurons", "all", "AllNeurons"),
    "dslide-linear": Kind(
        "D-SLIDE, linear, features as buckets",
        ("linear", "DSlideLinear"),
        False,
        learning_rate=1.0,
        settings={
            "optimizer": "SparseAdagrad",
            "loss": "one-vs-rest",
            "hidden layer": "none",
            "active": "ten for each label of a mean sample (25 at least), and the labels",
        },
        hidden_layer=False,
    ),
    "horovod-dense": Kind(
        "Horovod, dense softmax",
        ("horovod_dense", "HorovodDense"),
        True,
        ("horovod",),
        settings={**_DENSE, "gradients": "allreduce, averaged"},
    ),
    "horovod-sampled": Kind(
        "Horovod, sampled softmax",
        ("horovod_sampled", "HorovodSampled"),
        True,
        ("horovod",),
        settings={**_ROWS, **_NEGATIVES, "gradients": "allgather of rows"},
    ),
    "tf-dense": Kind(
        "TensorFlow, dense softmax",
        ("tensorflow_dense", "TensorFlowDense"),
        False,
        settings=_DENSE,
    ),
    "tf-sampled": Kind(
        "TensorFlow, sampled softmax",
        ("tensorflow_sampled", "TensorFlowSampled"),
        False,
        settings={**_ROWS, **_NEGATIVES},
    ),
    "omikuji": Kind(
        "Omikuji, 3 label trees",
        ("omikuji_trees", "Omikuji"),
        False,
        ("omikuji",),
        settings={"trees": "3", "hyperparameters": "Omikuji's defaults"},
        hidden_layer=False,
        in_steps=False,
    ),
}

# Names that stand for several methods in `--methods`.
GROUPS = {
    "usual": (
        "dslide-lsh",
        "dslide-shared_lsh",
        "dslide-linear",
        "horovod-dense",
        "horovod-sampled",
        "tf-dense",
        "tf-sampled",
        "omikuji",
    ),
    "study": (
        "dslide-linear",
        "omikuji",
        "dslide-shared_lsh",
        "dslide-lsh",
        "dslide-learned",
        "dslide-wta",
        "dslide-dwta",
        "dslide-minhash",
        "dslide-uniform",
        "dslide-all",
        "tf-dense",
        "tf-sampled",
    ),
}
