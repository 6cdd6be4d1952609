# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Why does one bin full of -inf hurt, and what does it take to make it harmless?
#
# **Question.** The consumer layers of a two-level indexer set seven of eight logits to -inf. In a
# histogram all of these are counted in one bin, by atomics on one address. vLLM #56743 lets each
# thread count its -inf logits and add them once. What does that save, where, and what is left?
#
# **Answer.** On the compiled AMD code the increments of a masked row wait for one another, lane
# by lane, and the count per thread removes that. On an H200 there is hardly anything to remove:
# nvcc turns the increment into an instruction that adds up equal addresses, so counting costs
# more than it saves where the cutoff is finite, and saves a few per cent of some rows whose
# cutoff is masked. Hide the increment from the compiler, and the contention is there. What is
# left on either device is that a row whose cutoff is masked is read eight times to tell equal
# logits apart. Presuming that they are equal, and finding out, takes two reads; and a crowded bin
# of any other value is helped by the same two remedies, where the source's helps -inf alone.
#
# Counts are emulated on compiled AMD code, times measured on the device that a figure names.

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
from topk_lab import evidence, figures, models, results, workloads

COUNTED = "vllm_k512"
UNCOUNTED = "vllm_k512[count_neg_inf=false]"
OPAQUE = "vllm_k512[count_neg_inf=false,increments=opaque]"
CROWD = "vllm_k512[count_neg_inf=false,increments=crowd]"
SHORTCUT = "vllm_k512[equal_shortcut=true]"
OURS = "vllm_k512_uncrowded"
K = 512
LENGTH = 262_144

# %% [markdown]
# ## One bin, most of the row
#
# The first histogram of one masked row, by the Numba twin:

# %%
masked_row = workloads.make("masked_blocks", 1, 16_384, seed=SEED)[0]
trace = topk_lab.trace(masked_row, K, variant=COUNTED)
first = trace.steps[0, 0]["histogram"]
pd.Series(first[first > 0]).describe()[["count", "50%", "max"]].rename(
    {"count": "bins in use", "50%": "median bin", "max": "fullest bin"}
).astype(int)

# %% [markdown]
# How many atomics is that on one address? The table has a length for each number of splits that a
# row may be cut into. *Source*: what a split asks for in its first histogram. *Compiled*: lanes
# that execute it, in all steps and splits, for the compiler lets one lane add what the threads of
# a wave counted. The model is arithmetic on length, share, splits and threads (`models.hot_bin`).

# %%
counted = evidence.checks("neg_inf_atomics", MODE, variants=[COUNTED], targets=["gfx950", "gfx942"])
hot = models.hot_bin_counts(counted[counted["target"].isin(["gfx950", "gfx942"])])
shown = ["splits", "source", "source_model", "compiled", "compiled_model", "serialized"]
hot.set_index(["variant", "target", "num_cols"])[shown].round(1)

# %% [markdown]
# `serialized` are lanes that found their address taken by an earlier lane of the same wave,
# whatever the bin. With the count it all but vanishes.
#
# ## Why an H200 does not care
#
# The same source, as each compiler sees it. nvcc turns an increment whose old value nobody wants
# into `ATOMS.POPC.INC`, made for increments of equal addresses. In the *opaque* policy the one is
# hidden from the compiler, and the plain `ATOMS.ADD` is left. And slots: both compilers count the
# lanes first and let one of them reserve for its wave, so there is nothing to be gained by
# writing that out.

# %%
code = evidence.checks("lds_atomics", MODE, variants=[COUNTED], targets=["gfx950", "gfx942"])
instructions = pd.DataFrame(
    [
        {"variant": cell.variant, "target": cell.target, **cell.counters}
        for cell in code.itertuples()
        if cell.target in ("gfx950", "cuda")
    ]
).drop(columns="mnemonics")
instructions.set_index(["variant", "target"])

# %% [markdown]
# ## What counting saves on an H200
#
# Times as multiples of `vllm_k512`, each on the same input and in the same run: the control
# first, then what the source changed undone, then the remedies of this package together.

# %%
live_axes = {"num_cols": [LENGTH // 16, LENGTH], "cache": ["warm"]}  # records hold all
times = evidence.times("neg_inf_contention", MODE, axes=live_axes)
ratios = models.remedies(times)
main = ratios[(ratios["cache"] == "warm") & (ratios["num_rows"] == 24)]
ORIGIN = results.provenance(times)
figures.with_provenance(
    figures.ratio_heat_map(main[main["variant"].isin([OPAQUE, UNCOUNTED, OURS])]), ORIGIN
)

# %% [markdown]
# Middle: without the count the H200 is as fast or faster, but for some rows with a masked cutoff.
# Left: with increments that the compiler can't see through, every mask costs. Fitted over the
# inputs of each length, what does one atomic on the hot bin cost (ns)? The counts are the
# emulator's, of the fullest block, over all its passes.

# %%
emulated = evidence.checks(
    "neg_inf_contention",
    MODE,
    variants=[COUNTED, UNCOUNTED, OURS, CROWD, SHORTCUT],
    targets=["gfx950"],
)
costs = models.contention_costs(times, emulated[emulated["target"] == "gfx950"])
fitted = ["splits", "ns_per_atomic", "low", "high", "fixed_us", "r2"]
costs.set_index(["variant", "num_cols"])[fitted].round(3)

# %% [markdown]
# Where several blocks share a unit they share what serves their atomics: probably why the shortest
# length, a block a row, pays least. As compiled, an atomic costs a small part of what it costs
# when hidden.
#
# ## Why a bin of -inf must not be sorted
#
# More logits are masked than not: the cutoff is masked, and the threshold bin, all that is
# masked, would fit among the final items. The sort fills its buffer with pads. Legacy pads are
# the least finite number, which outranks -inf.

# %%
row = workloads.make("masked_prefix", 1, 1000, seed=SEED, finite=300)[0]
policies = {
    "as it was, pads of -FLT_MAX": "vllm_k512[fits_rule=false,final_pad=neg_flt_max]",
    "the rule: a bin of -inf is never sorted": COUNTED,
    "pads behind every logit": "vllm_k512[fits_rule=false,final_pad=after_all]",
    "equal logits are not refined": OURS,
}
answers = {title: topk_lab.trace(row, K, variant=name).indices for title, name in policies.items()}
figures.with_provenance(
    figures.slot_map(answers, row), f"computed in this notebook by the Numba twin, seed {SEED}"
)

# %% [markdown]
# Wrong slots of the same row under every policy that might sort it, on the twin, the compiled AMD
# code and a device:

# %%
rule = evidence.checks(
    "neg_inf_rule", MODE, variants=[COUNTED], targets=["numba", "gfx950", "gfx942"]
)
slots = rule.assign(wrong_slots=[counters["wrong_slots"] for counters in rule["counters"]])
slots.pivot(index="variant", columns="target", values="wrong_slots")

# %% [markdown]
# Pads that *tie* with -inf are right here, and by one property alone: this sort is stable and
# reads its buffer in order. A block of fewer threads that reads four items each in stripes, as a
# common block sort does, would put this many pads into the slots that are left, with a buffer of
# twice the places and with this one's:

# %%
print([models.striped_pads(700, 212, threads, items_per_thread=4) for threads in (512, 256)])

# %% [markdown]
# Policies that may go wrong can be named for study and are refused everywhere else:

# %%
refusals = {}
for name in (policies["as it was, pads of -FLT_MAX"], "vllm_k512[fits_rule=false]"):
    try:
        topk_lab.topk(torch.from_numpy(row[None]), K, variant=name)
    except ValueError as refusal:
        refusals[name] = str(refusal)
print("\n".join(refusals.values()))

# %% [markdown]
# ## What remains: eight reads to find out that all is equal
#
# Under the rule a row whose cutoff is masked goes through all four steps, each of which reads it
# twice. The shortcut presumes that a bin which does not fit holds equal logits, hands out slots
# as if it did, and checks. The pass that it uses would have selected nothing of that bin anyway.
# From the bytes read the prediction is up to four times; the emulator counts them, as reads of the
# whole row:

# %%
few = emulated[(emulated["num_cols"] == LENGTH // 16) & (emulated["target"] == "gfx950")]
few = few.assign(
    row=[
        " ".join(map(str, [one.workload, *one.workload_args.values()])) for one in few.itertuples()
    ],
    reads=[counters["row_reads"] for counters in few["counters"]],
)
reads = few.pivot(index="row", columns="variant", values="reads")[[COUNTED, SHORTCUT]]
reads.round(2)

# %% [markdown]
# What each change is worth on the H200, one after another, from no change to bins and final items
# to all of them and on to ours. The biggest gains of the source are elsewhere: a final sort of
# fewer items, and no sort at all of very few; where all is masked there is nothing to sort, and
# the count is the one that helps. The last step undoes the count here, and looks for crowds on AMD
# devices.

# %%
walk = models.ablation_steps(times)
walk = walk[(walk["num_rows"] == 24) & (walk["num_cols"] == LENGTH)]
inputs = ["normal", "all_neg_inf", "relu_zeros", "near_equal"]
in_blocks = (walk["pattern"] == "blocks of 8") & (walk["fraction"].round(3) == 0.875)
prefix = (walk["pattern"] == "prefix") & (walk["fraction"].round(3) == 0.998)
chosen = walk[walk["workload"].isin(inputs) | in_blocks | prefix]
figures.with_provenance(figures.ablation_waterfall(chosen), ORIGIN)

# %% [markdown]
# Why not four times? Bytes are not all: the step that stays is the one that converts every logit
# to half precision, and launches, scans and the merge of splits are what they were.
#
# ## Contention beyond -inf
#
# A constant row, zeros of a ReLU and values that lie close together crowd as well, without a
# single -inf. Lanes that wait, on compiled AMD code, for one row:

# %%
crowded = emulated[(emulated["num_cols"] == LENGTH) & (emulated["target"] == "gfx950")]
unmasked = crowded[~crowded["workload"].str.startswith("masked")]
waits = [counters["lds_atomic_serialized_lanes"] for counters in unmasked["counters"]]
lanes = unmasked.assign(lanes=waits).pivot(index="workload", columns="variant", values="lanes")
lanes[[UNCOUNTED, COUNTED, CROWD, OURS]]

# %% [markdown]
# The source's count helps the masked row alone. Keeping back whatever bin a wave crowds into
# helps all of them. Its price is a look at every fourth logit; instructions on a normal row, as
# multiples of those without any of this:

# %%
plain = crowded[crowded["workload"] == "normal"].set_index("variant")["counters"]
price = pd.DataFrame(
    {
        variant: {
            name: plain[variant][name] / plain[UNCOUNTED][name]
            for name in ("valu_instructions", "salu_instructions", "lds_instructions")
        }
        for variant in (UNCOUNTED, COUNTED, CROWD, OURS)
    }
).T
price.round(3)

# %% [markdown]
# On an H200, where there is nothing to save, that look costs more than a tenth of the time. So
# `vllm_k512_uncrowded` looks on AMD devices and leaves it to the instruction on NVIDIA's. Against
# `vllm_k512`, over all inputs:

# %%
by_variant = main.groupby("variant")["ratio"]
summary = pd.DataFrame(
    {
        "geometric mean": np.exp(np.log(main["ratio"]).groupby(main["variant"]).mean()),
        "best": by_variant.min(),
        "worst": by_variant.max(),
    }
)
summary.loc[[UNCOUNTED, CROWD, OPAQUE, SHORTCUT, OURS]].round(3)

# %% [markdown]
# Slower than `vllm_k512` it is where logits differ in their last bits alone, for the presumption
# fails three times; and at the longest length, by far the most at one number of rows. There half
# as many blocks again meet the device as it holds at once.

# %%
longest = ratios[
    (ratios["num_cols"] == 1_048_576)
    & (ratios["workload"] == "normal")
    & (ratios["cache"] == "warm")
]
longest[longest["variant"].isin([UNCOUNTED, SHORTCUT, OURS])].pivot(
    index="num_rows", columns="variant", values="ratio"
).round(3)

# %% [markdown]
# There, kernels that do the same work on a normal row, but are compiled apart, spread too:
# whatever the pads are, and whether a bin of -inf may be sorted, nothing of that touches such a
# row. What decides is not known. Times of one kernel spread there too: least and greatest sample
# (us).

# %%
alike = [
    "vllm_k512[final_pad=after_all]",
    "vllm_k512[fits_rule=false,final_pad=after_all]",
    SHORTCUT,
]
there = times[
    (times["num_cols"] == 1_048_576)
    & (times["num_rows"] == 24)
    & (times["workload"] == "normal")
    & (times["cache"] == "warm")
    & times["variant"].isin([COUNTED, *alike])
].set_index("variant")
pd.DataFrame(
    {
        "median": there["median_us"],
        "least": there["samples_us"].map(min),
        "greatest": there["samples_us"].map(max),
    }
).round(1)

# %% [markdown]
# ## The claims

# %%
each = hot[hot["variant"] == UNCOUNTED]
once = hot[hot["variant"] == COUNTED]
derived = results.load_published("neg_inf_atomics").set_index("row_end")
for target, mine in each.groupby("target"):
    found = mine.set_index("num_cols")["source"].round().astype(int)
    assert found.to_dict() == derived["atomics_before"].to_dict(), target
assert (once["source"] <= 1024).all()
long = hot[hot["num_cols"] > 16_385]
assert (long["compiled"] == long["compiled_model"]).all(), "the model counts as the emulator"
assert (each["serialized"].to_numpy() > 40 * once["serialized"].to_numpy()).all()

assert (instructions["returning"] == instructions["shared_returning"]).all(), "slots wave by wave"
of_cuda = instructions[instructions["target"] == "cuda"].set_index("variant")
if len(of_cuda):
    assert of_cuda.loc[OPAQUE, "summing_increments"] == 0
    assert of_cuda.loc[UNCOUNTED, "summing_increments"] == of_cuda.loc[UNCOUNTED, "increments"]

wrong = {title: int((indices < 0).sum()) for title, indices in answers.items()}
assert list(wrong.values()) == [212, 0, 0, 0]
assert set(rule["status"]) == {"ok", "wrong"}
legacy = policies["as it was, pads of -FLT_MAX"]
assert set(rule.loc[rule["status"] == "wrong", "variant"]) == {legacy}
assert set(slots.loc[slots["variant"] == legacy, "wrong_slots"]) == {212}
assert set(slots.loc[slots["variant"] != legacy, "wrong_slots"]) == {0}
assert len(refusals) == 2

assert (emulated["status"] == "ok").all(), "exact, and as many lanes as the increments say"
ties = ["all_neg_inf", "masked_prefix 33", "constant", "relu_zeros"]
assert (reads.loc[ties, COUNTED].round() == 8).all()
assert (reads.loc[ties, SHORTCUT].round() == 2).all()
crowds = ["constant", "relu_zeros", "all_neg_inf"]
assert (lanes.loc[crowds, OURS] * 1000 < lanes.loc[crowds, UNCOUNTED]).all()
finite = lanes.loc[["constant", "relu_zeros"]]
assert (finite[COUNTED] == finite[UNCOUNTED]).all(), "the source's remedy knows -inf alone"

if set(times["device"]) == {"NVIDIA H200"}:
    visible, hidden = (costs[costs["variant"] == one] for one in (UNCOUNTED, OPAQUE))
    assert (hidden["low"] > 0.2).all(), "hidden from the compiler, an atomic costs time"
    small = visible["ns_per_atomic"].abs().to_numpy() < hidden["ns_per_atomic"].to_numpy() / 10
    assert small.all(), "as compiled, a small part of that"
    masked = main[main["workload"] == "all_neg_inf"]
    gains = 1 / masked[masked["variant"] == OURS]["ratio"]
    assert gains.between(1.9, 4).all(), "up to four times, by the bytes read"
    assert summary.loc[OURS, "geometric mean"] < 0.7
    assert summary.loc[OURS, "worst"] < 1.15
