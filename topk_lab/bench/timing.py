"""How long does a call take on a device?

Candidates that are to be compared are measured together: every round times each of them once, in an
order drawn anew, so that clocks which drift, drift for all. A candidate is timed only after the
very thing that is replayed was checked exact on input that was not there when it was captured.

=================== ==================================================================
mode                what a sample is
=================== ==================================================================
``graph``           one replay of a captured graph, divided by the calls in it
``eager``           one call on an idle stream: its launch cost shows
=================== ==================================================================

=================== ==================================================================
cache               what went through the device's caches before a timed replay
=================== ==================================================================
``warm``            the same calls, just before
``pressure_256MiB`` 256 MiB, written; one call a graph, as all others would be warm
``cold``            other copies of the input, all of them calls of one graph, and where
                    these don't come to three times the last-level cache, that much of
                    other memory, read
=================== ==================================================================
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topk_lab.bench.device import Call, Device, Event
from topk_lab.results import CACHES, MODES

__all__ = ["COLD_CACHES", "Candidate", "Effort", "Session", "Timing", "measure", "one_line"]

WARM_CALLS = 20
COLD_CACHES = 3


@dataclass(frozen=True)
class Effort:
    """How many samples are taken.

    Attributes
    ----------
    min_samples : int
        At least so many.
    max_seconds : float
        With these, no round begins after this time (s).
    max_samples : int, optional
        No more than so many; default as many as the time allows.
    settled_iqr : float
        With these, rounds also end when the quartiles of every candidate are this close, as a share
        of its median.
    warm_up_seconds : float
        Rounds that are not kept last this long (s); there is at least one, for the first replay of
        a graph is slow.
    seed : int
        Of the order within the rounds.

    Raises
    ------
    ValueError
        No samples at all.
    """

    min_samples: int = 50
    max_seconds: float = 2.0
    settled_iqr: float = 0.02
    warm_up_seconds: float = 0.025
    seed: int = 0
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if self.min_samples < 1:
            raise ValueError(f"min_samples must be at least 1, got {self.min_samples}")
        if self.max_samples is not None and self.max_samples < self.min_samples:
            raise ValueError(
                f"max_samples must be at least min_samples = {self.min_samples}, "
                f"got {self.max_samples}"
            )

    def done(self, samples_us: Sequence[Sequence[float]], seconds: float) -> bool:
        """Whether no more rounds are due, from each candidate's samples and the time taken (s)."""
        rounds = len(samples_us[0])
        if rounds < self.min_samples:
            return False
        if seconds >= self.max_seconds or rounds == self.max_samples:
            return True
        # Quartiles take longer than many a round.
        return rounds % 10 == 0 and all(_relative_iqr(one) < self.settled_iqr for one in samples_us)


@dataclass(frozen=True)
class Candidate:
    """Something to be timed.

    Attributes
    ----------
    calls : tuple of callables
        One, or for cold caches several, each on a copy of the input that is its own. It queues the
        work on the current stream.
    prepare : callable
        Writes the input that is timed, and fills the outputs with what no call can leave behind.
    check : callable
        Looks at the outputs of every call: None if they are exact, else why not, in one line.
    input_bytes : int
        What one call reads at least: with cold caches, the calls' inputs push one another out of
        the cache if they are large enough.
    skipped : str, optional
        Why it can't be run here, in one line; then it has no calls.
    """

    calls: tuple[Call, ...]
    prepare: Call
    check: Callable[[], str | None]
    input_bytes: int = 0
    skipped: str | None = None

    @classmethod
    def skip(cls, reason: str) -> Candidate:
        """Stand for what can't be run here."""
        return cls((), lambda: None, lambda: reason, skipped=reason)


@dataclass(frozen=True)
class Timing:
    """What became of a candidate.

    Attributes
    ----------
    status : {"ok", "wrong", "error", "skipped"}
        Only an exact candidate has times.
    reason : str or None
        One line; None if ok.
    samples_us : tuple of float
        Time of a single call (us) in every round, in order; none was left out.
    calls_per_graph : int or None
        What a replay's time was divided by; None in eager mode.
    clocks : dict of str to tuple of float
        Readings of the device before the first sample and after the last.
    more : dict
        What else an experiment counted.

    Raises
    ------
    ValueError
        Times where there must be none, none where there must be, or one that is no time.
    """

    status: str
    reason: str | None = None
    samples_us: tuple[float, ...] = ()
    calls_per_graph: int | None = None
    clocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status == "ok":
            problem = _no_times(self.samples_us)
            if problem:
                raise ValueError(problem)
        elif self.samples_us:
            raise ValueError(f"samples_us must be empty for status {self.status}")

    @property
    def median_us(self) -> float:
        """Median of the samples (us)."""
        return statistics.median(self.samples_us)

    @property
    def relative_iqr(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        return _relative_iqr(self.samples_us)

    @property
    def drift(self) -> float:
        """How much slower the second half of the samples was than the first, as a share."""
        half = len(self.samples_us) // 2
        if not half:
            return 0.0
        first, second = self.samples_us[:half], self.samples_us[-half:]
        return statistics.median(second) / statistics.median(first) - 1

    def counters(self) -> dict[str, Any]:
        """Everything about the samples that a record keeps beside them."""
        if not self.samples_us:
            return {}
        return {
            "relative_iqr": round(self.relative_iqr, 5),
            "drift": round(self.drift, 5),
            **{name: [round(one, 1) for one in pair] for name, pair in self.clocks.items()},
            **self.more,
        }


def _no_times(samples_us: Sequence[float]) -> str | None:
    """Why samples can't stand for a time."""
    if not samples_us:
        return "samples_us must hold at least one time, got none"
    for position, sample in enumerate(samples_us):
        if not (math.isfinite(sample) and sample > 0):
            return (
                f"samples_us must be finite and above 0, got {sample} at {position} "
                f"of {len(samples_us)}"
            )
    return None


def _relative_iqr(samples_us: Sequence[float]) -> float:
    if len(samples_us) < 2:
        return math.inf
    first, median, third = statistics.quantiles(samples_us, n=4, method="inclusive")
    return (third - first) / median if median > 0 else math.inf


def _check_calls(candidates: Mapping[str, Candidate], cache: str) -> None:
    for name, candidate in candidates.items():
        num_calls = len(candidate.calls)
        if cache != "cold" and num_calls != 1 and candidate.skipped is None:
            raise ValueError(f"calls of {name} must be one for {cache} caches, got {num_calls}")


def _rotation(calls: Sequence[Call]) -> Call:
    """One call that takes the next input each time."""
    inputs = itertools.cycle(calls)
    return lambda: next(inputs)()


@dataclass
class _Lane:
    """A candidate on its way through the rounds."""

    candidate: Candidate
    run: Call  # what is timed
    before: Call  # what brings the caches into the asked state
    calls: int  # in what is timed
    begin: Event
    end: Event
    samples_us: list[float] = field(default_factory=list)

    def time_once(self, device: Device, mode: str) -> None:
        """Queue one timed run."""
        self.before()
        if mode == "eager":
            device.synchronize()
        self.begin.record()
        self.run()
        self.end.record()

    def keep(self) -> None:
        """Keep the time of the last run, which has ended."""
        elapsed_us = 1e3 * self.begin.elapsed_time(self.end)
        self.samples_us.append(round(elapsed_us / self.calls, 4))

    def inexact_because(self, device: Device, mode: str) -> str | None:
        """Run on the input that is to be timed, and look at what that left behind."""
        self.candidate.prepare()
        for _ in range(len(self.candidate.calls) if mode == "eager" else 1):
            self.run()
        device.synchronize()
        return self.candidate.check()


def _set_up(
    candidate: Candidate, device: Device, mode: str, cache: str, calls_per_graph: int | None
) -> _Lane:
    """Warm a candidate up and capture it."""
    for call in candidate.calls:
        call()
    device.synchronize()
    in_graph = candidate.calls
    if cache == "warm":
        in_graph *= calls_per_graph or WARM_CALLS
    run = device.capture(in_graph) if mode == "graph" else _rotation(candidate.calls)
    return _Lane(
        candidate,
        run,
        before=_before(candidate, run, device, cache),
        calls=len(in_graph) if mode == "graph" else 1,
        begin=device.event(),
        end=device.event(),
    )


def _before(candidate: Candidate, run: Call, device: Device, cache: str) -> Call:
    """What brings the caches into the asked state.

    It also keeps the device busy while the timed run is queued, so that no launch gap is counted.
    """
    if cache == "pressure_256MiB":
        return device.write_pressure
    others = (len(candidate.calls) - 1) * candidate.input_bytes
    if cache == "cold" and others < COLD_CACHES * device.cache_bytes:
        return lambda: device.read_other(COLD_CACHES * device.cache_bytes)
    return run


def one_line(error: Exception) -> str:
    """Name an error and what it says, as a reason of a record."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def measure(
    candidates: Mapping[str, Candidate],
    device: Device,
    *,
    mode: str = "graph",
    cache: str = "warm",
    calls_per_graph: int | None = None,
    effort: Effort | None = None,
) -> dict[str, Timing]:
    """Time candidates side by side.

    Parameters
    ----------
    candidates : mapping of str to Candidate
        Names and what they stand for.
    device : Device
        Where they run.
    mode : {"graph", "eager"}
    cache : {"warm", "pressure_256MiB", "cold"}
        See the module.
    calls_per_graph : int, optional
        Calls of a warm graph, default 20; other graphs can't choose.
    effort : Effort, optional
        How many samples are taken.

    Returns
    -------
    dict of str to Timing
        In the order of `candidates`. A candidate that refuses its input or can't be captured has
        status error, one whose replay did not leave the exact answer behind has status wrong, one
        that can't be run here has status skipped; none stops the others.

    Raises
    ------
    ValueError
        A word or number that is not one of those above; a candidate with too many or too few calls
        for the caches.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if cache not in CACHES:
        raise ValueError(f"cache must be one of {', '.join(CACHES)}, got {cache!r}")
    if calls_per_graph is not None and (mode, cache) != ("graph", "warm"):
        raise ValueError(
            f"calls_per_graph must be None for {mode} with {cache} caches, got {calls_per_graph}"
        )
    if calls_per_graph is not None and calls_per_graph < 1:
        raise ValueError(f"calls_per_graph must be at least 1, got {calls_per_graph}")
    _check_calls(candidates, cache)
    return Session(
        candidates, device, mode=mode, cache=cache, calls_per_graph=calls_per_graph
    ).time(effort or Effort())


class Session:
    """Candidates that were captured side by side, and may be timed on one input after another.

    Parameters
    ----------
    candidates, device, mode, cache, calls_per_graph
        As for `measure`, which checks them.
    """

    def __init__(
        self,
        candidates: Mapping[str, Candidate],
        device: Device,
        *,
        mode: str = "graph",
        cache: str = "warm",
        calls_per_graph: int | None = None,
    ) -> None:
        self.device, self.mode = device, mode
        self._names = list(candidates)
        self._untimed: dict[str, Timing] = {}
        self._lanes: dict[str, _Lane] = {}
        # All are captured before any input changes: a graph that kept something is found out.
        for name, candidate in candidates.items():
            if candidate.skipped is not None:
                self._untimed[name] = Timing("skipped", candidate.skipped)
                continue
            try:
                self._lanes[name] = _set_up(candidate, device, mode, cache, calls_per_graph)
            except (ValueError, RuntimeError) as error:
                self._untimed[name] = Timing("error", one_line(error))

    def time(self, effort: Effort) -> dict[str, Timing]:
        """Check every candidate on the input that it prepares, and time those that are exact.

        Parameters
        ----------
        effort : Effort
            How many samples are taken.

        Returns
        -------
        dict of str to Timing
            As `measure` returns them.
        """
        outcomes = dict(self._untimed)
        exact: dict[str, _Lane] = {}
        for name, lane in self._lanes.items():
            reason = lane.inexact_because(self.device, self.mode)
            if reason is None:
                lane.samples_us.clear()
                exact[name] = lane
            else:
                outcomes[name] = Timing("wrong", reason)
        clocks = _sample(list(exact.values()), self.device, self.mode, effort) if exact else {}
        for name, lane in exact.items():
            problem = _no_times(lane.samples_us)
            divisor = lane.calls if self.mode == "graph" else None
            outcomes[name] = (
                Timing("error", problem)
                if problem
                else Timing("ok", None, tuple(lane.samples_us), divisor, clocks)
            )
        return {name: outcomes[name] for name in self._names}

    def kernel_us(self, name: str, replays: int) -> float:
        """Time that the device spends in a candidate's kernels, by its profiler (us a call).

        Parameters
        ----------
        name : str
            A candidate that was captured.
        replays : int
            Runs that the profiler sees.

        Returns
        -------
        float
            Without what lies between kernels.
        """
        lane = self._lanes[name]
        lane.run()
        self.device.synchronize()
        return self.device.kernel_us(lane.run, replays) / (replays * lane.calls)


def _sample(
    lanes: list[_Lane], device: Device, mode: str, effort: Effort
) -> dict[str, tuple[float, float]]:
    """Fill the samples of all lanes; returns the clocks before and after."""
    order = random.Random(effort.seed)

    def one_round() -> None:
        for lane in order.sample(lanes, len(lanes)):
            lane.time_once(device, mode)
        device.synchronize()

    begin = time.monotonic()
    one_round()
    while time.monotonic() - begin < effort.warm_up_seconds:
        one_round()
    before = device.clocks()
    begin = time.monotonic()
    while not effort.done([lane.samples_us for lane in lanes], time.monotonic() - begin):
        one_round()
        for lane in lanes:
            lane.keep()
    after = device.clocks()
    return {name: (before[name], after[name]) for name in before if name in after}
