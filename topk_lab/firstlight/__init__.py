"""Does this package do on a device what it claims, and what does the device show?

``topk-lab firstlight``: ten minutes on an owner's device. It leaves a page to read and a record to
send back; the record is also the state that an interrupted run goes on from.

============== =======================================================================
module         question
============== =======================================================================
``checks``     what is claimed, and how is it tried?
``timing``     which times are taken, and in which order?
``counters``   does the device count what the emulator counted?
``state``      what has a run found so far?
``worker``     runs parts in a process that may be lost
``supervisor`` sees to it that the run ends
``page``       what does a person read?
============== =======================================================================
"""

from topk_lab.firstlight.checks import CHECKS, parts
from topk_lab.firstlight.page import repeat
from topk_lab.firstlight.report import Report
from topk_lab.firstlight.supervisor import Outcome, run

__all__ = ["CHECKS", "Outcome", "Report", "parts", "repeat", "run"]
