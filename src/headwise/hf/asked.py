"""What transformers asks of a mask function, apart from the rule itself."""

from dataclasses import dataclass, field

import torch


@dataclass
class Asked:
    """Sizes and positions of the mask asked for, and the functions that had to be spelled out."""

    batch: int
    q_len: int
    kv_len: int
    q_offset: int
    kv_offset: int
    use_vmap: bool
    device: torch.device
    unknown: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The position after the last one that the mask speaks of."""
        return max(self.q_offset + self.q_len, self.kv_offset + self.kv_len)
