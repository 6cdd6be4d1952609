"""What should a selection with one block a row take, and does a table of times bear that out?

A block's resources say how many blocks a device holds at once (`topk_lab.models.occupancy`). Rows
beyond that wait for another wave of blocks: so a time grows in steps, or not at all while one
block's latency is the cost (`topk_lab.models.times`). What that is worth in a served model, and how
many winners a full stash loses, is arithmetic (`topk_lab.models.arithmetic`). What more threads
change in the work of a block and of a wave is counted (`topk_lab.models.work`). How many atomics
meet at one bin, and what the remedies save, is `topk_lab.models.contention`. How speed-ups spread
over many cells, and which cells lose, is `topk_lab.models.pairs`; what it costs that one captured
graph serves every length is `topk_lab.models.graphs`. Intervals, here and in `topk_lab.bench`, are
those of `topk_lab.models.bootstrap`. Where the time of the delegate selection goes is
`topk_lab.models.delegate`, and whether it is as fast as was wanted, `topk_lab.models.bars`; how
many reads a selection takes on a CPU is `topk_lab.models.cpu`.

Frames in, frames out: nothing here times anything, and only published tables are read.
"""

from topk_lab.models.arithmetic import (
    StepShare,
    expected_recall,
    published_recall,
    published_step_share,
    published_times,
    recorded_recall,
    step_share,
)
from topk_lab.models.bars import BARS, allowed_us, judge_bars
from topk_lab.models.bootstrap import geomean
from topk_lab.models.contention import (
    COUNTED,
    OPAQUE,
    UNCOUNTED,
    UNCROWDED,
    HotBin,
    ablation_steps,
    contention_costs,
    hot_bin,
    hot_bin_counts,
    remedies,
    striped_pads,
)
from topk_lab.models.cpu import LONG_COLUMNS, cpu_summary, cpu_times, cpu_workloads
from topk_lab.models.delegate import (
    LARGE_BYTES,
    adversarial_ratios,
    growth_slopes,
    growth_times,
    member_regret,
    time_parts,
)
from topk_lab.models.graphs import graph_saving, idle_costs, replays, split_map, split_regret
from topk_lab.models.occupancy import DEVICES, DeviceLimits, Occupancy, resident_blocks
from topk_lab.models.pairs import (
    LOSING,
    agreement,
    distribution,
    distribution_by_axis,
    losing_cells,
    losses_by_kernels,
    paired,
    published_distribution,
)
from topk_lab.models.times import (
    FIT_TOLERANCE,
    FLAT_GROWTH,
    REDUCE,
    THROUGHPUT_ELASTICITY,
    bandwidth_share,
    fit_waves,
    flatness,
    is_read,
    speedups,
)
from topk_lab.models.work import traffic, work_by_block_size

__all__ = [
    "BARS",
    "COUNTED",
    "DEVICES",
    "FIT_TOLERANCE",
    "FLAT_GROWTH",
    "LARGE_BYTES",
    "LONG_COLUMNS",
    "LOSING",
    "OPAQUE",
    "REDUCE",
    "THROUGHPUT_ELASTICITY",
    "UNCOUNTED",
    "UNCROWDED",
    "DeviceLimits",
    "HotBin",
    "Occupancy",
    "StepShare",
    "ablation_steps",
    "adversarial_ratios",
    "agreement",
    "allowed_us",
    "bandwidth_share",
    "contention_costs",
    "cpu_summary",
    "cpu_times",
    "cpu_workloads",
    "distribution",
    "distribution_by_axis",
    "expected_recall",
    "fit_waves",
    "flatness",
    "geomean",
    "graph_saving",
    "growth_slopes",
    "growth_times",
    "hot_bin",
    "hot_bin_counts",
    "idle_costs",
    "is_read",
    "judge_bars",
    "losing_cells",
    "losses_by_kernels",
    "member_regret",
    "paired",
    "published_distribution",
    "published_recall",
    "published_step_share",
    "published_times",
    "recorded_recall",
    "remedies",
    "replays",
    "resident_blocks",
    "speedups",
    "split_map",
    "split_regret",
    "step_share",
    "striped_pads",
    "time_parts",
    "traffic",
    "work_by_block_size",
]
