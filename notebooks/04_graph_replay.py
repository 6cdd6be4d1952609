# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Graph replay and split policy
#
# **Question.** A decode step is a captured graph: grids and workspace are fixed, while every row
# grows with every token. vLLM #56743 launches as many splits of a row as the longest could want,
# and lets the live length choose on the device how many of them work. Does that stay exact at
# every replay? What does it cost to serve every length with one graph, and were the splits well
# chosen for another device than theirs? And over the source's whole matrix: how much faster is
# the change, and where is it slower?
#
# **Answer.** It stays exact, for all that a replay may change is read on the device. A host that
# copies lengths into the graph, or picks a path by them, answers wrongly at later replays; one
# that picks the split count answers rightly, and slowly once the lengths are others. One graph for
# all lengths has a price: a merge that finds nothing to merge, blocks that return at once, and at
# some shapes more than these explain. The table of splits was made for another device, and on an
# H200 another count is often faster. The change as a whole is faster in most cases; how much
# depends on what the baseline was, and that on the width of the buffer, which the source leaves
# open. In a buffer as wide as its rows it is slower on short ones. The cells that lose are listed,
# with what ran on either side.
#
# Times are measured on the device that a figure names, or published for an MI355X; what runs on
# AMD targets is compiled AMD code, emulated. Kinds never share a mark.

# %% tags=["parameters"]
MODE = "auto"  # auto | live | live-cpu | replay
SEED = 0  # of the workloads

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import numpy as np
import pandas as pd
import torch

import topk_lab
from topk_lab import (
    evidence,
    figures,
    gate,
    models,
    plans,
    replay,
    results,
    schedules,
    workloads,
)

BASELINE, GRAPH = "vllm_generic", "vllm_k512"
H200_RULE = "vllm_k512[splits=h200]"
SHORT, LONG = "vllm_k512[splits=fixed_1]", "vllm_k512[splits=fixed_16]"
K = 512
LOSS = 1.05  # from here on a time counts as longer
WIDEST = schedules.K512_MAX_COLUMNS
DEVICE = models.DEVICES["sm_90"]

# %% [markdown]
# ## The policy is data
#
# Splits of a row by the rows of the call and the length of the row. Left, what a launch would
# have if the buffer were as wide as the row is long. Right, how many work on it in the one buffer
# of a full graph, where the launch is always that of the widest. Above the source's table, made
# for gfx950; below a rule fitted to an H200.

# %%
grid = np.geomspace(K, WIDEST, 120).astype(int)
bounds = [2**power for power in range(9, 21)]
lengths = sorted({*grid.tolist(), *bounds})
policy = pd.concat(
    [models.split_map(name, range(1, 385), lengths) for name in (GRAPH, H200_RULE)],
    ignore_index=True,
)
SCHEDULES = "computed from topk_lab.schedules, which a test holds against the compiled kernels"
figures.with_provenance(figures.split_map(policy), SCHEDULES)

# %% [markdown]
# ## Why a replay may be legal
#
# What the host decides follows from shapes alone. These are all launches of a call, whatever its
# lengths will be:

# %%
plan = plans.plan(GRAPH, plans.Shape(24, WIDEST, K, WIDEST, K))
pd.DataFrame(
    [(launch.kernel, *launch.grid, launch.block) for launch in plan.launches],
    columns=["kernel", "rows", "splits", "threads"],
).assign(workspace_bytes=plan.workspace_bytes)

# %% [markdown]
# Lengths and logits are read where they lie. Here one buffer serves all lengths near a bound of
# the policy, negative ones and ones beyond the buffer too; then the same lengths in the opposite
# order, written over the first. Each row's splits, and what the contract's judge finds wrong with
# the Numba twin's answers:

# %%
narrow = 66_000
near = np.array(replay.lengths_of(narrow), np.int32)
logits = torch.from_numpy(workloads.make("normal", near.size, narrow, seed=SEED))
row_ends = torch.empty(near.size, dtype=torch.int32)
indices = torch.empty(near.size, K, dtype=torch.int32)
violations = []
for ends in (near, near[::-1]):
    row_ends.copy_(torch.from_numpy(ends.copy()))
    topk_lab.topk(logits, K, row_ends=row_ends, variant=GRAPH, out=indices)
    violations += topk_lab.find_violations(logits, indices, row_ends=row_ends)
live = np.clip(near, 0, narrow)
due = models.split_map(GRAPH, [near.size], sorted({*live.tolist()}), num_cols=narrow)
print(f"{2 * near.size} rows, {len(violations)} violations")
due.groupby("active")["length"].agg(["min", "max", "count"])

# %% [markdown]
# Compiled code, captured once and replayed: on a device as a graph, on the emulated targets as a
# plan with its buffers. Every replay writes other lengths and other contents, poisons answer and
# workspace, and is judged exact or not; splits are counted by the slots that were written.

# %%
checked = evidence.checks(
    "graph_replays", MODE, variants=[BASELINE, GRAPH], targets=["gfx950", "gfx942"]
)
checked = checked.assign(
    case=[arguments["case"] for arguments in checked["workload_args"]],
    replays=[counters["replays"] for counters in checked["counters"]],
    exact=checked["status"] == "ok",
)
served = checked[checked["case"].str.startswith("lengths-")]
served.groupby(["variant", "target"]).agg(
    graphs=("case", "size"), replays=("replays", "sum"), exact=("exact", "all")
)

# %% [markdown]
# And a host that looks at the lengths before it captures. Three things that it could decide; below,
# how many of the later replays are wrong:

# %%
host = checked[checked["case"].isin(list(replay.HOST_POLICIES))]
wrong = [f"{counters['wrong_replays']} of {counters['replays']}" for counters in host["counters"]]
print("\n".join(f"{case}: {decided}" for case, decided in replay.HOST_POLICIES.items()))
host.assign(wrong=wrong).pivot(index="case", columns="target", values="wrong")

# %% [markdown]
# A frozen split count is never wrong: any number of splits gives an exact answer. What it costs is
# time.
#
# ## One graph, lengths over three orders of magnitude
#
# Above, in which order the lengths came. Below, what each took: points are the one graph that
# chooses on the device. The lines are graphs, too: the baseline, and what a host would have
# frozen had it captured while rows were short, or while they were long.

# %%
timed = evidence.times("graph_replay", MODE)
replayed = models.replays(timed)
shown = replayed[replayed["variant"].isin([BASELINE, GRAPH, SHORT, LONG])]
figures.with_provenance(figures.replay_timeline(shown, GRAPH), results.provenance(timed))

# %% [markdown]
# Times as multiples of that graph's at the same length: the least and the greatest over the
# lengths at which so many splits are due.

# %%
wide = replayed.pivot(index="length", columns="variant", values="time_us")
ours = replayed[replayed["variant"] == GRAPH].set_index("length").sort_index()
frozen = wide[[BASELINE, SHORT, LONG]].div(wide[GRAPH], axis=0)
frozen.groupby(ours["active"].rename("splits due")).agg(["min", "max"]).round(2)

# %% [markdown]
# How does the time change where the due number does? The replays nearest to each change:

# %%
change = ours["active"].ne(ours["active"].shift()).to_numpy().nonzero()[0][1:]
below, above = ours.iloc[change - 1].reset_index(), ours.iloc[change].reset_index()
steps = pd.DataFrame(
    {
        "splits": below["active"].astype(str) + " to " + above["active"].astype(str),
        "length below": below["length"],
        "length above": above["length"],
        "us below": below["time_us"],
        "us above": above["time_us"],
        "ratio": (above["time_us"] / below["time_us"]).round(3),
    }
)
steps

# %% [markdown]
# ## What a graph saves at all
#
# An eager call, and calls in a graph, against the number of calls in it: the time of a call is
# the kernels' and a share of what launching the graph costs. Fitted, with intervals:

# %%
calls = evidence.times("graph_calls", MODE)
saving = models.graph_saving(calls)
saved = ["eager_us", "kernel_us", "kernel_low", "kernel_high"]
launch = ["launch_us", "launch_low", "launch_high", "residual"]
saving.set_index(["variant", "num_cols"])[[*saved, *launch]].round(2)

# %% [markdown]
# ## Were the splits well chosen?
#
# Every split count was timed on every shape, rows of one length in the widest buffer. The regret
# of a policy is its time over that of the best fixed count:

# %%
few_rows = {"num_rows": [1, 24, 96, 128, 384], "workload": ["normal"]}  # made now; records hold all
splits_timed = evidence.times("split_policy", MODE, axes=few_rows)
regret = models.split_regret(splits_timed)
normal = regret[regret["workload"] == "normal"]
SPLITS_ORIGIN = results.provenance(splits_timed)
figures.with_provenance(
    figures.regret_heat_map(normal[normal["policy"].isin([BASELINE, GRAPH, H200_RULE])]),
    SPLITS_ORIGIN,
)

# %%
by_policy = regret.groupby(["policy", "workload"])["regret"]
summary = pd.DataFrame(
    {
        "geometric mean": by_policy.agg(models.geomean),
        "median": by_policy.median(),
        "worst": by_policy.max(),
        "shapes": by_policy.size(),
    }
)
summary.round(3)

# %% [markdown]
# Which count is the best one? By rows and length, normal logits:

# %%
best = normal[normal["policy"] == GRAPH]
best.pivot(index="num_rows", columns="length", values="best_splits")

# %% [markdown]
# ## What one graph for all lengths costs
#
# Regret has two parts. *Choice*: the time of the policy's own count, fixed at launch, over the
# best one's. *One graph*: the policy's time over that of its own count fixed at launch. There
# both do the same work, but for what only the policy launches: blocks beyond the due ones, which
# return at once, and a merge where there is one split. The second part shape by shape, and below
# it both.

# %%
of_graph = normal[normal["policy"].isin([GRAPH, H200_RULE])]
figures.with_provenance(figures.regret_heat_map(of_graph, "one_graph"), SPLITS_ORIGIN)

# %%
fixed = regret[regret["fixed_us"].notna()]
parts = fixed.groupby("policy")[["choice", "one_graph"]]
above = fixed[["choice", "one_graph"]] > LOSS
pd.concat(
    {
        "geometric mean": parts.agg(models.geomean),
        "worst": parts.max(),
        f"share above {LOSS}": above.groupby(fixed["policy"]).mean(),
    },
    axis="columns",
).round(3)

# %% [markdown]
# Fitted: so much a merge without work, so much a block that returns at once. Over all shapes, and
# over those with rows for half of the device's units at most. How well it fits stands beside it:
# the share of the squares explained, the root mean square of what is left, and the greatest miss
# with its place.

# %%
alone = regret["num_rows"] <= DEVICE.units // 2
costs = pd.concat(
    {
        "all shapes": models.idle_costs(regret),
        "rows for half the units": models.idle_costs(regret[alone]),
    },
    names=["fitted over", ""],
).droplevel(1)
fitted = ["part", "cost", "low", "high", "unit", "r2", "rms_us"]
missed = ["worst_us", "worst_rows", "worst_length"]
costs.set_index("policy", append=True)[[*fitted, *missed]].round(2)

# %% [markdown]
# Counting idle merges and blocks explains few rows better than many. Where the launch is several
# times what the device holds and working blocks lie between ones that return, the time may grow
# with the length of the row: so it isn't the returning that costs there, but where the blocks
# that work come to lie. That is a guess; nothing here counts blocks by unit.
#
# ## The source's matrix
#
# Every case of the source, on this device. The source doesn't say how wide its buffers were, and
# the baseline is another kernel in a wide one: it splits rows by the width. So all cases were
# timed in a buffer as wide as the longest row, in one of the widest kind, and there with
# sequences of different lengths. What is published is hollow.

# %%
live_axes = {
    "concurrency": [4, 16],
    "speculative_tokens": [1, 6],
    "cache": ["warm"],
}  # made now; records hold all
matrix = evidence.times("vllm_matrix", MODE, axes=live_axes)
pairs = models.paired(matrix, BASELINE, GRAPH)
speedups = models.distribution(pairs)
published = models.published_distribution()
MATRIX_ORIGIN = results.provenance(matrix)
figures.with_provenance(figures.speedup_distributions(pairs, speedups, published), MATRIX_ORIGIN)

# %%
told = ["cases", "geomean", "low", "high", "median", "least", "greatest", "slower", "losing"]
pd.concat([published.assign(buffer=published["kind"]), speedups]).set_index(["cache", "buffer"])[
    told
].sort_index().round(3)

# %% [markdown]
# How wide were the source's buffers? Three of its times are published one by one: the same few
# rows, masked, caches warm. Beside them the same cases here, in either buffer (us):

# %%
one_by_one = ["baseline_us", "candidate_us"]
told_alone = results.load_published("vllm_56743_rows").set_index("context")
told_axes = ["concurrency", "speculative_tokens", "compression_ratio", "logits", "cache"]
alike = pairs.merge(told_alone.reset_index()[["context", *told_axes]]).set_index("context")
by_width = {
    "published": told_alone[one_by_one],
    **{name: alike.loc[alike["buffer"] == name, one_by_one] for name in ("live", "full")},
}
before_after = pd.concat(by_width, axis="columns")
before_after.round(2)

# %% [markdown]
# The shortest case tells. In a buffer as wide as its rows, one block a row serves before the change
# and after it, and takes about as long; in a wide one ten splits and a merge worked on ten thousand
# columns, and the change saved most of that, as it did in the published case. So the source seems
# to have timed buffers of a full graph's kind. On devices so far apart nothing more can be said.

# %% [markdown]
# What does the speed-up depend on? Warm caches, each axis over all others:

# %%
by_axis = models.distribution_by_axis(pairs[pairs["cache"] == "warm"])
figures.with_provenance(figures.speedup_by_axis(by_axis), MATRIX_ORIGIN)

# %% [markdown]
# ## The cells that lose
#
# All cells in which the change is slower, by what ran on either side. *Rounds* are working blocks
# over what the device holds at once, at most.

# %%
lost = models.losing_cells(pairs)
print(
    f"{len(lost)} of {len(pairs)} cells are slower, "
    f"{int((lost['speedup'] < models.LOSING).sum())} of them by more than timing leaves open; "
    f"{lost['buffer'].value_counts().to_dict()} by buffer, "
    f"{lost['cache'].value_counts().to_dict()} by state of the caches"
)
models.losses_by_kernels(lost).round(2)

# %%
listed = ["cache", "buffer", "num_rows", "length", "logits", "baseline_us", "candidate_us"]
lost[[*listed, "speedup"]].head(12).round(2)

# %% [markdown]
# Where both sides give a row one block, they differ in its threads: a row too short to feed the
# larger block gains nothing from it, as in the latency notebook. With many longer rows the smaller
# blocks all fit at once and the larger ones don't: rounds above one, the last of which is mostly
# empty. The same happens where the baseline splits rows and the change doesn't, by the source's
# policy for many rows: ten smaller splits fill the device. And where the change splits rows of a
# middle length in a narrow buffer, the merge costs more than the splits save, on masked rows alone.
#
# ## Do events and the profiler agree?
#
# The source also profiled pairs of kernels, and doesn't say which. As many of its cases, timed by
# events around graphs and by the device's profiler, kernel by kernel:

# %%
profiled_axes = {"concurrency": [16]}  # made now; records hold all
both_ways = models.agreement(
    models.paired(evidence.times("profiled_pairs", MODE, axes=profiled_axes), BASELINE, GRAPH)
)
trace = published.set_index("cache").loc["gpu_trace"]
pd.Series(
    {
        "pairs": len(both_ways),
        "geometric mean, events": models.geomean(both_ways["speedup"]),
        "geometric mean, profiler": models.geomean(both_ways["kernel_speedup"]),
        "greatest difference of a pair": both_ways["difference"].abs().max(),
        "events over profiler, baseline": models.geomean(both_ways["baseline_ratio"]),
        "events over profiler, candidate": models.geomean(both_ways["candidate_ratio"]),
        f"published for {trace['hardware']}": trace["geomean"],
    }
).round(3).to_frame("")

# %% [markdown]
# ## Who is asked at all?
#
# Before any of these kernels runs, vLLM's Python chooses between them and AITER's. The rules in
# order, of which the first that matches counts; and what they come to on both sides of each of
# their bounds, lines that don't differ put together:

# %%
pd.DataFrame(
    [
        (rule.number, ", ".join(rule.phases), rule.condition, rule.kernel)
        for rule in gate.POLICIES["merged"]
    ],
    columns=["rule", "phases", "condition", "kernel"],
).set_index("rule")

# %%
choices = gate.truth_table(collapse=True)
choices.drop(columns=["policy", "full_graph"]).set_index(["phase", "compress_ratio", "arch"])

# %% [markdown]
# What that means for a call, the gate of the compiled kernels included:

# %%
for asked in (
    {"num_rows": 24, "num_cols": WIDEST, "k": K, "full_graph": True},
    {"num_rows": 24, "num_cols": 50_000, "k": 1024},
    {"num_rows": 385, "num_cols": 250_000, "k": K},
):
    print(topk_lab.dispatch(**asked), end="\n\n")

# %% [markdown]
# An experiment that was never merged asked for the live length instead, and gave AITER the rows up
# to a limit of its own for gfx950. Here AITER's one block was timed beside the others in a wide
# buffer. The longest rows up to which it takes no longer than the change, on either device (none
# where there is a zero):

# %%
measured_us = normal.pivot_table(index=["num_rows", "length"], columns="policy", values="time_us")
no_longer = (measured_us["aiter_one_block"] <= LOSS * measured_us[GRAPH]).unstack().cummin(axis=1)
limits = no_longer.mul(no_longer.columns).max(axis=1)
unmerged = pd.Series(dict(gate.LIVE_LENGTH_LIMITS)).reindex(limits.index)
pd.DataFrame({"measured here": limits, "the experiment, on gfx950": unmerged.astype("Int64")}).T

# %% [markdown]
# ## The claims
#
# What is said of times above is said of the committed device.

# %%
table = results.load_published("vllm_56743_split_policy")
for line in table.itertuples():
    rows = [line.min_rows, line.max_rows]
    mapped = models.split_map(GRAPH, rows, [line.min_length, line.max_length])
    column = "exact_width" if line.side == "host" else "active"
    assert set(mapped[column]) == {line.splits}, "the map is the source's table"

assert not violations, "exact at every length, whatever came before"
assert served["exact"].all(), "every replay of every captured call is exact"
by_host = host.groupby("case")["status"].agg(set)
assert by_host["host-lengths"] == by_host["host-path"] == {"wrong"}
assert by_host["host-splits"] == {"ok"}, "slow, never wrong"
frozen_splits = host.loc[host["case"] == "host-splits", "counters"]
assert all(len(counters["splits"]) == 1 for counters in frozen_splits)
assert (timed["status"] == "ok").all(), "each timed replay was checked exact first"
assert set(matrix["status"]) == {"ok"}, "so was each cell of the matrix"

if set(timed["device"]) == {DEVICE.name}:
    assert frozen[SHORT].iloc[-1] > 1.5, "one block, frozen while rows were short, is slow later"
    due_one = ours["active"] == 1
    assert frozen.loc[due_one, LONG].max() > 1.2, "so are many splits later, on short ones"
    by_name = summary.groupby("policy")["geometric mean"].max()
    assert by_name[GRAPH] < by_name[BASELINE], "the source's policy is nearer to the best count"
    of_policy = costs[costs["policy"] == GRAPH]
    few, every = of_policy.loc["rows for half the units"], of_policy.loc["all shapes"]
    assert (few["low"] > 0).all(), "a merge without work costs time, and so do blocks"
    assert few["r2"].iloc[0] > every["r2"].iloc[0], "few rows are explained better than many"
    assert above.loc[fixed["policy"] == GRAPH, "choice"].mean() > 0.1, (
        "another count is often faster"
    )
    assert (speedups["low"] > 1).all(), "faster over all cases, in every buffer"
    assert (lost["buffer"] == "live").mean() > 0.9, "nearly all that lose are in a narrow buffer"
    saved = before_after.xs("baseline_us", axis="columns", level=1) / before_after.xs(
        "candidate_us", axis="columns", level=1
    )
    shortest = saved.loc[saved.index.min()]
    assert shortest["live"] < 1.1 < 2 < min(shortest[["full", "published"]]), (
        "the published times are those of a wide buffer"
    )
    agreed = models.geomean(both_ways["speedup"]) / models.geomean(both_ways["kernel_speedup"])
    assert abs(agreed - 1) < 0.02, "events and the profiler agree"
