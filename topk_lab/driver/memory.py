"""Where do the buffers of a launch lie, on which stream does it go, and what captures it?

Whoever drives a device from Python asks here: `open_memory` gives the memory, streams and graphs
of torch's current GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from topk_lab.driver.device import launch, open_device

if TYPE_CHECKING:
    import torch

    from topk_lab.driver.device import Device
    from topk_lab.plans import Plan

__all__ = ["Memory", "open_memory"]


class Memory:
    """Memory, streams and graphs of torch's current GPU.

    Parameters
    ----------
    platform : {"hip", "cuda"}

    Attributes
    ----------
    place : torch.device
        Where tensors for the device are made.
    opened : Device
        What launches there.
    target : str
        As records name what ran: the platform, or the emulated target where something else than a
        device answers.

    Raises
    ------
    ValueError, DriverError
        As `topk_lab.driver.open_device`.
    """

    def __init__(self, platform: str) -> None:
        import torch

        self.place = torch.device("cuda", torch.cuda.current_device())
        self.opened: Device = open_device(platform, self.place.index)
        self.target = platform

    def launch(self, plan: Plan, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launch a plan on the current stream.

        Parameters
        ----------
        plan : Plan
        tensors : mapping of str to tensor
            Buffer name -> memory at `place`.

        Raises
        ------
        ValueError, DriverError, topk_lab.code_objects.CodeObjectError
            As `topk_lab.driver.launch`.
        """
        addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        launch(plan, addresses, self.opened, self._stream())

    def _stream(self) -> int:
        import torch

        return torch.cuda.current_stream(self.place).cuda_stream

    def synchronize(self) -> None:
        """Wait for everything that is queued."""
        import torch

        torch.cuda.synchronize(self.place)

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[None]:
        """A stream of its own is the current one, and has ended when this is left."""
        import torch

        stream = torch.cuda.Stream(self.place)
        stream.wait_stream(torch.cuda.current_stream(self.place))
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        """Record what a call queues as one graph; returns what replays it."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay


def open_memory(platform: str) -> Memory:
    """The memory of torch's current GPU.

    Parameters
    ----------
    platform : {"hip", "cuda"}

    Returns
    -------
    Memory

    Raises
    ------
    ValueError, DriverError
        As `Memory`.
    """
    return Memory(platform)
