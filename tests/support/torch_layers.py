"""Drawn settings and calls of torch's own layer, and what a layer makes of them."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from headwise.nn.torch_attention import TorchMultiheadAttention

NUMBERS = 100
ALIKE = ("self", "query and key", "key and value", "none")


@dataclass(frozen=True)
class Variant:
    """A layer of torch's and one call of it; ``batch`` 0 = inputs without a batch dimension."""

    heads: int
    head_dim: int
    kdim: int | None
    vdim: int | None
    bias: bool
    add_bias_kv: bool
    add_zero_attn: bool
    batch_first: bool
    batch: int
    q_len: int
    kv_len: int
    alike: str
    padding: str
    pairs: str
    per_head: bool
    shut: bool
    dtype: torch.dtype
    dropout: float
    seed: int

    @property
    def blind(self) -> bool:
        """Whether the first query sees nothing at all."""
        return self.shut and self.pairs != "none" and not (self.add_bias_kv or self.add_zero_attn)

    @property
    def width(self) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim

    def layer(self) -> nn.MultiheadAttention:
        """Return torch's layer with normal weights."""
        torch.manual_seed(self.seed)
        made = nn.MultiheadAttention(
            self.width,
            self.heads,
            bias=self.bias,
            add_bias_kv=self.add_bias_kv,
            add_zero_attn=self.add_zero_attn,
            kdim=self.kdim,
            vdim=self.vdim,
            batch_first=self.batch_first,
            dropout=self.dropout,
        )
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
        return made.to(self.dtype)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, batch first; some may be one tensor."""
        source = torch.Generator().manual_seed(self.seed + 1)
        width = self.width
        lead = (self.batch,) if self.batch else ()

        def draw(length: int, last: int) -> Tensor:
            return torch.randn(*lead, length, last, generator=source).requires_grad_()

        query = draw(self.q_len, width)
        key = (
            query if self.alike[:5] in ("self", "query") else draw(self.kv_len, self.kdim or width)
        )
        value = key if self.alike in ("self", "key and value") else None
        return query, key, draw(self.kv_len, self.vdim or width) if value is None else value

    def masks(self, dtype: torch.dtype, *, opened: bool = False) -> dict[str, Tensor]:
        """Return the masks of the call.

        The first key is never closed, unless the first query sees no key at all; ``opened`` lets a
        blind one see every key.
        """
        source = torch.Generator().manual_seed(self.seed + 2)
        found = {}
        keys, copies = (self.kv_len,), max(self.batch, 1) * self.heads
        pairs = (self.q_len, self.kv_len)
        for name, kind, shape in (
            ("key_padding_mask", self.padding, (self.batch, *keys) if self.batch else keys),
            ("attn_mask", self.pairs, (copies, *pairs) if self.per_head else pairs),
        ):
            drawn = torch.randn(shape, generator=source)
            closed = drawn > 0.5
            closed[..., 0] = False
            if self.shut and name == "attn_mask":
                closed[..., 0, :] = not (self.blind and opened)
            if kind == "bool":
                found[name] = closed
            elif kind == "numbers":
                found[name] = drawn.to(dtype).masked_fill(closed, float("-inf"))
            elif kind == "-inf":
                found[name] = torch.zeros(shape, dtype=dtype).masked_fill(closed, float("-inf"))
        return found


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    """Draw a layer and a call, with enough numbers in its tensors to judge them by."""
    flag, size = st.booleans(), st.integers(1, 11)
    alike = draw(st.sampled_from(ALIKE))
    heads, head_dim = draw(st.integers(1, 4)), draw(st.integers(3, 8))
    kdim = None if alike in ("self", "query and key") else draw(st.none() | size)
    vdim = kdim if alike in ("self", "key and value") else draw(st.none() | size)
    q_len = draw(size)
    kv_len = q_len if alike in ("self", "query and key") else draw(size)
    batch, narrowest = (
        draw(st.integers(0, 3)),
        min(heads * head_dim, kdim or NUMBERS, vdim or NUMBERS),
    )
    if batch:
        batch = max(batch, -(-NUMBERS // (narrowest * min(q_len, kv_len))))
    else:
        q_len, kv_len = (n + NUMBERS // narrowest for n in (q_len, kv_len))
    kinds = st.sampled_from(["none", "bool", "numbers", "-inf"])
    return Variant(
        heads=heads,
        head_dim=head_dim,
        kdim=kdim,
        vdim=vdim,
        bias=draw(flag),
        add_bias_kv=draw(flag),
        add_zero_attn=draw(flag),
        batch_first=draw(flag),
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        alike=alike,
        padding=draw(kinds),
        pairs=draw(kinds),
        per_head=draw(flag),
        shut=draw(flag),
        dtype=draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16])),
        dropout=draw(st.sampled_from([0.0, 0.0, 0.4])),
        seed=draw(st.integers(0, 1000)),
    )


def swapped(model: nn.Module) -> nn.Module:
    """Put our layer in the place of every one of torch's, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                setattr(module, name, TorchMultiheadAttention.from_torch(child))
    return model
