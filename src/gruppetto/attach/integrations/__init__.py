"""Learners in other people's trainers, one file for each. Importing this imports none of them.

============  =============================================================================
transformers  a callback of the Hugging Face Trainer, and of what is built on it (TRL)
accelerate    a learner around a prepared model and optimizer, in Accelerate's checkpoints
lightning     a callback of the Lightning Trainer
torchtitan    a section of torchtitan's configuration and a trainer that rides along
riding        what they share: a learner that begins and ends with a training
usage         what a batch uses: tokens and examples
============  =============================================================================
"""

from __future__ import annotations
