"""What linear attention with one feature map does of a layer's calls; it keeps nothing."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.nn.linear_call import asks_for_causality, refuse_settings
from headwise.nn.linear_cost import Sizes, costs_of
from headwise.nn.mechanism import AttentionCall, ChosenForm, Cost, Step
from headwise.ops import LinearState, linear_attend, linear_attention_weights
from headwise.ops.linear import native
from headwise.ops.linear.api import fastest_form
from headwise.ops.linear.call import LinearCall
from headwise.ops.linear.features import as_feature_map
from headwise.ops.linear.state import work_dtype
from headwise.ops.softmax.selection import Selection

_NAME = "LinearAttention"


class LinearRule(NamedTuple):
    """The settings of ``LinearAttention``, and its answers; made anew for every question."""

    feature_map: Any
    decay: float | Tensor | None
    normalize: bool

    def step(self, call: AttentionCall, state: LinearState | None, backend: str = "auto") -> Step:
        """Return the output, and the state after the last key."""
        found = linear_attend(
            call.query,
            call.key,
            call.value,
            state=state,
            backend=backend,
            **self._keywords(call, state),
        )
        return Step(found.output, found.state)

    def first_state(self, call: AttentionCall) -> LinearState:
        """Return the state before the first token, zeros that take no memory."""
        # One token, for not every map takes none.
        found = as_feature_map(self.feature_map, _NAME).features(
            call.key.new_zeros(*call.key.shape[:-2], 1, call.key.shape[-1]),
            is_query=False,
            normalize=self.normalize,
        )
        heads, width = found.values.shape[:-2], found.values.shape[-1]
        zero = call.value.new_zeros((), dtype=work_dtype(call.value))
        return LinearState(
            zero.expand(*heads, width, call.value.shape[-1]),
            zero.expand(*heads, width),
            (zero if found.log_gain is None else zero - float("inf")).expand(heads),
        )

    def weights(
        self, call: AttentionCall, *, rows: Selection = None, heads: Selection = None
    ) -> Tensor:
        """Return the weights that this amounts to, (batch, heads, rows, kv_len)."""
        return linear_attention_weights(
            call.query, call.key, rows=rows, heads=heads, **self._keywords(call, None)
        )

    def costs(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> dict[str, Cost]:
        """Say what one sample takes in each form, and as ``whole`` without causality."""
        features, flops, itemsize = self._measured(head_dim)
        return costs_of(
            Sizes(q_len, kv_len, q_heads, kv_heads, head_dim, value_dim, features, flops, itemsize)
        )

    def form(self, call: AttentionCall) -> ChosenForm:
        """Say which form would run a call, and why a faster one would not."""
        causal = self._checked(call, carried=True)
        settled = LinearCall(
            call.query, call.key, call.value, None, None, causal, self.normalize, None
        )
        reasons = native.refusals(settled)
        if not reasons:
            return ChosenForm("native", "native" if causal else "whole", {})
        name = fastest_form(settled)
        return ChosenForm(name, name if causal else "whole", {"native": tuple(reasons)})

    def _checked(self, call: AttentionCall, *, carried: bool) -> bool:
        """Say whether later keys are hidden, or refuse what is asked."""
        refuse_settings(
            bias=call.bias is not None,
            softcap=call.softcap is not None,
            sinks=call.sinks is not None,
            dropout=call.dropout_p > 0.0,
        )
        causal = asks_for_causality(call, carried=carried)
        if self.decay is not None and not causal:
            raise ValueError(
                f"{_NAME}: decay is for layers that hide later tokens, and this call has no "
                "pattern\n  hint: make the layer with pattern=Causal(), or leave decay out"
            )
        return causal

    def _keywords(self, call: AttentionCall, state: LinearState | None) -> dict[str, Any]:
        return {
            "feature_map": self.feature_map,
            "causal": self._checked(call, carried=state is not None),
            "kv_mask": call.kv_mask,
            "decay": self.decay,
            "normalize": self.normalize,
        }

    def _measured(self, head_dim: int) -> tuple[int, int, int]:
        """Return the features of a token, the operations that make them, and bytes of a number.

        A copy of the map is asked: a token may change it, as the first one does a lazy module.
        """
        from torch.utils.flop_counter import FlopCounterMode

        asked, own = self.feature_map, None
        if isinstance(asked, nn.Module):
            asked = copy.deepcopy(asked)
            own = next((p for p in asked.parameters() if not nn.parameter.is_lazy(p)), None)
        dtype = torch.get_default_dtype() if own is None else own.dtype
        token = torch.zeros(
            1, 1, 1, head_dim, dtype=dtype, device=None if own is None else own.device
        )
        with torch.no_grad(), torch.random.fork_rng([]), FlopCounterMode(display=False) as counted:
            found = as_feature_map(asked, _NAME).features(
                token, is_query=False, normalize=self.normalize
            )
        return found.values.shape[-1], counted.get_total_flops(), dtype.itemsize
