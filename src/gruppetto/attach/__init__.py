"""Your own PyTorch training loop as a learner of a decoupled run.

==========  ======================================================================
learner     the public context manager; read it first
view        its readable side: round, clock, metrics
setting     what it may be told, checked
hooks       where it looks into your loop
counting    tokens and cursor of a step, as your loop tells them
holdings    bases, snapshots, what has arrived: everything that has values
sharding    a model as flat fragments
snapshot    copies to host memory at each step boundary
apply       what happens to a parameter when its global value arrives
checkpoint  what a learner remembers of itself
checkpoints model, optimizer and learner on disk
inner_state optimizer state and buffers by name
giving      the same as bytes, for another learner
beginning   what a process begins from that joins a run under way
rewarm      a ramp of the learning rate after a fresh beginning
trackers    the numbers of a learner for TensorBoard, Weights & Biases, trackio
==========  ======================================================================
"""

from __future__ import annotations

from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.learner import Learner

__all__ = ["Checkpoints", "Learner"]
