"""How far would a number move if its samples had been drawn anew?

Intervals are 95 % bootstrap intervals, the same for the same samples and generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["drawn_medians", "geomean_interval", "interval"]

INTERVAL = (0.025, 0.975)


def drawn_medians(
    samples: Iterable[Sequence[float]], draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Medians of resampled times.

    Parameters
    ----------
    samples : iterable of sequence of float
        The times of each cell.
    draws : int
        How often each is resampled.
    rng : numpy.random.Generator

    Returns
    -------
    (draws, cells) float64 ndarray
    """
    cells = [np.asarray(times) for times in samples]
    drawn = np.empty((draws, len(cells)))
    for position, times in enumerate(cells):
        drawn[:, position] = np.median(rng.choice(times, (draws, len(times))), axis=1)
    return drawn


def interval(values: np.ndarray) -> tuple[float, float]:
    """The interval of drawn values, of the finite ones; NaN without any.

    Parameters
    ----------
    values : (draws,) float64 ndarray

    Returns
    -------
    low, high : float
    """
    kept = values[np.isfinite(values)]
    if not len(kept):
        return float("nan"), float("nan")
    low, high = np.quantile(kept, INTERVAL)
    return float(low), float(high)


def geomean_interval(drawn: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The interval of the geometric mean of ratios, over their samples and over the cells.

    Parameters
    ----------
    drawn : (draws, cells) float64 ndarray
        The ratio of each cell, from medians of resampled times.
    rng : numpy.random.Generator
        Which cells count, and how often, is drawn from it.

    Returns
    -------
    low, high : float
    """
    chosen = rng.integers(drawn.shape[1], size=drawn.shape)
    return interval(np.exp(np.take_along_axis(np.log(drawn), chosen, axis=1).mean(axis=1)))
