"""How far would a number move if its samples had been drawn anew?

Intervals are 95 % bootstrap intervals, the same for the same samples and generator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["INTERVAL", "drawn_medians", "fit_line", "geomean", "geomean_interval", "interval"]

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
    cells = [np.asarray(times, float) for times in samples]
    drawn = np.empty((draws, len(cells)))
    for position, ordered in enumerate(cells):
        places = np.argsort(ordered, kind="stable")
        ordered = ordered[places]
        # Few samples are ranked in a byte each, which sorts twice as fast as their values do.
        ranks = np.empty(len(ordered), np.min_scalar_type(len(ordered)))
        ranks[places] = np.arange(len(ordered))
        chosen = ranks[rng.integers(len(ordered), size=(draws, len(ordered)))]
        below, above = (len(ordered) - 1) // 2, len(ordered) // 2
        chosen.partition((below, above), axis=1)
        drawn[:, position] = (ordered[chosen[:, below]] + ordered[chosen[:, above]]) / 2
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


def geomean(ratios: Iterable[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.log(np.asarray(list(ratios), float)).mean()))


def geomean_interval(ratios: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The interval of the geometric mean of ratios, over their samples and over the cells.

    Parameters
    ----------
    ratios : (draws, cells) float64 ndarray
        The ratio of each cell, from medians of resampled times.
    rng : numpy.random.Generator
        Which cells count, and how often, is drawn from it.

    Returns
    -------
    low, high : float
    """
    chosen = rng.integers(ratios.shape[1], size=ratios.shape)
    return interval(np.exp(np.take_along_axis(np.log(ratios), chosen, axis=1).mean(axis=1)))


def fit_line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Intercept and slope of each line of points, by least squares.

    Parameters
    ----------
    x, y : (lines, points) float ndarray

    Returns
    -------
    intercept, slope : (lines,) float64 ndarray
        NaN where all x are equal.
    """
    x_mean, y_mean = x.mean(axis=1, keepdims=True), y.mean(axis=1, keepdims=True)
    spread = ((x - x_mean) ** 2).sum(axis=1)
    slope = ((x - x_mean) * (y - y_mean)).sum(axis=1) / np.where(spread > 0, spread, np.nan)
    return y_mean[:, 0] - slope * x_mean[:, 0], slope
