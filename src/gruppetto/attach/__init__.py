"""Your own PyTorch training loop as a learner of a decoupled run.

============  ======================================================================
learner       the public context manager; read it first
view          its readable side: round, clock, metrics
setting       what it may be told, checked
hooks         where it looks into your loop
counting      tokens and cursor of a step, as your loop tells them
holdings      bases, snapshots, what has arrived: everything that has values
sharding      a model as flat fragments
snapshot      copies to host memory at each step boundary
apply         what happens to a parameter when its global value arrives
checkpoint    what a learner remembers of itself
checkpoints   model, optimizer and learner on disk
on_disk       the files of these
shards        the same, written by many ranks together
inner_state   optimizer state and buffers by name
giving        the same as bytes, for another learner
taking        another learner's, put in
beginning     what a process begins from that joins a run under way
rewarm        a ramp of the learning rate after a fresh beginning
optimizers    what may stand where an optimizer is expected: several, or wrapped ones
watching      parameters that begin or cease to be trained on the way
integrations  learners in other people's trainers
trackers      the numbers of a learner for TensorBoard, Weights & Biases, trackio
entering      waiting for the run's weights
run_ahead     how far it trains past the newest round it has seen
parting       the last things: work that is given, weights that are taken
hands         what the core decides, carried out
comings       how a learner comes into a run and leaves it
telling       what the loop says of a step
keeping       what a learner keeps of itself, and gives
============  ======================================================================

A learner of many ranks, beside these:

==========  ======================================================================
ranks       who they are, and what they say to each other
rendezvous  how they find each other, also when they are started again
together    how they find out that they belong together
conduct     what a boundary is, with ranks or without
lead        rank 0 at a boundary
follow      the other ranks
inbox       what has arrived at one rank and not yet at all
receipts    what the syncer has taken, as any of them has heard
data_share  whose data is which
portions    a state that is given rank by rank
channel     orders sent ahead, in the middle of a step
holding     what a rank holds of a parameter
blocks      the same for distributed tensors
==========  ======================================================================
"""

from __future__ import annotations

from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.learner import Learner

__all__ = ["Checkpoints", "Learner"]
