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
        make: Module, class and further arguments, imported in the run's processes alone.
        on_all_ranks: Whether it uses all ranks; otherwise one process, on one host.
        needs: Packages that may be missing.
        learning_rate: Its usual one.
        settings: What else a reader must know, written into the run record.
        hidden_layer: Whether it trains one of the width asked for.
        in_steps: Whether it trains on batches at a learning rate.
    """

    make: tuple[str, ...]
    on_all_ranks: bool
    needs: tuple[str, ...] = ()
    learning_rate: float = 1e-2
    settings: Mapping[str, str] = MappingProxyType({})
    hidden_layer: bool = True
    in_steps: bool = True

    def processes(self, ranks: int) -> int:
        """The number of processes it runs in on this many ranks."""
        return ranks if self.on_all_ranks else 1

    def missing(self) -> list[str]:
        """Packages that it needs and that are not installed."""
        return [package for package in self.needs if find_spec(package) is None]

    def build(self, session: Session) -> Method:
        """The method, ready to train, in one process of a run."""
        module, name, *arguments = self.make
        kind: Callable[..., Method] = getattr(import_module(f"baselines.{module}"), name)
        return kind(session, *arguments)


_SPARSE = {"optimizer": "SparseAdam", "prior": "label counts"}
_ROWS = {"optimizer": "row-sparse Adam", "prior": "label counts"}
_DENSE = {"optimizer": "Adam, TensorFlow's fused kernel", "prior": "label counts"}
_OTHERS = ", and the batch's labels"
_UNIFORM = f"uniform{_OTHERS}"
_NEGATIVES = {"negatives": _UNIFORM}


def _network(negatives: str, *make: str) -> Kind:
    """D-SLIDE's network with a sampler, and perhaps a hash family."""
    settings = {**_SPARSE, "negatives": negatives}
    return Kind(("dslide", "DSlide", *make), True, settings=settings)


def _hashed(family: str) -> Kind:
    return _network(f"LSH ({family}) per sample{_OTHERS}", "LshSampler", family)


METHODS = {
    "dslide-lsh": _network(f"LSH (SimHash) per sample{_OTHERS}", "LshSampler"),
    "dslide-wta": _hashed("WTA"),
    "dslide-dwta": _hashed("DWTA"),
    "dslide-minhash": _hashed("MinHash"),
    "dslide-learned": _hashed("LearnedHash"),
    "dslide-uniform": _network(_UNIFORM, "UniformSampler"),
    "dslide-all": _network("all", "AllNeurons"),
    "dslide-linear": Kind(
        ("linear", "DSlideLinear"),
        False,
        learning_rate=1.0,
        settings={
            "optimizer": "SparseAdagrad",
            "loss": "one-vs-rest",
            "hidden layer": "none",
            "active": "ten per label of a mean sample (at least 25), and the labels",
        },
        hidden_layer=False,
    ),
    "horovod-dense": Kind(
        ("horovod_dense", "HorovodDense"),
        True,
        ("horovod",),
        settings={**_DENSE, "gradients": "allreduce, averaged"},
    ),
    "horovod-sampled": Kind(
        ("horovod_sampled", "HorovodSampled"),
        True,
        ("horovod",),
        settings={**_ROWS, **_NEGATIVES, "gradients": "allgather of rows"},
    ),
    "tf-dense": Kind(
        ("tensorflow_dense", "TensorFlowDense"),
        False,
        settings=_DENSE,
    ),
    "tf-sampled": Kind(
        ("tensorflow_sampled", "TensorFlowSampled"),
        False,
        settings={**_ROWS, **_NEGATIVES},
    ),
    "omikuji": Kind(
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
        "dslide-uniform",
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
