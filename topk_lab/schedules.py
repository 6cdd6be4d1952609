"""Which policy does a variant have, and into how many splits does it cut a row?

The truth is ``policy.hpp``, ``stash_policy.hpp``, ``one_block_policy.hpp``,
``shared_histogram_policy.hpp`` and ``delegate_policy.hpp`` in ``kernels/include/topk_lab``; this
module is the copy that plans and twins use. A test compares the two through the probe kernel of
each code object, on every bound and on both sides of it.

Source of the numbers: vLLM ``csrc/libtorch_stable/sampler.cu`` as of #56743; SGLang
``csrc/elementwise/deepseek_v4_topk.cu`` as of #36004, and ``topk_v2.cuh`` of SGLang 0.5.23; AITER
``csrc/kernels/topk_per_row_kernels.cu``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "ABLATIONS",
    "DELEGATE_POLICIES",
    "POLICIES",
    "DelegateChoice",
    "DelegatePart",
    "DelegatePolicy",
    "OneBlockPolicy",
    "Policy",
    "SharedHistogramPolicy",
    "StashPolicy",
    "TopKPolicy",
    "Variant",
    "ablations",
    "active_splits",
    "delegate_blocks",
    "delegate_member",
    "delegate_parts",
    "delegate_policy",
    "gate_refusal",
    "max_splits",
    "parse_variant",
]

KIBI = 1024
MOST_COLUMNS = 2**31 - 1

FINAL_PADS = ("after_all", "neg_inf", "neg_flt_max")
FINAL_ORDERS = ("rank_count", "radix_sort", "by_size")
INCREMENTS = ("each", "opaque", "wave", "crowd", "native")
SPLIT_SCHEDULES = ("generic", "k512", "h200", "fixed")  # as the kernels' SplitSchedule
MOST_FIXED_SPLITS = 48
OVERFLOWS = ("rescan", "drop")
# Of gfx950, of gfx942, and one that LDS of 64 KiB has no room for: the twin's alone.
STASH_KIB = (40, 48, 128)
BLOCK_SIZES = (256, 512, 768, 1024)  # of a block a row
DIGIT_BITS = (11, 12)
DIES = (1, 8)  # 8: MI300 and MI355X
DELEGATE_LAUNCHES = ("by_shape", "fused", "fused_global", "two", "mixed")

# With final_order="by_size", up to this many final items are ranked, more are sorted.
RANK_COUNT_LIMIT = 128

GENERIC_SPLIT_COLUMNS = 200_000
GENERIC_RANK_COUNT_COLUMNS = 12_288
GENERIC_SPLITS = 10
MOST_OF_A_FIELD = 1024 * KIBI  # what a policy of a twin may hold
K512_MAX_ROWS = 384
H200_BLOCKS = 128  # about one for each of its 132 multiprocessors
K512_MAX_COLUMNS = 1024 * KIBI

FEWEST_SHARING_BLOCKS = 4
MOST_SHARING_BLOCKS = 32
SHARING_BLOCKS = 64  # of all rows together, as far as these bounds allow
MOST_SHARING_ROWS = 64  # a quarter of the compute units of an MI355X
# Up to so many rows -> the columns from which several blocks share one.
SHARED_FROM_COLUMNS = ((8, 40_960), (16, 49_152), (32, 65_536), (MOST_SHARING_ROWS, 114_688))


@dataclass(frozen=True)
class TopKPolicy:
    """The named fields in which the vLLM kernels differ.

    Attributes
    ----------
    block_size, merge_block_size : int
        Threads of a block that selects (a split of) a row, and of one that merges splits.
    final_capacity : int
        Final items that fit on chip; a larger threshold bin is refined further.
    max_k : int
        Largest k.
    count_neg_inf : bool
        Each thread counts its -inf logits and adds them to their bin once.
    fits_rule : bool
        A threshold bin that holds -inf never becomes final items before step 3.
    equal_shortcut : bool
        A threshold bin that does not fit is collected as if its logits were equal; where they are,
        no further step is taken.
    final_pad : {"after_all", "neg_inf", "neg_flt_max"}
        Key of the places that the final sort fills up with; its index is -1.
    final_order : {"rank_count", "radix_sort", "by_size"}
        How final items are ordered.
    increments : {"each", "opaque", "wave", "crowd", "native"}
        How logits are added to their bins: one by one; the same with an amount that the compiler
        can't see; once for all lanes of a wave that share the bin of the first one; a bin that
        many of a wave's lanes look at is kept back and added once; or the last on AMD devices and
        the first on NVIDIA's, whose hardware adds up the lanes that share an address.
    splits : {"generic", "k512", "h200", "fixed_1", ..., "fixed_48"}
        Schedule of the splits of a row: as many as the width asks for; vLLM's table, made for
        gfx950; a rule fitted to an NVIDIA H200; or so many, each of 512 columns or more.
    """

    block_size: int
    merge_block_size: int
    final_capacity: int
    max_k: int
    count_neg_inf: bool
    fits_rule: bool
    equal_shortcut: bool
    final_pad: str
    final_order: str
    increments: str
    splits: str

    @property
    def split_schedule(self) -> str:
        """The kernels' word for `splits`, one of `SPLIT_SCHEDULES`."""
        return self.splits.partition("_")[0]

    @property
    def unsound_because(self) -> str | None:
        """Why this policy may return a pad in place of a logit, or None if it can't."""
        if self.final_pad == "after_all" or (self.final_pad == "neg_inf" and self.fits_rule):
            return None
        if self.final_pad == "neg_inf":
            return "final_pad=neg_inf ties with real -inf logits when fits_rule=false"
        return "final_pad=neg_flt_max orders before (or ties with) real logits"

    @property
    def sound(self) -> bool:
        """True if every result is exact."""
        return self.unsound_because is None


@dataclass(frozen=True)
class StashPolicy:
    """The named fields in which the SGLang kernels differ.

    Attributes
    ----------
    block_size : int
        Threads of a block: one block a row.
    stash_kib : int
        LDS of the stash (KiB): two lists of positions.
    max_k : int
        Largest k.
    overflow : {"rescan", "drop"}
        What becomes of a threshold bin that is larger than a list: its next digit is counted over
        the row, or what comes too late is lost.
    """

    block_size: int
    stash_kib: int
    max_k: int
    overflow: str

    @property
    def stash_capacity(self) -> int:
        """Positions of 4 bytes that either of the two lists holds."""
        return self.stash_kib * KIBI // 8

    @property
    def unsound_because(self) -> str | None:
        """Why this policy may leave a winner out, or None if it can't."""
        if self.overflow == "rescan":
            return None
        return f"overflow=drop loses candidates beyond {self.stash_capacity} in the threshold bin"

    @property
    def sound(self) -> bool:
        """True if every result is exact."""
        return self.unsound_because is None


@dataclass(frozen=True)
class OneBlockPolicy:
    """The named fields in which the AITER kernels differ.

    Attributes
    ----------
    block_size : int
        Threads of a block: one block a row.
    digit_bits : int
        Bits of the key that a pass fixes; the last pass fixes what is left of 32.
    """

    block_size: int
    digit_bits: int

    @property
    def unsound_because(self) -> str | None:
        """None: no policy of this lineage leaves a winner out."""
        return None

    @property
    def sound(self) -> bool:
        """True: every result is exact."""
        return True


@dataclass(frozen=True)
class SharedHistogramPolicy:
    """The named fields of the kernels whose blocks share a row's histogram.

    Attributes
    ----------
    block_size : int
        Threads of a block.
    tie_capacity : int
        Logits of the threshold bin that a row's list holds; where there are more of them, they are
        looked for in the row again.
    rank_limit : int
        Up to so many of these are ranked, more are counted digit by digit.
    max_k : int
        Largest k.
    """

    block_size: int
    tie_capacity: int
    rank_limit: int
    max_k: int

    @property
    def unsound_because(self) -> str | None:
        """None: no policy of this lineage leaves a winner out."""
        return None

    @property
    def sound(self) -> bool:
        """True: every result is exact."""
        return True


@dataclass(frozen=True)
class DelegatePolicy:
    """The named fields in which kernels of the delegate selection differ.

    Attributes
    ----------
    block_size : int
        Threads of the block that selects a row.
    blocks_per_unit : int
        Of which so many are meant to be on a multiprocessor of CUDA.
    segment : int
        Columns that one delegate stands for.
    quads : int
        16-byte loads of the row that a thread keeps.
    held : int
        Delegates that it keeps; what is beyond them is read again.
    groups : int
        Of a thread's keys, whose greatest ones bound the k-th: those of all threads are k at least.
    max_k : int
        Largest k.
    """

    block_size: int
    blocks_per_unit: int
    segment: int
    quads: int
    held: int
    groups: int
    max_k: int

    @property
    def segment_capacity(self) -> int:
        """Segments that are gathered at most."""
        return 4 * self.quads * self.block_size // self.segment

    @property
    def whole_columns(self) -> int:
        """Columns of a row that is kept whole, however it is aligned."""
        return 4 * self.quads * self.block_size - 3

    @property
    def joined_groups(self) -> int:
        """Groups of a thread that may be one, so that those of all threads are still `max_k`."""
        if self.block_size >= self.max_k:
            return self.groups
        return self.groups * self.block_size // self.max_k

    @property
    def item_capacity(self) -> int:
        """Logits that are moved together before they are told apart."""
        return 2048 if self.max_k <= 1024 else 3072 if self.max_k <= 2048 else 0

    @property
    def loose_groups(self) -> int:
        """Groups that are too many, in the bin of the k-th, for a bound."""
        return self.max_k // 5

    @property
    def fused_delegates(self) -> int:
        """Delegates that 64 KiB of LDS have room for, beside all else; 0: too few to be of use."""
        return 10_240 if self.max_k <= 512 else 8_704 if self.max_k <= 1024 else 0

    def delegates_stride(self, num_cols: int) -> int:
        """Delegates that a row has room for, wherever on a line it begins.

        Parameters
        ----------
        num_cols : int
            Width of the logits.

        Returns
        -------
        int
            A multiple of 4; 0 where rows are kept whole.
        """
        if num_cols <= self.whole_columns:
            return 0
        most = (num_cols + 2 * self.segment - 2) // self.segment
        return -(-most // 4) * 4


DELEGATE_POLICIES = {
    "k512": DelegatePolicy(512, 1, 16, 6, 16, 4, 512),
    "k512_long": DelegatePolicy(512, 1, 32, 12, 32, 4, 512),
    "k512_pair": DelegatePolicy(256, 2, 16, 12, 16, 4, 512),
    "k512_crowd": DelegatePolicy(256, 3, 16, 10, 16, 8, 512),
    "k1024": DelegatePolicy(512, 1, 16, 12, 16, 4, 1024),
    "k2048": DelegatePolicy(1024, 1, 8, 6, 16, 4, 2048),
    "k4096": DelegatePolicy(1024, 1, 8, 8, 4, 4, 4096),
}


@dataclass(frozen=True)
class DelegateChoice:
    """Which kernels of the delegate selection a call takes, and how they are launched.

    Attributes
    ----------
    member : str
        A name of `DELEGATE_POLICIES`, or ``"by_shape"``: what `delegate_member` says.
    launches : {"by_shape", "fused", "fused_global", "two", "mixed"}
        Whether the block that selects from a row reduces it too, with its delegates in LDS or in
        memory, or blocks of a launch of its own do; or short rows and long ones have kernels of
        their own; or what `delegate_parts` says.
    dies : int
        Rows are launched in multiples of so many where there are as many, so that blocks that go
        round as many dies reduce a row on the die that selects from it.
    max_k : int
        Largest k.
    """

    member: str
    launches: str
    dies: int
    max_k: int

    @property
    def unsound_because(self) -> str | None:
        """None: no policy of this lineage leaves a winner out."""
        return None

    @property
    def sound(self) -> bool:
        """True: every result is exact."""
        return True


Policy = TopKPolicy | StashPolicy | OneBlockPolicy | SharedHistogramPolicy | DelegateChoice

_K512 = TopKPolicy(
    block_size=1024,
    merge_block_size=1024,
    final_capacity=1024,
    max_k=512,
    count_neg_inf=True,
    fits_rule=True,
    equal_shortcut=False,
    final_pad="neg_inf",
    final_order="by_size",
    increments="each",
    splits="k512",
)

POLICIES: dict[str, Policy] = {
    "vllm_generic": TopKPolicy(
        block_size=512,
        merge_block_size=1024,
        final_capacity=2048,
        max_k=2048,
        count_neg_inf=False,
        fits_rule=False,
        equal_shortcut=False,
        final_pad="after_all",
        final_order="radix_sort",
        increments="each",
        splits="generic",
    ),
    "vllm_k512": _K512,
    "vllm_k512_uncrowded": dataclasses.replace(
        _K512, count_neg_inf=False, equal_shortcut=True, increments="native"
    ),
    "sglang_block512": StashPolicy(block_size=512, stash_kib=40, max_k=1024, overflow="rescan"),
    "sglang_block1024": StashPolicy(block_size=1024, stash_kib=40, max_k=1024, overflow="rescan"),
    "aiter_one_block": OneBlockPolicy(block_size=1024, digit_bits=12),
    "shared_histogram": SharedHistogramPolicy(
        block_size=1024, tie_capacity=2048, rank_limit=128, max_k=4096
    ),
    "delegate": DelegateChoice(member="by_shape", launches="by_shape", dies=1, max_k=4096),
}

# No remedy for -inf: not counted apart, and sorted under pads that keep it exact.
_UNSORTED = {"count_neg_inf": False, "fits_rule": False, "final_pad": "after_all"}

# The compiled departures from a policy: kernel-name suffix -> the fields that differ.
ABLATIONS = {
    "vllm_k512": {
        "no_count": {"count_neg_inf": False},
        "capacity_2048": {"final_capacity": 2048},
        "rank_count": {"final_order": "rank_count"},
        "radix_sort": {"final_order": "radix_sort"},
        "no_fits_rule": {"fits_rule": False},
        "pad_after_all": {"final_pad": "after_all"},
        "no_fits_rule_pad_after_all": {"fits_rule": False, "final_pad": "after_all"},
        "pad_neg_flt_max": {"final_pad": "neg_flt_max"},
        "no_fits_rule_pad_neg_flt_max": {"fits_rule": False, "final_pad": "neg_flt_max"},
        "no_changes": _UNSORTED | {"final_capacity": 2048, "final_order": "radix_sort"},
        "capacity_alone": _UNSORTED | {"final_order": "radix_sort"},
        "capacity_and_order": _UNSORTED,
        "shortcut": {"equal_shortcut": True},
        "no_count_wave": {"count_neg_inf": False, "increments": "wave"},
        "no_count_crowd": {"count_neg_inf": False, "increments": "crowd"},
        "no_count_opaque": {"count_neg_inf": False, "increments": "opaque"},
        "h200_splits": {"splits": "h200"},
        # One kernel serves every fixed number: the launch says how many.
        "fixed_splits": {"splits": "fixed_4"},
    },
    "vllm_k512_uncrowded": {},
    "vllm_generic": {},
    "sglang_block512": {
        "stash48": {"stash_kib": 48},
        "drop": {"overflow": "drop"},
        "drop_stash48": {"stash_kib": 48, "overflow": "drop"},
    },
    "sglang_block1024": {
        "block256": {"block_size": 256},
        "block768": {"block_size": 768},
        "stash48": {"stash_kib": 48},
        "drop": {"overflow": "drop"},
        "drop_stash48": {"stash_kib": 48, "overflow": "drop"},
    },
    "aiter_one_block": {"digit11": {"digit_bits": 11}},
    "shared_histogram": {},
    # All of them are compiled: a plan takes one by the shape where none is asked for.
    "delegate": {member: {"member": member} for member in DELEGATE_POLICIES},
}


@dataclass(frozen=True)
class Variant:
    """A variant's name with its policy.

    Attributes
    ----------
    name : str
        Key of `POLICIES`.
    policy : Policy
        The policy, with any field changed that the caller named.
    """

    name: str
    policy: Policy

    @property
    def changes(self) -> dict[str, object]:
        """Fields in which the policy departs from the variant's own."""
        default = POLICIES[self.name]
        return {
            field.name: getattr(self.policy, field.name)
            for field in dataclasses.fields(default)
            if getattr(self.policy, field.name) != getattr(default, field.name)
        }

    @property
    def ablation(self) -> str | None:
        """Suffix of the compiled ablation with these changes; "" for none, None if not compiled."""
        changes = _compiled(self.changes)
        if not changes:
            return ""
        for suffix, fields in ABLATIONS[self.name].items():
            if _compiled(fields) == changes:
                return suffix
        return None

    def require_policy(self, kind: type) -> None:
        """Raise ValueError unless the variant is of the lineage that has policies of a kind."""
        if not isinstance(self.policy, kind):
            names = [name for name, policy in POLICIES.items() if isinstance(policy, kind)]
            raise ValueError(f"variant must be one of {', '.join(names)}, got {str(self)!r}")

    def refuse_unsound(self, study: bool) -> None:
        """Raise ValueError if the policy is not exact on every input and is not being studied."""
        if self.policy.unsound_because and not study:
            raise ValueError(
                f"variant {self} is not exact ({self.policy.unsound_because}); "
                "it is for study only (topk_lab.trace)"
            )

    def __str__(self) -> str:
        if not self.changes:
            return self.name
        fields = ",".join(
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in self.changes.items()
        )
        return f"{self.name}[{fields}]"


def _compiled(changes: Mapping[str, object]) -> dict[str, object]:
    """Changed fields as kernels know them: not what a launch fixes."""
    return {
        name: value.partition("_")[0] if name == "splits" else value
        for name, value in changes.items()
        if name not in ("dies", "launches")
    }


def ablations(name: str) -> tuple[Variant, ...]:
    """The compiled departures from a variant, in the order in which code objects are asked.

    Parameters
    ----------
    name : str
        Key of `POLICIES`.

    Returns
    -------
    tuple of Variant
    """
    return tuple(
        Variant(name, dataclasses.replace(POLICIES[name], **fields))
        for fields in ABLATIONS[name].values()
    )


# Fields that take one of few values.
FIELD_WORDS = {
    "final_pad": FINAL_PADS,
    "final_order": FINAL_ORDERS,
    "increments": INCREMENTS,
    "splits": ("k512", "h200", *(f"fixed_{count}" for count in range(1, MOST_FIXED_SPLITS + 1))),
    "overflow": OVERFLOWS,
    "member": ("by_shape", *DELEGATE_POLICIES),
    "launches": DELEGATE_LAUNCHES,
}
FIELD_NUMBERS = {"stash_kib": STASH_KIB, "digit_bits": DIGIT_BITS, "dies": DIES}


def _field_value(default: object, name: str, text: str, numbers: tuple[int, ...] | None) -> object:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"policy field {name} must be true or false, got {text!r}")
        return text == "true"
    if isinstance(default, int):
        if (
            not (text.isascii() and text.isdecimal())
            or len(text) > 9
            or not 0 <= int(text) <= MOST_OF_A_FIELD
        ):
            raise ValueError(
                f"policy field {name} must be a whole number up to {MOST_OF_A_FIELD}, got {text!r}"
            )
        allowed = numbers or FIELD_NUMBERS.get(name, (int(text),))
        if int(text) not in allowed:
            raise ValueError(
                f"policy field {name} must be one of {', '.join(map(str, allowed))}, got {text}"
            )
        return int(text)
    allowed = FIELD_WORDS[name]
    if text not in allowed:
        listed = ", ".join(allowed)
        if name == "splits":
            listed = f"k512, h200, fixed_1 to fixed_{MOST_FIXED_SPLITS}"
        raise ValueError(f"policy field {name} must be one of {listed}, got {text!r}")
    return text


def parse_variant(text: str) -> Variant:
    """Read ``name`` or ``name[field=value,...]``.

    Parameters
    ----------
    text : str
        For example ``"vllm_k512"`` or ``"vllm_k512[fits_rule=false,final_pad=after_all]"``.

    Returns
    -------
    Variant
        The variant with the named policy fields replaced.

    Raises
    ------
    TypeError
        Not a string.
    ValueError
        Unknown name or field, or a value that the field does not take.
    """
    if not isinstance(text, str):
        raise TypeError(f"variant must be a str, got {type(text).__name__}")
    name, bracket, rest = text.partition("[")
    if name not in POLICIES:
        raise ValueError(f"variant must be one of {', '.join(POLICIES)}, got {text!r}")
    policy = POLICIES[name]
    if not bracket:
        return Variant(name, policy)
    if not rest.endswith("]"):
        raise ValueError(f"variant must read name[field=value,...], got {text!r}")
    changes: dict[str, object] = {}
    # These are what the kernel was made for: no other can be asked of it.
    fixed = ("max_k",) if getattr(policy, "splits", None) == "k512" else ("max_k", "splits")
    known = [field.name for field in dataclasses.fields(policy) if field.name not in fixed]
    for item in filter(None, rest[:-1].split(",")):
        field, equals, value = (part.strip() for part in item.partition("="))
        if field not in known or not equals:
            raise ValueError(
                f"policy field must be one of {', '.join(known)}, got {item.strip()!r}"
            )
        if field in changes:
            raise ValueError(f"policy field {field} must be given once, got {text!r}")
        a_block_a_row = not isinstance(policy, TopKPolicy)
        allowed = BLOCK_SIZES if field == "block_size" and a_block_a_row else None
        changes[field] = _field_value(getattr(policy, field), field, value, allowed)
    return Variant(name, dataclasses.replace(policy, **changes))


def _policy_of(variant: str | Variant) -> Policy:
    return (variant if isinstance(variant, Variant) else parse_variant(variant)).policy


def _h200_splits(num_rows: int, columns: int) -> int:
    steps = ((256 * KIBI, 32), (64 * KIBI, 16), (16 * KIBI, 8))
    splits = next((splits for bound, splits in steps if columns > bound), 1)
    while splits > 1 and splits * num_rows > H200_BLOCKS:
        splits //= 2
    return splits


def _shared_blocks(num_rows: int, columns: int) -> int:
    starts = (start for rows, start in SHARED_FROM_COLUMNS if num_rows <= rows)
    start = next(starts, None)
    if start is None or columns < start:
        return 1
    share = SHARING_BLOCKS // max(num_rows, 1)
    return min(max(share, FEWEST_SHARING_BLOCKS), MOST_SHARING_BLOCKS)


# Columns beyond which rows have fewer delegates; rows beyond which two blocks share one of an
# H200's multiprocessors, or three.
DELEGATE_LONG_COLUMNS = 131_072
DELEGATE_PAIR_ROWS = 132
DELEGATE_CROWD_ROWS = 2 * DELEGATE_PAIR_ROWS
# Launches overlap where there are multiprocessors enough for rows that wait.
DELEGATE_OVERLAP_ROWS = 128
# Members whose kernels may keep delegates in memory where LDS has no room for them.
FUSED_GLOBAL = ("k512_long", "k1024", "k2048", "k4096")
# Buffers of more rows than multiprocessors and so many columns are for short rows too.
DELEGATE_MIXED_COLUMNS = 262_144
# A block reduces its row itself where there are so many rows, or no more columns than these and so
# many for each row.
DELEGATE_FUSED_ROWS = 64
DELEGATE_FUSED_COLUMNS = 20_480
DELEGATE_FUSED_COLUMNS_A_ROW = 1280

DELEGATE_BLOCKS = 264  # that reduce, of all rows together: two for each multiprocessor of an H200
TILE_COLUMNS = 8192  # of a turn of such a block, with 64 lanes a wave


def delegate_member(num_rows: int, num_cols: int, k: int) -> str:
    """The member of `DELEGATE_POLICIES` for a shape.

    Fitted to an NVIDIA H200: rows of up to 131072 columns have segments of 16, longer ones of 32;
    where rows are more than multiprocessors, two blocks or three fit on one.

    Parameters
    ----------
    num_rows, num_cols, k : int
        Shape of the call.

    Returns
    -------
    str
    """
    for most, member in ((4096, "k4096"), (2048, "k2048"), (1024, "k1024")):
        if most // 2 < k <= most:
            return member
    if num_cols > DELEGATE_LONG_COLUMNS:
        return "k512_long"
    if num_rows <= DELEGATE_PAIR_ROWS:
        return "k512"
    return "k512_pair" if num_rows <= DELEGATE_CROWD_ROWS else "k512_crowd"


def delegate_policy(
    variant: str | Variant, num_rows: int, num_cols: int, k: int
) -> tuple[str, DelegatePolicy]:
    """The member that a call takes, and its policy.

    Parameters
    ----------
    variant : str or Variant
        Of the delegate selection, as `parse_variant` reads it.
    num_rows, num_cols, k : int
        Shape of the call.

    Returns
    -------
    str, DelegatePolicy

    Raises
    ------
    ValueError
        A member was asked for that doesn't take so large a k.
    """
    member = _policy_of(variant).member
    if member == "by_shape":
        member = delegate_member(num_rows, num_cols, k)
    policy = DELEGATE_POLICIES[member]
    if k > policy.max_k:
        raise ValueError(f"k must be at most {policy.max_k} for {variant}, got {k}")
    return member, policy


class DelegatePart(NamedTuple):
    """Rows that have kernels of their own among those of a call.

    Attributes
    ----------
    member : str
    policy : DelegatePolicy
    form : {"two", "fused", "fused_global"}
        Blocks of a launch ahead reduce a row, or the block that selects from it does; then its
        delegates are in LDS or in memory.
    least_length, most_length : int
        Of the rows.
    """

    member: str
    policy: DelegatePolicy
    form: str
    least_length: int = 0
    most_length: int = MOST_COLUMNS


def _delegate_form(member: str, launches: str, num_rows: int, num_cols: int) -> str:
    policy = DELEGATE_POLICIES[member]
    stride = policy.delegates_stride(num_cols)
    if launches == "two" or num_cols <= policy.whole_columns:
        return "two"
    if launches == "fused" and stride > policy.fused_delegates:
        raise ValueError(
            f"num_cols must leave no more than {policy.fused_delegates} delegates a row for "
            f"launches=fused, got {num_cols}: {stride} of them"
        )
    if launches == "fused_global" and member not in FUSED_GLOBAL:
        raise ValueError(
            f"member must be one of {', '.join(FUSED_GLOBAL)} for launches=fused_global, "
            f"got {member!r}"
        )
    if launches != "by_shape":
        return launches
    if stride <= policy.fused_delegates:
        few = DELEGATE_FUSED_COLUMNS + DELEGATE_FUSED_COLUMNS_A_ROW * num_rows
        return "fused" if num_rows >= DELEGATE_FUSED_ROWS or num_cols <= few else "two"
    return "fused_global" if num_rows >= DELEGATE_FUSED_ROWS and member in FUSED_GLOBAL else "two"


def delegate_parts(
    variant: str | Variant, num_rows: int, num_cols: int, k: int
) -> tuple[DelegatePart, ...]:
    """The members that a call takes, each for rows of some lengths, and how they are launched.

    Fitted to an NVIDIA H200: a block reduces its row itself where rows are many, or short for their
    number; else several share the reduction. Rows that are kept whole, whatever their length, need
    neither. A wide buffer of many rows has a second kernel for those that are short: which they
    are, the device knows alone.

    Parameters
    ----------
    variant : str or Variant
        Of the delegate selection, as `parse_variant` reads it.
    num_rows, num_cols, k : int
        Shape of the call.

    Returns
    -------
    tuple of DelegatePart
        Every length is one's.

    Raises
    ------
    ValueError
        Launches were asked for that the shape or the member doesn't take.
    """
    member, policy = delegate_policy(variant, num_rows, num_cols, k)
    chosen = _policy_of(variant)
    mixed = chosen.launches == "mixed"
    if mixed and (chosen.member != "by_shape" or k > DELEGATE_POLICIES["k512_long"].max_k):
        raise ValueError(
            f"launches=mixed must have members by shape and k up to 512, got {variant}, k={k}"
        )
    if chosen.launches == chosen.member == "by_shape" and member == "k512_long":
        mixed = num_rows > DELEGATE_PAIR_ROWS and num_cols > DELEGATE_MIXED_COLUMNS
    if mixed and num_cols > DELEGATE_LONG_COLUMNS:
        # For more rows than multiprocessors, however many there are: of its kernels alone is it
        # asked that they leave rows to another.
        short = delegate_member(max(num_rows, DELEGATE_PAIR_ROWS + 1), DELEGATE_LONG_COLUMNS, k)
        # One launch, however few the rows: in LDS if there is room.
        form = _delegate_form(member, "by_shape", DELEGATE_FUSED_ROWS, num_cols)
        return (
            DelegatePart(short, DELEGATE_POLICIES[short], "fused", 0, DELEGATE_LONG_COLUMNS),
            DelegatePart(member, policy, form, DELEGATE_LONG_COLUMNS + 1),
        )
    launches = "by_shape" if mixed else chosen.launches
    return (DelegatePart(member, policy, _delegate_form(member, launches, num_rows, num_cols)),)


def delegate_blocks(num_rows: int, num_cols: int) -> int:
    """Blocks that reduce a row's segments: a function of the shape alone.

    Parameters
    ----------
    num_rows, num_cols : int
        Shape of the call.

    Returns
    -------
    int
        At least 1, and no more than there are tiles for.
    """
    tiles = -(-num_cols // TILE_COLUMNS)
    return max(1, min(-(-DELEGATE_BLOCKS // max(num_rows, 1)), tiles))


def max_splits(variant: str | Variant, num_rows: int, num_cols: int) -> int:
    """Blocks that a row is given at launch: a function of the shape alone.

    Parameters
    ----------
    variant : str or Variant
        As `parse_variant` reads it.
    num_rows, num_cols : int
        Shape of the logits.

    Returns
    -------
    int
        Second grid dimension, and the splits that the workspace holds; 1 means no merge.
    """
    policy = _policy_of(variant)
    if isinstance(policy, SharedHistogramPolicy):
        return _shared_blocks(num_rows, num_cols)
    if not isinstance(policy, TopKPolicy):
        return 1
    if policy.split_schedule == "generic":
        return GENERIC_SPLITS if num_cols >= GENERIC_SPLIT_COLUMNS else 1
    if policy.split_schedule == "h200":
        return _h200_splits(num_rows, num_cols)
    if policy.split_schedule == "fixed":
        return int(policy.splits.partition("_")[2])
    if num_rows <= 32 and num_cols > 16 * KIBI:
        return 16
    if num_rows <= 128 and num_cols > 64 * KIBI:
        return 10
    if num_rows <= 160 and num_cols > 256 * KIBI:
        return 3
    if num_rows <= 256 and num_cols > 256 * KIBI:
        return 2
    return 1


def _k512_splits(num_rows: int, row_len: int) -> int:
    if num_rows <= 32:
        steps = ((256 * KIBI, 16), (128 * KIBI, 10), (16 * KIBI, 8))
    elif num_rows <= 128:
        steps = ((512 * KIBI, 10), (64 * KIBI, 4))
    elif num_rows <= 160:
        steps = ((256 * KIBI, 3),)
    elif num_rows <= 256:
        steps = ((256 * KIBI, 2),)
    else:
        steps = ()
    return next((splits for bound, splits in steps if row_len > bound), 1)


def active_splits(variant: str | Variant, num_rows: int, row_len: int, split_limit: int) -> int:
    """Blocks that work on a row: chosen on the device from the live length, at every replay.

    Parameters
    ----------
    variant : str or Variant
        As `parse_variant` reads it.
    num_rows : int
        Rows of the launch.
    row_len : int
        Live length of the row.
    split_limit : int
        `max_splits` of the launch.

    Returns
    -------
    int
        At least 1, at most `split_limit`; but for the ``generic`` schedule active splits hold 512
        columns or more.
    """
    policy = _policy_of(variant)
    if isinstance(policy, SharedHistogramPolicy):
        return min(_shared_blocks(num_rows, row_len), split_limit)
    if not isinstance(policy, TopKPolicy) or policy.split_schedule == "generic":
        return split_limit
    wanted = {"k512": _k512_splits, "h200": _h200_splits, "fixed": lambda *_: split_limit}
    chosen = wanted[policy.split_schedule](num_rows, row_len)
    return min(chosen, split_limit, max(1, row_len // 512))


def gate_refusal(name: str, num_rows: int, num_cols: int, k: int) -> str | None:
    """Why the variant does not take this shape, or None if it does.

    Parameters
    ----------
    name : str
        Key of `POLICIES`.
    num_rows, num_cols, k : int
        Shape of the call.

    Returns
    -------
    str or None
        One line: the argument, what is required, what came.
    """
    policy = POLICIES[name]
    if isinstance(policy, TopKPolicy) and policy.splits == "k512":
        if k != 512:
            return f"k must be 512 for {name}, got {k}"
        if num_rows > K512_MAX_ROWS:
            return f"num_rows must be at most {K512_MAX_ROWS} for {name}, got {num_rows}"
        if num_cols > K512_MAX_COLUMNS:
            return f"num_cols must be at most {K512_MAX_COLUMNS} for {name}, got {num_cols}"
        return None
    if isinstance(policy, OneBlockPolicy):
        if k < 1:
            return f"k must be at least 1 for {name}, got {k}"
        # A thread counts slots in int32, and looks a block beyond the last.
        most = 2**31 - policy.block_size
        return None if k <= most else f"k must be at most {most} for {name}, got {k}"
    limit = policy.max_k
    return None if 1 <= k <= limit else f"k must be in [1, {limit}] for {name}, got {k}"
