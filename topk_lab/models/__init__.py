"""What should a selection with one block a row take, and does a table of times bear that out?

A block's resources say how many blocks a device holds at once (`topk_lab.models.occupancy`). Rows
beyond that wait for another wave of blocks: so a time grows in steps, or not at all while one
block's latency is the cost (`topk_lab.models.times`). What that is worth in a served model, and how
many winners a full stash loses, is arithmetic (`topk_lab.models.arithmetic`). What more threads
change in the work of a block and of a wave is counted (`topk_lab.models.work`). How many atomics
meet at one bin, and what the remedies save, is `topk_lab.models.contention`. Intervals, here and in
`topk_lab.bench`, are those of `topk_lab.models.bootstrap`.

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
from topk_lab.models.occupancy import DEVICES, DeviceLimits, Occupancy, resident_blocks
from topk_lab.models.times import (
    FIT_TOLERANCE,
    FLAT_GROWTH,
    THROUGHPUT_ELASTICITY,
    bandwidth_share,
    fit_waves,
    flatness,
    speedups,
)
from topk_lab.models.work import work_by_block_size

__all__ = [
    "COUNTED",
    "DEVICES",
    "FIT_TOLERANCE",
    "FLAT_GROWTH",
    "OPAQUE",
    "THROUGHPUT_ELASTICITY",
    "UNCOUNTED",
    "UNCROWDED",
    "DeviceLimits",
    "HotBin",
    "Occupancy",
    "StepShare",
    "ablation_steps",
    "bandwidth_share",
    "contention_costs",
    "expected_recall",
    "fit_waves",
    "flatness",
    "hot_bin",
    "hot_bin_counts",
    "published_recall",
    "published_step_share",
    "published_times",
    "recorded_recall",
    "remedies",
    "resident_blocks",
    "speedups",
    "step_share",
    "striped_pads",
    "work_by_block_size",
]
