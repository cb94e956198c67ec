"""Where a token stands: turned into, added to, or counted against what it holds."""

from headwise.positions.alibi import Alibi
from headwise.positions.learned import Learned
from headwise.positions.relative_bias import RelativeBias
from headwise.positions.rotary import Rotary
from headwise.positions.sinusoidal import Sinusoidal

__all__ = ["Alibi", "Learned", "RelativeBias", "Rotary", "Sinusoidal"]
