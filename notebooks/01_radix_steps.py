# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How is the k-th greatest logit of a row found?
#
# **Question.** An indexer scores every position of the context and keeps the k best of each row.
# How does a GPU block find these, exactly, without sorting the row?
#
# **Answer.** By counting. Each logit becomes an integer key, and a histogram over the leading bits
# of the keys names the one bin that holds the k-th of them. All logits in better bins are
# selected, all in worse bins are rejected. Only the bin between is looked at again: ordered on
# chip if few logits are in it, else counted by the next bits. When no bits are left, the logits in
# the bin are equal, and any of them will do.
#
# The rows below go through the Numba twin of a kernel: one function a kernel step, of the same
# name, with the same result. Every mode computes the same here, no device is needed.

# %% tags=["parameters"]
MODE = "auto"  # auto | live | live-cpu | replay
SEED = 0  # of the workloads

# %%
# %matplotlib inline
# %config InlineBackend.figure_formats = ["retina"]
import numpy as np
import pandas as pd

import topk_lab
from topk_lab import figures, keys, schedules, workloads

VARIANT = "vllm_k512"
K = 512

rows = {
    "normal": workloads.make("normal", 1, 32 * K, seed=SEED)[0],
    "masked": workloads.make("masked_blocks", 1, 6 * K, seed=SEED)[0],
    "near equal": workloads.make("near_equal", 1, 32 * K, seed=SEED)[0],
}
traces = {name: topk_lab.trace(row, K, variant=VARIANT) for name, row in rows.items()}

# %% [markdown]
# ## A key turns order into bits
#
# The bits of a float rise with its magnitude. The *complement key* keeps the bits of a negative
# logit and flips all but the sign of a positive one: an integer that **falls as the value rises**.
# So bins come best first, and a sum over the bins before one counts the logits that are better.

# %%
landmarks = np.array([np.nan, np.inf, 65504, 1, 0, -1, -65504, -1e9, -np.inf], np.float32)
bits = [keys.canonical_bits(pattern) for pattern in landmarks.view(np.uint32)]
complement = [keys.complement_key(pattern) for pattern in bits]
key_table = pd.DataFrame({"logit": landmarks, "complement key": [f"{k:#010x}" for k in complement]})
for step in range(keys.NUM_STEPS):
    key_table[f"bin at step {step}"] = [keys.step_bin(step, pattern) for pattern in bits]
key_table

# %% [markdown]
# At step zero the table shows what half precision can't tell apart: logits beyond its range share
# a bin with the infinities. The float key of the later steps separates all of them. NaN, of any
# sign and payload, is one key, the best.
#
# ## Why four steps
#
# A histogram has to fit on chip, so a step looks at one digit of the key at a time. Three digits
# use up all bits of a float. The step before these is a bet on another key: the logit rounded to
# half precision, whose first digit holds fewer exponent bits and therefore more of the mantissa.
# It cuts every octave finer than the first digit of the float key does:

# %%
octave = np.linspace(1, 2, 1024, endpoint=False, dtype=np.float32).view(np.uint32)
resolution = pd.DataFrame(
    {"bins in an octave": [len({keys.step_bin(step, bits) for bits in octave}) for step in (0, 1)]},
    index=["step 0, half key", "step 1, float key"],
)
resolution

# %% [markdown]
# If the bet is won, the threshold bin holds few logits and one step is all. If it is lost, step
# one starts from scratch on the float key, and nothing that step zero saw is kept. Every step
# reads the logits twice: once to count them, once to collect those above the threshold bin.
#
# ## A normal row: one step
#
# In the table of a trace, `above` logits order before the threshold bin and `bin_size` are in it:
# `above < k <= above + bin_size` says that the k-th is there.

# %%
figures.trace_table(traces["normal"])

# %% [markdown]
# The bin `fits`: its `bin_size` logits become candidates that are ordered on chip, and the best of
# them fill the slots that the `emitted` ones left open.

# %%
ORIGIN = f"computed in this notebook by the Numba twin of {VARIANT}, k = {K}, seed {SEED}"
figures.with_provenance(figures.trace_histograms(figures.trace_bins(traces["normal"])), ORIGIN)

# %% [markdown]
# ## A masked row: all steps, down to equal logits
#
# A consumer layer of a two-level indexer keeps one block of columns in eight and sets all others
# to -inf. In a short row fewer than k logits are left, and the k-th is one of the masked.

# %%
figures.trace_table(traces["masked"])

# %% [markdown]
# The k-th logit lies in the bin of -inf at every step. Before step three that bin never `fits`,
# whatever its size. The finite logits are selected in step one; step three, where all that is left
# is equal, hands out the open slots to masked columns, each at most once, and `emitted` ends at k.

# %%
figures.with_provenance(figures.trace_histograms(figures.trace_bins(traces["masked"])), ORIGIN)

# %% [markdown]
# ## A row of near-equal values: the bet is lost
#
# Here the logits differ only in bits that neither step zero nor step one looks at.

# %%
figures.trace_table(traces["near equal"])

# %% [markdown]
# Two steps put the whole row into one bin and select nothing. The third looks at the bits in which
# the logits differ, and there the threshold bin fits. The prefix is what the step before has
# fixed: only keys that begin with it are counted.

# %%
figures.with_provenance(figures.trace_histograms(figures.trace_bins(traces["near equal"])), ORIGIN)

# %% [markdown]
# ## Why a bin of -inf must not fit
#
# A bin that fits is sorted on chip in a buffer of fixed capacity, and the places behind the
# candidates hold pads. The pads of the legacy policy have the key of the least finite float, and it
# has no rule about -inf. Here is a row with fewer finite logits than k, whose masked rest fits into
# the buffer:

# %%
LEGACY = "vllm_k512[fits_rule=false,final_pad=neg_flt_max]"
part_masked = workloads.make("masked_prefix", 1, 1000, seed=SEED, finite=300)[0]
policies = {
    "legacy": topk_lab.trace(part_masked, K, variant=LEGACY),
    "with the rule": topk_lab.trace(part_masked, K, variant=VARIANT),
}
pd.concat({name: figures.trace_table(trace) for name, trace in policies.items()})

# %% [markdown]
# Under the legacy policy the bin of -inf fits at once, and its logits are sorted together with
# pads. What has become of the slots of the two answers?

# %%
chosen = {name: part_masked[trace.indices[trace.indices >= 0]] for name, trace in policies.items()}
slots = pd.DataFrame(
    {
        name: {
            "finite logit": np.isfinite(chosen[name]).sum(),
            "masked logit": np.isneginf(chosen[name]).sum(),
            "no logit (-1)": (trace.indices < 0).sum(),
        }
        for name, trace in policies.items()
    }
)
slots

# %% [markdown]
# A pad orders before -inf, so pads took the slots that were due to masked columns: the row has
# enough columns, and the answer names too few of them. With the rule, the bin of -inf is left to
# step three, which needs neither buffer nor pads. The contract's judge says the same of the legacy
# answer:

# %%
topk_lab.find_violations(part_masked[None], policies["legacy"].indices[None], k=K)

# %% [markdown]
# ## Are the answers exact?
#
# The judge selects nothing: it holds a finished answer against the rule that no logit left out is
# greater than one chosen. What follows lists the violations that it finds, row by row.

# %%
answers = {**traces, "partly masked": policies["with the rule"]}
rows["partly masked"] = part_masked
violations = {
    name: topk_lab.find_violations(rows[name][None], trace.indices[None], k=K)
    for name, trace in answers.items()
}
violations

# %% [markdown]
# ## The claims

# %%
assert complement == sorted(set(complement)), "from the best logit to the worst, keys rise"
assert len(set(key_table["bin at step 0"])) < len(set(complement)), "step 0 can't tell some apart"
assert resolution["bins in an octave"].is_monotonic_decreasing, "step 0 cuts octaves finer"

for name, trace in answers.items():
    table = trace.frame()
    assert (table["above"] < K).all()
    assert (table["above"] + table["bin_size"] >= K).all()
    kth = np.sort(rows[name])[-K].view(np.uint32)
    assert (table["threshold_bin"] == [keys.step_bin(step, kth) for step in table["step"]]).all()

steps = {name: trace.frame() for name, trace in traces.items()}
assert steps["normal"]["fits"].tolist() == [True], "one step is all"
assert steps["masked"]["step"].tolist() == list(range(keys.NUM_STEPS)), "all steps are needed"
assert np.isfinite(rows["masked"]).sum() == steps["masked"]["emitted"].iloc[1] < K
assert steps["masked"]["emitted"].iloc[-1] == K, "masked columns fill the open slots"
assert (steps["near equal"]["bin_size"].iloc[:2] == rows["near equal"].size).all(), "one bin"
assert (steps["near equal"]["emitted"].iloc[:2] == 0).all(), "two steps select nothing"
assert steps["near equal"]["fits"].tolist() == [False, False, True], "the third is the last"

assert np.isneginf(part_masked).sum() <= schedules.parse_variant(LEGACY).policy.final_capacity
assert slots.loc["no logit (-1)", "legacy"] == K - np.isfinite(part_masked).sum()
assert slots.loc["no logit (-1)", "with the rule"] == 0
assert not schedules.parse_variant(LEGACY).policy.sound
assert schedules.parse_variant(VARIANT).policy.sound
assert not any(violations.values()), "every answer is exact"
