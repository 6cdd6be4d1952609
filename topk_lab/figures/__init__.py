"""What do the numbers look like? One function a figure: tidy frame in, Axes out.

No function here opens a file, times anything or touches pyplot's current figure: without ``ax`` a
function makes a figure of its own (``ax.figure``), which a notebook shows when it is the last value
of a cell. Numbers of several kinds (measured, emulated, published) are refused where they would
share an axis unlabelled; where they share one, published marks are hollow and the legend names kind
and device.
"""

from topk_lab.figures.contention import ablation_waterfall, ratio_heat_map, slot_map
from topk_lab.figures.counts import counts_by_threads, recall_by_distribution
from topk_lab.figures.cpu import cpu_over_floor
from topk_lab.figures.delegate import (
    growth_lines,
    row_ratios,
    shape_times,
    time_parts,
    traffic_by_workload,
)
from topk_lab.figures.graphs import (
    regret_heat_map,
    replay_timeline,
    speedup_by_axis,
    speedup_distributions,
    split_map,
)
from topk_lab.figures.peers import peers_times
from topk_lab.figures.style import BLUE, FAINT, GREY, INK, MUTED, SKY, VERMILION, with_provenance
from topk_lab.figures.times import latency_by_rows, speedup_by_length
from topk_lab.figures.traces import trace_bins, trace_histograms, trace_table
from topk_lab.figures.verdicts import claims_overview, exactness_grid

__all__ = [
    "BLUE",
    "FAINT",
    "GREY",
    "INK",
    "MUTED",
    "SKY",
    "VERMILION",
    "ablation_waterfall",
    "claims_overview",
    "counts_by_threads",
    "cpu_over_floor",
    "exactness_grid",
    "growth_lines",
    "latency_by_rows",
    "peers_times",
    "ratio_heat_map",
    "recall_by_distribution",
    "regret_heat_map",
    "replay_timeline",
    "row_ratios",
    "shape_times",
    "slot_map",
    "speedup_by_axis",
    "speedup_by_length",
    "speedup_distributions",
    "split_map",
    "time_parts",
    "trace_bins",
    "trace_histograms",
    "trace_table",
    "traffic_by_workload",
    "with_provenance",
]
