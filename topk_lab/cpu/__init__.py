"""How are CPU tensors selected from at about the speed of reading them?

`selection` holds the steps, compiled by Numba; `calls` spreads rows, or the columns of few long
ones, over threads (`topk_lab.threads`). What was compiled is kept from one process to the next
(`topk_lab.compiled`).
The answer is that of the specification, `topk_lab.reference.exact`, index by index.
"""

from topk_lab.cpu.calls import Rows, rows_of, select, select_into

__all__ = ["Rows", "rows_of", "select", "select_into"]
