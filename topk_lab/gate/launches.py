"""What runs in the end: which variant, with how many blocks a row, and what does a graph fix?"""

from __future__ import annotations

from dataclasses import dataclass

from topk_lab import schedules
from topk_lab.contract.words import INT32_MAX, positive_int, type_name
from topk_lab.gate.rules import (
    GATED_ARCH,
    GATED_VARIANT,
    PREFERENCE,
    Decision,
    Query,
    decide,
)

__all__ = ["Dispatch", "decode_max_len", "dispatch"]

# Splits that vLLM gives a row of GENERIC_SPLIT_COLUMNS or more at k = 1024 on gfx950, by rows. This
# package has no such variant.
K1024_SPLITS = ((32, 8), (64, 4), (256, 3))


@dataclass(frozen=True)
class Dispatch:
    """What runs in the end.

    Attributes
    ----------
    variant : str
        Of this package; the one that mirrors what vLLM runs, or comes nearest to it.
    splits : int
        Blocks that it gives a row at launch.
    decision : Decision
        Of the Python selector.
    sentence : str
        Why, where vLLM's own launch differs, and what a FULL graph fixes.
    """

    variant: str
    splits: int
    decision: Decision
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def decode_max_len(
    compress_ratio: int,
    *,
    max_model_len: int | None = None,
    max_seq_len: int | None = None,
    full_graph: bool = False,
) -> int:
    """The ``max_len`` that vLLM's selector is given for decode.

    Parameters
    ----------
    compress_ratio : int
        Tokens that one column stands for.
    max_model_len : int, optional
        Longest sequence of the model (tokens); needed under a FULL graph.
    max_seq_len : int, optional
        Longest sequence of the batch (tokens); needed otherwise.
    full_graph : bool, default False
        Whether the runtime mode is FULL graph.

    Returns
    -------
    int
        ``max_model_len`` under a FULL graph, which bounds every replay; else
        ``max_seq_len // compress_ratio``.

    Notes
    -----
    Under a FULL graph vLLM takes ``max_model_len`` as it is, in tokens, although the table compares
    it with columns: compression is not divided out. It stays a bound, but a loose one: with four
    tokens a column a model of 65537 tokens, at most 16384 columns, already counts as long.
    """
    positive_int("compress_ratio", compress_ratio)
    if not isinstance(full_graph, bool):
        raise TypeError(f"full_graph must be a bool, got {type_name(full_graph)}")
    lengths = {"max_model_len": max_model_len, "max_seq_len": max_seq_len}
    for name, length in lengths.items():
        if length is not None:
            positive_int(name, length, least=0)
    asked = "max_model_len" if full_graph else "max_seq_len"
    if lengths[asked] is None:
        mode = "under" if full_graph else "without"
        raise ValueError(f"{asked} must be given {mode} a FULL graph, got None")
    return lengths[asked] if full_graph else lengths[asked] // compress_ratio


def dispatch(
    num_rows: int,
    num_cols: int,
    k: int,
    *,
    compress_ratio: int = 4,
    arch: str = GATED_ARCH,
    phase: str = "decode",
    max_model_len: int | None = None,
    max_seq_len: int | None = None,
    full_graph: bool = False,
    aiter: bool = True,
    policy: str = "merged",
) -> Dispatch:
    """Say what vLLM on ROCm runs for a call in the end, in terms of this package's variants.

    Parameters
    ----------
    num_rows, num_cols, k : int
        Shape of the call: query rows, width of the logits (columns), indices a row.
    compress_ratio : int, default 4
        Tokens that one column stands for.
    arch : str, default "gfx950"
        AMD architecture.
    phase : {"prefill", "decode"}, default "decode"
    max_model_len, max_seq_len : int, optional
        Longest sequence of the model, and of the batch (tokens); decode only. Default: as many
        tokens as fill the width, ``num_cols * compress_ratio``.
    full_graph : bool, default False
        Whether the call is captured in a FULL graph; decode only.
    aiter : bool, default True
        Whether AITER can be imported.
    policy : {"merged", "live_length"}, default "merged"
        Which table of the Python selector.

    Returns
    -------
    Dispatch
        ``vllm_k512`` where a native call is inside its gate (decode on gfx950, and
        `topk_lab.schedules.gate_refusal`), else ``vllm_generic``; ``aiter_one_block`` for AITER.

    Raises
    ------
    TypeError, ValueError
        Bad input, or a native call whose k no variant of this package takes.

    Notes
    -----
    Three launches of vLLM have no mirror here, and the sentence says so where they would run: the
    splits of k = 1024 on gfx950, prefill without splits, and AITER's several blocks a prefill row.

    Examples
    --------
    >>> import topk_lab
    >>> found = topk_lab.dispatch(24, 262_144, 512)
    >>> found.variant, found.splits, found.decision.rule.number
    ('vllm_k512', 16, 2)
    """
    positive_int("num_cols", num_cols, INT32_MAX, least=0)
    positive_int("compress_ratio", compress_ratio)
    max_len = None
    if phase == "prefill":
        for name, length in (("max_model_len", max_model_len), ("max_seq_len", max_seq_len)):
            if length is not None:
                raise ValueError(
                    f"{name} must be None for prefill, only decode asks for it, got {length!r}"
                )
    if phase == "decode":
        filled = num_cols * compress_ratio
        max_len = decode_max_len(
            compress_ratio,
            max_model_len=filled if max_model_len is None else max_model_len,
            max_seq_len=filled if max_seq_len is None else max_seq_len,
            full_graph=full_graph,
        )
    decision = decide(
        *(phase, compress_ratio, arch, k, num_rows, num_cols),
        max_len=max_len,
        aiter=aiter,
        full_graph=full_graph,
        policy=policy,
    )
    outside = None
    if decision.kernel == "native":
        outside = _outside_gate(decision.query)
        variant = "vllm_generic" if outside else GATED_VARIANT
        refused = schedules.gate_refusal(variant, num_rows, num_cols, k)
        if refused:
            raise ValueError(refused)
        splits = schedules.max_splits(variant, num_rows, num_cols)
    else:
        variant, splits = "aiter_one_block", 1
    sentence = _served(decision, variant, splits, outside)
    differs = _unmirrored(decision, splits)
    if differs:
        sentence += f"; {differs}"
    if full_graph:
        sentence += f". {_captured(decision, variant, splits)}"
    return Dispatch(variant=variant, splits=splits, decision=decision, sentence=sentence)


def _outside_gate(query: Query) -> str | None:
    """Why the host launcher does not take the k = 512 kernel, or None if it does."""
    if query.phase != "decode":
        return "only decode is launched through it"
    if query.arch != GATED_ARCH:
        return f"{query.arch} is not {GATED_ARCH}"
    if query.num_rows == 0:
        return "num_rows must be at least 1, got 0"
    return schedules.gate_refusal(GATED_VARIANT, query.num_rows, query.num_cols, query.k)


def _served(decision: Decision, variant: str, splits: int, outside: str | None) -> str:
    query = decision.query
    rows, be, go, them = (
        ("row", "is", "goes", "it") if query.num_rows == 1 else ("rows", "are", "go", "them")
    )
    named, reason = decision.named, decision.reason
    if decision.rule is PREFERENCE:
        where = f"{be} inside the {GATED_ARCH} gate ({named})"
    elif decision.kernel == "native":
        where = f"{go} to the native kernels by {named} ({reason}), "
        where += f"{'outside' if outside else 'inside'} the {GATED_ARCH} gate"
        where += f" ({outside})" if outside not in (None, reason) else ""
    else:
        where = f"{go} to AITER's {query.phase} by {named} ({reason})"
    if splits == 1:
        blocks = "one block a row"
    else:
        blocks = f"{'up to ' if variant == GATED_VARIANT else ''}{splits} splits a row"
    return (
        f"{query.num_rows} {rows} of {query.num_cols} columns at k = {query.k} {where}, "
        f"so {variant} serves {them} with {blocks}"
    )


def _unmirrored(decision: Decision, splits: int) -> str | None:
    """Where vLLM's own launch differs from the variant that stands for it."""
    query = decision.query
    if decision.kernel == "aiter_prefill":
        return (
            "AITER itself may spread few long rows over several blocks, and answers in absolute "
            "columns, from which vLLM subtracts the row starts"
        )
    if decision.kernel != "native" or splits == 1:
        return None
    if query.phase == "prefill":
        return "vLLM itself launches prefill without splits"
    if query.arch == GATED_ARCH and query.k == 1024:
        own = next((n for rows, n in K1024_SPLITS if query.num_rows <= rows), None)
        return own and f"vLLM itself has a launch of up to {own} splits for k = 1024 here"
    return None


def _captured(decision: Decision, variant: str, splits: int) -> str:
    """What a captured FULL graph fixes, before any length is known."""
    query, rule = decision.query, decision.rule
    if decision.kernel != "native":
        fixed = "one block a row, whatever its length"
    else:
        grid = "one block a row" if splits == 1 else f"grid and workspace of {splits} splits a row"
        fixed = f"{grid} by the width of {query.num_cols}, which stands for the length"
    said = f"A captured FULL graph fixes {fixed}"
    if splits > 1 and variant == GATED_VARIANT:
        said += "; of these each replay takes as many as its live lengths ask for"
    elif splits > 1:
        said += "; each replay cuts and merges short live rows alike"
    if decision.policy == "merged" and rule.number in (3, 6):  # no other rule reads a length
        said += (
            f"; max_model_len = {query.max_len} (tokens) stands for the length in rule "
            f"{rule.number}"
        )
    return said
