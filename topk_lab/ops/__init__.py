"""How is a selection called from PyTorch?

`topk` and `topk_paged` are the calls for people; ``torch.ops.topk_lab.topk_out`` and
``topk_paged_out`` are the operators beneath them, registered when this package is first imported.
"""

from topk_lab.ops.calls import topk, topk_paged, workspace_size
from topk_lab.ops.operators import torch_select

__all__ = ["topk", "topk_paged", "torch_select", "workspace_size"]
