"""Figures that others published, with the hardware they are from. Nothing here is measured by us.

They stand beside measured figures in a report, labelled as published, and enter no computation.
"""

from dataclasses import dataclass
from typing import Literal

PAPER = "Distributed SLIDE, arXiv 2201.12667"
URL = "https://arxiv.org/abs/2201.12667"

Kind = Literal["speed", "epoch", "gpu", "traffic", "size"]


@dataclass(frozen=True)
class Published:
    """One published figure.

    Attributes:
        kind: What of a run is comparable: its speed over dense Horovod, its epoch's time beside
            dense Horovod's, its speed over a run on a GPU, its traffic, or its size.
        claim: What was measured.
        figure: The published figure.
        hardware: What it was measured on.
        nodes: Number of nodes; None if it is not tied to one.
        cores: Cores of a node; None if it is not tied to one.
        network: The network between the nodes; "" if it is not tied to one.
        data: Beginning of the data set's name; "" if it is not tied to one.
        gpu: The GPU that is compared with.
    """

    kind: Kind
    claim: str
    figure: str
    hardware: str
    nodes: int | None = None
    cores: int | None = None
    network: str = ""
    data: str = ""
    gpu: str = ""


PUBLISHED = (
    Published(
        "speed",
        "D-SLIDE over Horovod",
        "80 times as fast",
        "2 nodes of 16 cores, 1 Gbps",
        nodes=2,
        cores=16,
        network="1gbit",
    ),
    Published(
        "epoch",
        "Seconds an epoch, D-SLIDE and Horovod",
        "5,417 s and more than 280,000 s",
        "8 nodes of 4 cores",
        nodes=8,
        cores=4,
    ),
    Published(
        "gpu", "Text8, over one V100", "6.7 times as fast", "2 nodes", 2, None, "", "text8", "V100"
    ),
    Published(
        "gpu", "Text8, over one A100", "2.5 times as fast", "2 nodes", 2, None, "", "text8", "A100"
    ),
    Published(
        "gpu",
        "Amazon-670K, over two V100",
        "3.0 times as fast",
        "2 nodes",
        2,
        None,
        "",
        "amazon-670k",
        "V100",
    ),
    Published(
        "gpu",
        "Amazon-670K, over one A100",
        "2.1 times as fast",
        "2 nodes",
        2,
        None,
        "",
        "amazon-670k",
        "A100",
    ),
    Published("traffic", "Less communication than Horovod", "99 % (99.9 %)", "CPU nodes"),
    Published("size", "Largest network trained", "800 million parameters", "nodes with 8 to 16 GB"),
)
