"""Native kernels or AITER: which rule of vLLM's Python selector matches a call first?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from topk_lab import schedules
from topk_lab.contract.words import INT32_MAX, check_word, positive_int, type_name
from topk_lab.schedules import KIBI

__all__ = [
    "AITER_MAX_LEN",
    "GATED_ARCH",
    "GATED_VARIANT",
    "KERNELS",
    "LIVE_LENGTH_LIMITS",
    "NATIVE_MAX_ROWS",
    "PHASES",
    "POLICIES",
    "PREFERENCE",
    "Decision",
    "Query",
    "Rule",
    "decide",
    "prefers_native",
    "supports_aiter",
]

PHASES = ("prefill", "decode")
KERNELS = ("native", "aiter_prefill", "aiter_decode")

GATED_ARCH = "gfx950"
GATED_VARIANT = "vllm_k512"
AITER_MAX_LEN = 64 * KIBI
NATIVE_MAX_ROWS = 256

LIVE_LENGTH_LIMITS = ((48, 64 * KIBI), (96, 128 * KIBI), (192, 256 * KIBI), (384, 256 * KIBI))
"""Rows of a point of the experiment, and the longest live length at which AITER won there.

Between two points the limit of the greater one holds, and past the last one its own: the experiment
has points only, this is how they are read here.
"""


@dataclass(frozen=True)
class Query:
    """What the selector is asked.

    Attributes
    ----------
    phase : {"prefill", "decode"}
    compress_ratio : int
        Tokens that one column stands for.
    arch : str
        Architecture, without features: ``"gfx950"``.
    k, num_rows : int
    num_cols : int or None
        Width of the logits; None where the caller does not know it yet.
    max_len : int or None
        Bound on the columns of a decode row, `topk_lab.gate.decode_max_len`; prefill needs none.
    aiter : bool
        Whether AITER can be imported.
    full_graph : bool
        Whether the call is captured in a FULL graph.
    """

    phase: str
    compress_ratio: int
    arch: str
    k: int
    num_rows: int
    num_cols: int | None
    max_len: int | None
    aiter: bool
    full_graph: bool


@dataclass(frozen=True)
class Rule:
    """One line of a decision table.

    Attributes
    ----------
    number : int
        As the lines are counted from 1.
    phases : tuple of str
        Phases that it speaks of.
    condition : str
        When it matches, in words.
    kernel : {"native", "aiter_prefill", "aiter_decode"}
        What it chooses.
    holds : callable
        The condition, of a query of one of its phases.
    reason : callable
        Why it matched, with the numbers of the query.
    """

    number: int
    phases: tuple[str, ...]
    condition: str
    kernel: str
    holds: Callable[[Query], bool] = field(repr=False)
    reason: Callable[[Query], str] = field(repr=False)

    def matches(self, query: Query) -> bool:
        """Whether the rule speaks of the query's phase and its condition holds."""
        return query.phase in self.phases and self.holds(query)


@dataclass(frozen=True)
class Decision:
    """What a decision table chose.

    Attributes
    ----------
    policy : str
        The table, a name of `POLICIES`.
    rule : Rule
        The first that matched.
    query : Query
        What was asked.
    """

    policy: str
    rule: Rule
    query: Query

    @property
    def kernel(self) -> str:
        """The family of kernels: native, aiter_prefill or aiter_decode."""
        return self.rule.kernel

    @property
    def named(self) -> str:
        """The rule by its number, and by its table where that is not vLLM's."""
        return f"rule {self.rule.number}" + (
            "" if self.policy == "merged" else f" of {self.policy}"
        )

    @property
    def reason(self) -> str:
        """Why the rule matched, with the numbers."""
        return self.rule.reason(self.query)

    @property
    def sentence(self) -> str:
        """What was chosen, by which rule, and why."""
        goal = "the native kernels" if self.kernel == "native" else "AITER"
        return f"{self.named} sends {self.query.phase} to {goal}: {self.reason}"

    def __str__(self) -> str:
        return self.sentence


def prefers_native(num_rows: int, num_cols: int | None, k: int) -> bool:
    """The DeepSeek-V4 preference: does a decode call fit the native k = 512 kernel?

    Parameters
    ----------
    num_rows : int
    num_cols : int or None
        Width; where it is unknown, nothing is preferred.
    k : int

    Returns
    -------
    bool

    Raises
    ------
    TypeError, ValueError
        As `decide`.
    """
    positive_int("num_rows", num_rows, INT32_MAX, least=0)
    positive_int("k", k, INT32_MAX)
    if num_cols is not None:
        positive_int("num_cols", num_cols, INT32_MAX, least=0)
    return (
        num_cols is not None
        and num_rows > 0
        and schedules.gate_refusal(GATED_VARIANT, num_rows, num_cols, k) is None
    )


def supports_aiter(
    phase: str, compress_ratio: int, arch: str, num_rows: int, max_len: int | None = None
) -> bool:
    """The generic support test: is a call AITER's, before the DeepSeek-V4 preference is asked?

    Parameters
    ----------
    phase, compress_ratio, arch, num_rows, max_len
        As `decide` takes them.

    Returns
    -------
    bool
        False if one of the rules 1 and 3 of the merged table matches.

    Raises
    ------
    TypeError, ValueError
        As `decide`.
    """
    # Neither rule reads k, the width, or whether AITER is there.
    query = _query(phase, compress_ratio, arch, 1, num_rows, None, max_len, True, False)
    return not any(rule.matches(query) for rule in (_UNSUPPORTED, _LONG_FEW_ROWS))


def _live_length_limit(num_rows: int) -> int:
    return next(
        (limit for rows, limit in LIVE_LENGTH_LIMITS if num_rows <= rows), LIVE_LENGTH_LIMITS[-1][1]
    )


def _why_unsupported(query: Query) -> str:
    if query.compress_ratio <= 1:
        return f"compress_ratio {query.compress_ratio} is at most 1"
    return f"{query.arch} is not {GATED_ARCH}"


def _why_aiter_decode(query: Query) -> str:
    if query.max_len <= AITER_MAX_LEN:
        return f"max_len {query.max_len} is at most {AITER_MAX_LEN}"
    return f"num_rows {query.num_rows} is above {NATIVE_MAX_ROWS}"


_UNSUPPORTED = Rule(
    1,
    PHASES,
    f"compress_ratio at most 1, or not {GATED_ARCH}",
    "native",
    lambda query: query.compress_ratio <= 1 or query.arch != GATED_ARCH,
    _why_unsupported,
)
PREFERENCE = Rule(
    2,
    ("decode",),
    f"k of {schedules.POLICIES[GATED_VARIANT].max_k}, 1 to {schedules.K512_MAX_ROWS} rows, and a "
    f"known width of at most {schedules.K512_MAX_COLUMNS}",
    "native",
    lambda query: prefers_native(query.num_rows, query.num_cols, query.k),
    lambda query: (
        f"k is {query.k}, num_rows {query.num_rows} at most {schedules.K512_MAX_ROWS}, and "
        f"num_cols {query.num_cols} at most {schedules.K512_MAX_COLUMNS}"
    ),
)
_LONG_FEW_ROWS = Rule(
    3,
    ("decode",),
    f"at most {NATIVE_MAX_ROWS} rows and max_len above {AITER_MAX_LEN}",
    "native",
    lambda query: query.num_rows <= NATIVE_MAX_ROWS and query.max_len > AITER_MAX_LEN,
    lambda query: (
        f"num_rows {query.num_rows} is at most {NATIVE_MAX_ROWS}, and max_len {query.max_len} "
        f"above {AITER_MAX_LEN}"
    ),
)
_NO_AITER = Rule(
    4,
    PHASES,
    "AITER not importable",
    "native",
    lambda query: not query.aiter,
    lambda query: "AITER can't be imported",
)
_AITER_PREFILL = Rule(
    5,
    ("prefill",),
    "otherwise",
    "aiter_prefill",
    lambda query: True,
    lambda query: f"compress_ratio {query.compress_ratio} on {query.arch}, and AITER is there",
)

POLICIES: dict[str, tuple[Rule, ...]] = {
    "merged": (
        _UNSUPPORTED,
        PREFERENCE,
        _LONG_FEW_ROWS,
        _NO_AITER,
        _AITER_PREFILL,
        Rule(
            6,
            ("decode",),
            f"otherwise: max_len at most {AITER_MAX_LEN}, or more than {NATIVE_MAX_ROWS} rows",
            "aiter_decode",
            lambda query: True,
            _why_aiter_decode,
        ),
    ),
    "live_length": (
        _UNSUPPORTED,
        Rule(
            2,
            ("decode",),
            "FULL graph: no live length is known",
            "native",
            lambda query: query.full_graph,
            lambda query: "under a FULL graph no live length is known",
        ),
        Rule(
            3,
            ("decode",),
            "max_len above "
            + ", ".join(f"{limit} up to {rows} rows" for rows, limit in LIVE_LENGTH_LIMITS),
            "native",
            lambda query: query.max_len > _live_length_limit(query.num_rows),
            lambda query: (
                f"max_len {query.max_len} is above {_live_length_limit(query.num_rows)}, the limit "
                f"of num_rows {query.num_rows}"
            ),
        ),
        _NO_AITER,
        _AITER_PREFILL,
        Rule(
            6,
            ("decode",),
            "otherwise",
            "aiter_decode",
            lambda query: True,
            lambda query: (
                f"max_len {query.max_len} is at most {_live_length_limit(query.num_rows)}, the "
                f"limit of num_rows {query.num_rows}"
            ),
        ),
    ),
}
"""The decision tables: rules in order, the first that matches wins.

``merged`` is vLLM's. ``live_length`` has an unmerged experiment's limits, `LIVE_LENGTH_LIMITS`, in
place of the rules 2 and 3.
"""


def _query(
    phase: str,
    compress_ratio: int,
    arch: str,
    k: int,
    num_rows: int,
    num_cols: int | None,
    max_len: int | None,
    aiter: bool,
    full_graph: bool,
) -> Query:
    """Check what was asked, and name the architecture without its features."""
    check_word("phase", phase, PHASES)
    if not isinstance(arch, str):
        raise TypeError(f"arch must be a str, got {type_name(arch)}")
    if not re.fullmatch(r"gfx[0-9a-f]+(:[a-z]+[+-])*", arch):
        raise ValueError(f"arch must be an AMD architecture such as {GATED_ARCH}, got {arch!r}")
    for name, value in (("aiter", aiter), ("full_graph", full_graph)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be a bool, got {type_name(value)}")
    if phase == "prefill" and full_graph:
        raise ValueError("full_graph must be False for prefill, only decode asks for it, got True")
    if phase == "decode" and max_len is None:
        raise ValueError("max_len must be given for decode, got None")
    return Query(
        phase=phase,
        compress_ratio=positive_int("compress_ratio", compress_ratio),
        arch=arch.partition(":")[0],
        k=positive_int("k", k, INT32_MAX),
        num_rows=positive_int("num_rows", num_rows, INT32_MAX, least=0),
        num_cols=num_cols
        if num_cols is None
        else positive_int("num_cols", num_cols, INT32_MAX, least=0),
        max_len=None if max_len is None else positive_int("max_len", max_len, least=0),
        aiter=aiter,
        full_graph=full_graph,
    )


def decide(
    phase: str,
    compress_ratio: int,
    arch: str,
    k: int,
    num_rows: int,
    num_cols: int | None = None,
    *,
    max_len: int | None = None,
    aiter: bool = True,
    full_graph: bool = False,
    policy: str = "merged",
) -> Decision:
    """Walk a decision table of the Python selector: which family of kernels, and why.

    Parameters
    ----------
    phase : {"prefill", "decode"}
    compress_ratio : int
        Tokens that one column stands for; at least 1.
    arch : str
        AMD architecture; features behind a colon are left out.
    k : int
        Indices a row; at least 1.
    num_rows : int
        Query rows; at least 0.
    num_cols : int, optional
        Width of the logits; None where the caller does not know it.
    max_len : int, optional
        Bound on the columns of a row, as `topk_lab.gate.decode_max_len` gives it: needed for
        decode, not read for prefill.
    aiter : bool, default True
        Whether AITER can be imported.
    full_graph : bool, default False
        Whether the call is captured in a FULL graph. The merged table does not ask: `max_len` has
        it.
    policy : {"merged", "live_length"}, default "merged"
        Which table.

    Returns
    -------
    Decision

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what is required and what came.

    Examples
    --------
    >>> from topk_lab.gate import decide
    >>> print(decide("decode", 4, "gfx950", 1024, 257, max_len=250_000))
    rule 6 sends decode to AITER: num_rows 257 is above 256
    """
    check_word("policy", policy, tuple(POLICIES))
    query = _query(phase, compress_ratio, arch, k, num_rows, num_cols, max_len, aiter, full_graph)
    rule = next(rule for rule in POLICIES[policy] if rule.matches(query))
    return Decision(policy=policy, rule=rule, query=query)
