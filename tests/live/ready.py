"""Imported once by the server from which the processes of test_ranks are forked: what each would do first."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import gruppetto.attach.part
import gruppetto.train.sharded
import gruppetto.train.step  # noqa: F401
from gruppetto.attach.expected_state import rehearse
from gruppetto.numerics import warm
from gruppetto.numerics.codec import CASTS

torch.set_num_threads(1)
warm(CASTS)
rehearse(torch.optim.AdamW([torch.zeros(1)]))
