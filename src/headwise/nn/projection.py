"""Linear layers, as their owner wants them: the fastest way, or the module's own."""

from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from headwise.ops.projection import Projection, explain_linear, linear
from headwise.ops.projection.api import ACTIVATIONS

# Torch's own layer ends with the second, which differs in how it is quantised alone.
PLAIN_LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)
_FORWARD = nn.Linear.forward


def project(module: nn.Module, x: Tensor, activation: str = "none") -> Tensor:
    """Return ``activation(module(x))``, by ``headwise.ops.projection.linear`` for a plain layer.

    A layer that is not plain is called as it is: a subclass, an adapter or a quantised layer in its
    place, a parametrisation, a hook on it or on all modules.
    """
    if why_called(module) is None:
        assert isinstance(module, nn.Linear)
        return linear(x, module.weight, module.bias, activation)
    found: Tensor = ACTIVATIONS[activation](module(x))
    return found


def explain_projection(module: nn.Module, x: Tensor) -> Projection:
    """Say on what ``project`` would run, and what speaks against the faster ways."""
    called = why_called(module)
    if called is not None:
        return Projection("torch", False, 0, {"rows": [called], "onednn": [called]})
    assert isinstance(module, nn.Linear)
    return explain_linear(x, module.weight, module.bias)


def why_called(module: nn.Module) -> str | None:
    """Say why a module in the place of a linear layer must be called; ``None`` for a plain one."""
    if type(module) not in PLAIN_LINEAR:
        return f"the layer is a {type(module).__name__}, which computes in its own way"
    if "forward" in module.__dict__ or nn.Linear.forward is not _FORWARD:
        return "its forward was replaced"
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    everywhere = (
        torch_modules._global_forward_hooks,
        torch_modules._global_forward_pre_hooks,
        torch_modules._global_backward_hooks,
        torch_modules._global_backward_pre_hooks,
    )
    if any(own) or module._backward_pre_hooks or any(everywhere):
        return "hooks listen to it"
    return None
