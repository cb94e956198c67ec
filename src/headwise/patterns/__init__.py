"""Who may attend to whom: small frozen values over absolute positions."""

from headwise.patterns.base import Pattern
from headwise.patterns.blocks import BlockWindow, GlobalBlocks
from headwise.patterns.causal import Causal, Full
from headwise.patterns.chosen_tiles import Tiles
from headwise.patterns.combine import Both, Either, Not
from headwise.patterns.dense import Dense, KeyMask
from headwise.patterns.documents import Documents
from headwise.patterns.from_flex import from_block_mask, from_mask_mod
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.per_head import PerHead
from headwise.patterns.presets import bigbird, longformer, sliding_causal
from headwise.patterns.random_blocks import RandomBlocks
from headwise.patterns.segments import Lengths, Prefix
from headwise.patterns.strided import Fixed, Strided
from headwise.patterns.text import parse
from headwise.patterns.window import Window

__all__ = [
    "BlockWindow",
    "Both",
    "Causal",
    "Dense",
    "Documents",
    "Either",
    "Fixed",
    "Full",
    "GlobalBlocks",
    "GlobalTokens",
    "KeyMask",
    "Lengths",
    "Not",
    "Pattern",
    "PerHead",
    "Prefix",
    "RandomBlocks",
    "Strided",
    "Tiles",
    "Window",
    "bigbird",
    "from_block_mask",
    "from_mask_mod",
    "longformer",
    "parse",
    "sliding_causal",
]
