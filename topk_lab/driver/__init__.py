"""How do plans become kernel launches on a HIP or CUDA device?

Through the device's own driver library, by ctypes alone: no compiler, no toolkit and no binding
has to be installed. `topk_lab.driver.runtime` finds the library and gives both kinds one face;
`topk_lab.driver.device` loads code objects and launches. Every return code is checked and named,
and an error leaves the process alive.
"""

from topk_lab.driver.device import Device, Prepared, launch, open_device, prepare
from topk_lab.driver.readiness import Readiness, status
from topk_lab.driver.runtime import HIP_LIBRARY_VARIABLE, DriverError, platform

__all__ = [
    "HIP_LIBRARY_VARIABLE",
    "Device",
    "DriverError",
    "Prepared",
    "Readiness",
    "launch",
    "open_device",
    "platform",
    "prepare",
    "status",
]
