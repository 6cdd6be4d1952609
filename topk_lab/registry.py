"""Which selections are there, what does each offer, and which one serves a call?"""

from __future__ import annotations

from dataclasses import dataclass

from topk_lab import schedules
from topk_lab.contract.words import ORDERS, TIE_BREAKS, check_word

__all__ = ["VARIANTS", "Choice", "VariantInfo", "auto", "gated", "resolve"]

EMULATED_TARGETS = ("gfx90a", "gfx942", "gfx950")
DEVICE_TARGETS = ("hip", "cuda")


@dataclass(frozen=True)
class VariantInfo:
    """What a variant offers.

    Attributes
    ----------
    name : str
        As callers write it.
    description : str
        One line.
    targets : tuple of str
        Where it runs.
    max_k : int or None
        Largest k; None for any.
    tie_breaks, orders : tuple of str
        The promises it can make.
    """

    name: str
    description: str
    targets: tuple[str, ...]
    max_k: int | None
    tie_breaks: tuple[str, ...] = ("any",)
    orders: tuple[str, ...] = ("any",)

    @property
    def graph_safe(self) -> bool:
        """Whether a captured call stays right for all later lengths and contents.

        Every variant that is launched from a plan claims it: a plan depends on shapes alone.
        """
        return self.name in schedules.POLICIES


VARIANTS = {
    info.name: info
    for info in (
        VariantInfo(
            "reference",
            "the specification: one row after another, lowest index on ties",
            ("numba",),
            None,
            ("any", "lowest"),
            ("any", "index", "value"),
        ),
        VariantInfo(
            "cpu_delegate",
            "the same answer at about the speed of reading: delegates, vectorised, over threads",
            ("numba",),
            None,
            ("any", "lowest"),
            ("any", "index", "value"),
        ),
        VariantInfo(
            "vllm_generic",
            "vLLM before #56743, pads made exact: 512 threads, 10 splits from 200,000 columns",
            ("numba", *EMULATED_TARGETS, *DEVICE_TARGETS),
            schedules.POLICIES["vllm_generic"].max_k,
        ),
        VariantInfo(
            "vllm_k512",
            "vLLM #56743: k = 512, up to 384 rows and 1 Mi columns, splits from live lengths",
            ("numba", *EMULATED_TARGETS, *DEVICE_TARGETS),
            schedules.POLICIES["vllm_k512"].max_k,
        ),
        VariantInfo(
            "vllm_k512_uncrowded",
            "the same, any crowded bin kept back, no bin of equal logits refined",
            ("numba", *EMULATED_TARGETS, *DEVICE_TARGETS),
            schedules.POLICIES["vllm_k512_uncrowded"].max_k,
        ),
        *(
            VariantInfo(
                name,
                description,
                ("numba", *EMULATED_TARGETS, *DEVICE_TARGETS),
                schedules.POLICIES[name].max_k,
                orders=("any", "index"),
            )
            for name, description in (
                ("sglang_block512", "SGLang before #36004, made exact: one block of 512 a row"),
                ("sglang_block1024", "SGLang #36004, made exact: one block of 1024 threads a row"),
            )
        ),
        VariantInfo(
            "aiter_one_block",
            "AITER decode: one block of 1024 threads a row, 12 bits a pass, any k",
            ("numba", *EMULATED_TARGETS, *DEVICE_TARGETS),
            None,
            ("any", "lowest"),
            ("any", "index"),
        ),
        VariantInfo(
            "shared_histogram",
            "SGLang v2 on ROCm: 1 to 32 blocks a row, its histogram in memory, read twice",
            ("numba", *EMULATED_TARGETS, *DEVICE_TARGETS),
            schedules.POLICIES["shared_histogram"].max_k,
        ),
        VariantInfo(
            "delegate",
            "ours: reads each row once, and k segments of it again; lowest index on ties",
            ("numba", *EMULATED_TARGETS, *DEVICE_TARGETS),
            schedules.POLICIES["delegate"].max_k,
            ("any", "lowest"),
            ("any", "index", "value"),
        ),
        VariantInfo("torch", "baseline: torch.topk over order keys", ("torch",), None),
    )
}


def gated(num_rows: int, num_cols: int, k: int) -> str:
    """The vLLM selection that takes a shape: ``vllm_k512`` inside its gate, else ``vllm_generic``.

    Parameters
    ----------
    num_rows, num_cols, k : int
        Shape of the call.

    Returns
    -------
    str
    """
    refused = schedules.gate_refusal("vllm_k512", num_rows, num_cols, k)
    return "vllm_generic" if refused else "vllm_k512"


# Of a greater k the delegate selection has no list of items, and tells all that it keeps apart.
SHARED_ABOVE_K = 2048


@dataclass(frozen=True)
class Choice:
    """What ``variant="auto"`` stands for in a call, and why.

    Attributes
    ----------
    variant, reason : str
    """

    variant: str
    reason: str


def auto(
    platform: str,
    num_rows: int,
    num_cols: int,
    k: int,
    *,
    tie_break: str = "any",
    order: str = "any",
) -> Choice:
    """Choose a variant by the shape of a call and by what it is asked for, never by contents.

    Parameters
    ----------
    platform : {"cpu", "cuda", "hip"}
    num_rows, num_cols, k : int
        Shape of the call.
    tie_break, order : str
        As for `resolve`.

    Returns
    -------
    Choice

    Notes
    -----
    The choice for CUDA devices is fitted to the records of an NVIDIA H200 in ``data/measured``
    (experiments ``delegate_matrix``, k = 512, and ``delegate_large_k``). Of AMD devices no times
    are recorded, so that the variants stand for themselves there that were published with some.
    """
    if platform == "cpu":
        return Choice("cpu_delegate", "it takes any k, tie_break and order on a CPU")
    most = schedules.POLICIES["delegate"].max_k
    if k > most:
        return Choice("aiter_one_block", f"it takes a k above {most}")
    plain = tie_break == order == "any"
    if platform == "cuda":
        if plain and k > SHARED_ABOVE_K:
            return Choice("shared_histogram", "it was the fastest on an NVIDIA H200, by such a k")
        if plain:
            return Choice("delegate", "at most shapes it was the fastest on an NVIDIA H200")
        return Choice("delegate", "it keeps the lowest of equal logits, and takes every order")
    variant = gated(num_rows, num_cols, k)
    if plain and not schedules.gate_refusal(variant, num_rows, num_cols, k):
        return Choice(variant, "vLLM takes it for this shape; no times of AMD devices are recorded")
    return Choice("delegate", f"{variant} does not make what is asked for")


def resolve(variant: str, *, tie_break: str = "any", order: str = "any") -> VariantInfo:
    """Look a variant up and hold a call's promises against what it offers.

    Parameters
    ----------
    variant : str
        A name of `VARIANTS`, policy fields in brackets allowed.
    tie_break, order : str
        What the caller wants.

    Returns
    -------
    VariantInfo

    Raises
    ------
    TypeError
        Not a string.
    ValueError
        No such variant, or a promise that it does not make; names those that do.
    """
    if not isinstance(variant, str):
        raise TypeError(f"variant must be a str, got {type(variant).__name__}")
    name, bracket, _ = variant.partition("[")
    info = VARIANTS.get(name)
    if info is None or (bracket and name not in schedules.POLICIES):
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    check_word("tie_break", tie_break, TIE_BREAKS)
    check_word("order", order, ORDERS)
    for name, wanted, field in (("tie_break", tie_break, "tie_breaks"), ("order", order, "orders")):
        if wanted not in getattr(info, field):
            able = [other.name for other in VARIANTS.values() if wanted in getattr(other, field)]
            raise ValueError(
                f"{name} must be one of {', '.join(getattr(info, field))} for {info.name}, "
                f"got {wanted!r}, which {', '.join(able)} offers"
            )
    return info
