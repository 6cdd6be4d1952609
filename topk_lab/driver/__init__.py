"""How do plans become kernel launches on a HIP or CUDA device?

Through the device's own driver library, by ctypes alone: no compiler, no toolkit and no binding
has to be installed. `topk_lab.driver.runtime` finds the library and gives both kinds one face;
`topk_lab.driver.device` loads code objects and launches; `topk_lab.driver.memory` has torch's
memory, streams and graphs of the device. Every return code is checked and named, and an error
leaves the process alive.
"""

from topk_lab.driver.device import Device, Prepared, launch, open_device, prepare
from topk_lab.driver.memory import Memory, open_memory
from topk_lab.driver.readiness import Readiness, devices, status
from topk_lab.driver.runtime import HIP_LIBRARY_VARIABLE, DriverError, platform

__all__ = [
    "HIP_LIBRARY_VARIABLE",
    "Device",
    "DriverError",
    "Memory",
    "Prepared",
    "Readiness",
    "devices",
    "launch",
    "open_device",
    "open_memory",
    "platform",
    "prepare",
    "status",
]
