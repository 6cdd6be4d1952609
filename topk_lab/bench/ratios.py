"""How do the times of one run compare with the published times of another?

Devices run faster or slower from one day to the next. So a published time is scaled by what both
runs measured on the same shape: by ``torch.topk``, the same code on both sides, and by the read
floor. The floor is each side's best read kernel, not the same one: at some shapes ours is faster
than the published floor, at others slower. Hence two ratios, and the one by ``torch.topk`` is the
one to go by. It is the only one where this package's own variant is held against the best peer.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import results
from topk_lab.models import REDUCE, is_read
from topk_lab.models.bootstrap import drawn_medians, geomean, geomean_interval
from topk_lab.models.pairs import side_by_side, timed_cells

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TORCH", "against_peers", "against_published", "geomeans", "published_shapes"]

PEERS = "peers_h200"
TORCH = "torch.topk"
PUBLISHED_FLOOR = "read_once_floor"
EMPTY_KERNELS = ("one_empty_kernel", "two_empty_kernels")
MIRRORS = ("vllm_generic", "vllm_k512")  # named as the kernels that they mirror

PUBLISHED_TIMES = {"warm": "warm_us", "pressure_256MiB": "cold_us"}
# The published masked rows end with their finite logits, where the workload begins with them: with
# these torch.topk takes several per cent less time.
PUBLISHED_WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "normal": ("normal", {}),
    "neg_inf_0.9_random": ("masked_random", {"fraction": 0.9}),
    "neg_inf_0.998_prefix": ("masked_prefix", {"finite": 524, "columns_reversed": True}),
}

SHAPE = ["num_rows", "num_cols", "k", "workload"]


def _published() -> pd.DataFrame:
    frame = results.load_published(PEERS)
    workloads = {name: workload for name, (workload, _) in PUBLISHED_WORKLOADS.items()}
    return frame.assign(
        num_rows=frame["rows"],
        num_cols=frame["cols"],
        workload=frame["distribution"].map(workloads),
    )


def published_shapes() -> list[tuple[int, int, int, str, dict[str, Any]]]:
    """The shapes of the peers' published times.

    Returns
    -------
    list of tuple
        num_rows, num_cols, k, and the workload with its arguments.
    """
    arguments = dict(PUBLISHED_WORKLOADS.values())
    shapes = _published()[SHAPE].drop_duplicates().itertuples(index=False)
    return [(*shape, arguments[shape.workload]) for shape in shapes]


def against_published(records: pd.DataFrame) -> pd.DataFrame:
    """Each mirror's time as a multiple of its upstream's published time, both on the same device.

    Parameters
    ----------
    records : pandas.DataFrame
        Of the experiment ``reference_shapes``, as `topk_lab.results.load` returns it.

    Returns
    -------
    pandas.DataFrame
        A row for each shape, cache and mirror: ``num_rows``, ``num_cols``, ``k``, ``workload``,
        ``cache``, ``variant``, ``time_us``, ``published_us``; ``torch_scale`` and ``floor_scale``,
        this run's time of ``torch.topk`` and of the best read kernel over the published one;
        ``ratio``, ``floor_ratio`` and ``unscaled``: time_us as a multiple of published_us under
        ``torch_scale``, ``floor_scale`` and 1; ``samples_us``. Of several runs, the last that holds
        all of these.

    Raises
    ------
    ValueError
        No cell of the published device has ``torch.topk``, a read kernel and a mirror in one run.

    Notes
    -----
    The published times are those of ``data/published/peers_h200.csv``.
    """
    import pandas as pd

    published = _published()
    kernels = published.set_index([*SHAPE, "kernel"])
    hardware = published["hardware"].iloc[0]
    timed = records[
        (records["experiment"] == "reference_shapes")
        & (records["status"] == "ok")
        & (records["mode"] == "graph")
        & records["cache"].isin(list(PUBLISHED_TIMES))
        & records["device"].map(hardware.startswith).astype(bool)
    ]
    rows: dict[tuple, dict[str, Any]] = {}
    for key, cell in timed.sort_values("recorded").groupby(
        ["recorded", "run", *SHAPE, "cache"], sort=True
    ):
        shape, cache = key[2:-1], key[-1]
        found = cell.drop_duplicates("variant", keep="last").set_index("variant")
        reads = found[found.index.map(is_read).astype(bool)]["median_us"]
        if TORCH not in found.index or reads.empty or (*shape, TORCH) not in kernels.index:
            continue
        column = PUBLISHED_TIMES[cache]
        torch_scale = found.at[TORCH, "median_us"] / kernels.at[(*shape, TORCH), column]
        floor_scale = reads.min() / kernels.at[(*shape, PUBLISHED_FLOOR), column]
        for variant in found.index.intersection(MIRRORS):
            time_us = found.at[variant, "median_us"]
            published_us = kernels.at[(*shape, variant), column]
            unscaled = time_us / published_us
            rows[(*shape, cache, variant)] = {
                **dict(zip(SHAPE, shape, strict=True)),
                "cache": cache,
                "variant": variant,
                "time_us": time_us,
                "published_us": published_us,
                "torch_scale": torch_scale,
                "floor_scale": floor_scale,
                "ratio": unscaled / torch_scale,
                "floor_ratio": unscaled / floor_scale,
                "unscaled": unscaled,
                "samples_us": found.at[variant, "samples_us"],
            }
    if not rows:
        raise ValueError(
            f"records must hold a run of reference_shapes on {hardware.split(',')[0]} with "
            f"{TORCH}, a read kernel and a mirror in one cell, got {len(timed)} times"
        )
    return (
        pd.DataFrame(rows.values()).sort_values(["variant", "cache", *SHAPE]).reset_index(drop=True)
    )


def _peers_by_torch(
    records: pd.DataFrame, published: pd.DataFrame, devices: Set[str]
) -> dict[tuple, dict[str, tuple[str, float]]]:
    """Device, shape and cache: peer -> kind, and time as a multiple of torch.topk's beside it.

    What is published counts for `devices`.
    """
    from topk_lab.bench.peers import PREFIX

    found: dict[tuple, dict[str, tuple[str, float]]] = {}
    for shape, cells in published.groupby(SHAPE):
        kernels = cells.set_index("kernel")
        others = kernels.drop(index=[TORCH, PUBLISHED_FLOOR, *EMPTY_KERNELS])
        for cache, column in PUBLISHED_TIMES.items():
            shares = others[column] / kernels.at[TORCH, column]
            for device in devices:
                found[(device, *shape, cache)] = {
                    name: (others.at[name, "kind"], share) for name, share in shares.items()
                }
    for experiment in set(records["experiment"]) & {"peer_shapes", "delegate_shapes"}:
        timed = timed_cells(records, experiment)
        for where, cells in side_by_side(timed, counts=lambda names: TORCH in names):
            key = tuple(where[name] for name in ("device", *SHAPE, "cache"))
            found.setdefault(key, {}).update(
                (name, (cell["kind"], cell["median_us"] / cells[TORCH]["median_us"]))
                for name, cell in cells.items()
                if name.startswith(PREFIX)
            )
    return found


def _published_launches(published: pd.DataFrame, devices: Set[str]) -> dict[tuple, float]:
    """Device, shape and cache: what a second empty kernel adds to the first (us)."""
    empty = published.pivot(index=SHAPE, columns="kernel", values=list(PUBLISHED_TIMES.values()))
    one, two = EMPTY_KERNELS
    return {
        (device, *shape, cache): empty.at[shape, (column, two)] - empty.at[shape, (column, one)]
        for device in devices
        for shape in empty.index
        for cache, column in PUBLISHED_TIMES.items()
    }


def against_peers(records: pd.DataFrame, variant: str = "delegate") -> pd.DataFrame:
    """Put a variant's time on each published shape beside the floor and the best peer.

    Parameters
    ----------
    records : pandas.DataFrame
        Of the experiment ``delegate_shapes``, as `topk_lab.results.load` returns it; where it holds
        ``peer_shapes`` of the same device too, peers that were installed there count beside the
        published ones.
    variant : str, default "delegate"

    Returns
    -------
    pandas.DataFrame
        A row for each device, shape and cache: ``num_rows``, ``num_cols``, ``k``, ``workload``,
        ``cache``, ``variant``, ``time_us``; ``floor``, the best read kernel, and ``floor_us``;
        ``reduce_us``, the variant's first launch alone (NaN where it has one launch);
        ``launch_us``, what a second empty kernel added in the published run; ``torch_us``;
        ``peer``, the best one, and its ``peer_kind``; ``peer_us``, its time over that of torch.topk
        beside it, times ``torch_us``; ``ratio``, time_us / peer_us, and ``speedup``, its inverse;
        ``samples_us``; ``kind``, ``device``. What is published of another device, or not at all, is
        missing. Of several runs, the last that holds the variant, torch.topk and a read kernel.

    Raises
    ------
    ValueError
        No such run.
    """
    import pandas as pd

    timed = timed_cells(records, "delegate_shapes")
    published = _published()
    devices = {one for one in set(timed["device"]) if published["hardware"].iloc[0].startswith(one)}
    peers = _peers_by_torch(records, published, devices)
    launches = _published_launches(published, devices)
    rows = []
    for where, cells in side_by_side(
        timed, counts=lambda names: {variant, TORCH} <= names and any(map(is_read, names))
    ):
        place = {name: where[name] for name in (*SHAPE, "cache")}
        place |= {name: int(where[name]) for name in ("num_rows", "num_cols", "k")}
        key = (where["device"], *place.values())
        floor = min(filter(is_read, cells), key=lambda name: cells[name]["median_us"])
        torch_us, own = cells[TORCH]["median_us"], cells[variant]
        form = (own.get("counters") or {}).get("launches", "two")
        two = REDUCE in cells and form == "two"
        relative = peers.get(key, {})
        peer = min(relative, key=lambda name: relative[name][1], default=None)
        peer_kind, share = relative.get(peer, (None, float("nan")))
        rows.append(
            {
                **place,
                "variant": variant,
                "time_us": own["median_us"],
                "floor": floor,
                "floor_us": cells[floor]["median_us"],
                "reduce_us": cells[REDUCE]["median_us"] if two else float("nan"),
                "launch_us": launches.get(key, float("nan")),
                "torch_us": torch_us,
                "peer": peer,
                "peer_kind": peer_kind,
                "peer_us": torch_us * share,
                "ratio": own["median_us"] / (torch_us * share),
                "speedup": torch_us * share / own["median_us"],
                "samples_us": own["samples_us"],
                "kind": own["kind"],
                "device": own["device"],
            }
        )
    if not rows:
        raise ValueError(
            f"records must hold {variant}, {TORCH} and a read kernel in one cell of "
            f"delegate_shapes, got none in {len(timed)} times"
        )
    return pd.DataFrame(rows).sort_values(["cache", *SHAPE], ignore_index=True)


def geomeans(
    ratios: pd.DataFrame,
    *,
    column: str = "ratio",
    limit: float = 1.10,
    draws: int = 2000,
    seed: int = 0,
) -> pd.DataFrame:
    """Summarize ratios over shapes, with what a mean alone would hide.

    Parameters
    ----------
    ratios : pandas.DataFrame
        As `against_published` returns it.
    column : str, default "ratio"
        Which ratio.
    limit : float, default 1.1
        Shapes above it are counted.
    draws : int, default 2000
        Of the bootstrap over shapes and over the samples of each.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        A row for each variant and cache: ``geomean`` and its 95% interval ``low``, ``high``;
        ``best`` and ``worst`` shape; ``shapes`` and how many of them are ``above_limit``.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    rows = []
    for (variant, cache), group in ratios.groupby(["variant", "cache"]):
        values = group[column].to_numpy()
        samples = group["samples_us"]
        medians = [np.median(mine) for mine in samples]
        low, high = geomean_interval(values * drawn_medians(samples, draws, rng) / medians, rng)
        rows.append(
            {
                "variant": variant,
                "cache": cache,
                "geomean": geomean(values),
                "low": low,
                "high": high,
                "best": values.min(),
                "worst": values.max(),
                "shapes": len(group),
                "above_limit": int((values > limit).sum()),
            }
        )
    return pd.DataFrame(rows)
