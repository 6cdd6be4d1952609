"""How long does a selection take on this device, and how does that compare?

`topk_lab.bench.timing` measures calls that were checked exact first;
`topk_lab.bench.experiments` holds what is measured: named lists of cells, run by `run` and
recorded through `topk_lab.results`, those of the source's matrix in `topk_lab.bench.matrix`, those
about graphs and splits in `topk_lab.bench.graphs`, those about this package's own variant in
`topk_lab.bench.delegate` and, on a CPU, in `topk_lab.bench.cpu`; `topk_lab.bench.peers` runs the
selections of other packages where they are installed; `topk_lab.bench.ratios` compares records with
published times, `topk_lab.bench.compare` with those of another run or variant;
`topk_lab.bench.overhead` takes a call's host time apart.
"""

from topk_lab.bench.cells import Cell, Experiment
from topk_lab.bench.device import Device, TorchDevice, current_gpu
from topk_lab.bench.experiments import EXPERIMENTS, planned, run
from topk_lab.bench.overhead import host_overhead
from topk_lab.bench.peers import PEERS, survey
from topk_lab.bench.ratios import against_peers, against_published, geomeans
from topk_lab.bench.timing import Candidate, Effort, Timing, measure

__all__ = [
    "EXPERIMENTS",
    "PEERS",
    "Candidate",
    "Cell",
    "Device",
    "Effort",
    "Experiment",
    "Timing",
    "TorchDevice",
    "against_peers",
    "against_published",
    "current_gpu",
    "geomeans",
    "host_overhead",
    "measure",
    "planned",
    "run",
    "survey",
]
