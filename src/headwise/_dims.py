"""The only place where tensor dimensions are spelled."""

from typing import TypeAlias

from jaxtyping import Bool, Float, Int
from torch import Tensor

Query: TypeAlias = Float[Tensor, "*batch q_heads q_len head_dim"]
Key: TypeAlias = Float[Tensor, "*batch kv_heads kv_len head_dim"]
Value: TypeAlias = Float[Tensor, "*batch kv_heads kv_len value_dim"]
Output: TypeAlias = Float[Tensor, "*batch q_heads q_len value_dim"]
Weights: TypeAlias = Float[Tensor, "*batch heads rows kv_len"]
Sinks: TypeAlias = Float[Tensor, " q_heads"]

Positions: TypeAlias = Int[Tensor, "..."]
Allowed: TypeAlias = Bool[Tensor, "..."]

Hidden: TypeAlias = Float[Tensor, "*batch q_len d_model"]
Memory: TypeAlias = Float[Tensor, "*batch kv_len kv_width"]
MemoryValue: TypeAlias = Float[Tensor, "*batch kv_len value_width"]
Split: TypeAlias = Float[Tensor, "*batch heads length dim"]
