"""How is work spread over threads, without any of Numba's threading layers?

The functions that do the work hold no GIL, so ordinary threads run them side by side. Numba's own
threads (``prange``) would come with a layer: the one that is always there ends the process when two
callers meet in it, and none survives a fork everywhere. Here any number of callers share a pool,
each works itself and waits for nothing but its own parts, and a child of a fork gets a pool of its
own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from numba import config

__all__ = ["available_threads", "run_all"]

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    """In a child of a fork: the pool's threads are not there, and its lock may be held for ever."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            workers = max(1, config.NUMBA_NUM_THREADS - 1)
            _pool = ThreadPoolExecutor(workers, thread_name_prefix="topk_lab")
        return _pool


def available_threads(limit: int | None = None) -> int:
    """Threads that a call may take, its own among them.

    Parameters
    ----------
    limit : int, optional
        Of the caller, such as ``torch.get_num_threads()``.

    Returns
    -------
    int
        ``NUMBA_NUM_THREADS``, which is one a core unless it is set, or less.
    """
    most = config.NUMBA_NUM_THREADS
    return max(1, most if limit is None else min(most, limit))


def run_all(
    parts: Iterable[tuple[int, ...]], threads: int, start: Callable[[], Callable[..., None]]
) -> None:
    """Work through parts, on several threads.

    Parameters
    ----------
    parts : iterable of tuple
        Arguments of a turn each; they share nothing that they write. Taken in order.
    threads : int
        The caller's among them.
    start : callable
        Called once on each thread that takes part; what it returns is called with each part.

    Raises
    ------
    Exception
        What a turn raised.
    """
    if threads <= 1:
        turn = start()
        for part in parts:
            turn(*part)
        return
    left = deque(parts)

    def work() -> None:
        turn = None
        while True:
            try:
                part = left.popleft()
            except IndexError:
                return
            if turn is None:
                turn = start()
            turn(*part)

    helpers = [_shared_pool().submit(work) for _ in range(min(threads, len(left)) - 1)]
    try:
        work()
    finally:
        left.clear()
        # What others keep waiting finds nothing left to do.
        begun = [helper for helper in helpers if not helper.cancel()]
        for helper in begun:
            helper.exception()
    for helper in begun:
        helper.result()
