"""What is computed: fragments, merging, outer steps and encodings, in numpy and numba, without torch.

===============  ====================================================================================
layout           which tensors a model has, and a hash of it
fragments        how they are cut into fragments
deal             how fragments are dealt out to the shards of a syncer
merge            how outer gradients become one: the definitions, and which tensor takes which
direction        where a contribution points, against the momentum
outer            what is done with the merged gradient: the definitions, presets, the automatic choice
codec            how values become bytes
downlink         how published values travel: whole, or as steps from the one before
inspection       norms and the finite check, chunk by chunk, before anything is folded
accumulate       the merge as it runs: fold by fold, then one fused outer step
kernels          the compiled passes under codec, inspection and accumulate
reading          ... how words are turned into values there, squares: how they are measured, writing: how they are made
compiling        ... and how all that is compiled
words            what a word of a payload means, one element or a block of them
oracle           textbook synchronous DiLoCo, which the tests measure the rest against
===============  ====================================================================================

Read merge and outer first; accumulate is the same in streaming form.
"""

from __future__ import annotations

from gruppetto.numerics.accumulate import Accumulator, FoldStats, StepStats
from gruppetto.numerics.codec import CODECS, Codec, encode_difference, encode_with_rest
from gruppetto.numerics.downlink import DOWNLINKS, Downlink
from gruppetto.numerics.fragments import FRAGMENTERS, Fragmentation, FragmentSpec, Piece, fragment
from gruppetto.numerics.inspection import ChunkInspector, Inspection, inspect
from gruppetto.numerics.kernels import warm
from gruppetto.numerics.layout import Layout, TensorSpec, first_difference
from gruppetto.numerics.merge import MERGE_RULES, mean, rda, rule_for
from gruppetto.numerics.oracle import synchronous_diloco
from gruppetto.numerics.outer import OUTER_OPTIMIZERS, OUTER_PRESETS, OuterSetting, OuterState, choose_outer

__all__ = [
    "CODECS",
    "DOWNLINKS",
    "FRAGMENTERS",
    "MERGE_RULES",
    "OUTER_OPTIMIZERS",
    "OUTER_PRESETS",
    "Accumulator",
    "ChunkInspector",
    "Codec",
    "Downlink",
    "FoldStats",
    "FragmentSpec",
    "Fragmentation",
    "Inspection",
    "Layout",
    "OuterSetting",
    "OuterState",
    "Piece",
    "StepStats",
    "TensorSpec",
    "choose_outer",
    "encode_difference",
    "encode_with_rest",
    "first_difference",
    "fragment",
    "inspect",
    "mean",
    "rda",
    "rule_for",
    "synchronous_diloco",
    "warm",
]
