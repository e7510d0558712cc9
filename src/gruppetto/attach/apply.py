"""What a learner does with a global fragment Θ that has arrived (section 2): one function a mode.

All of them write the parameters in place, at a step boundary, and leave the inner optimizer's state as it is. Vectors
are flat float32, [numel of the fragment]; only the result is rounded to the dtype of a parameter. Afterwards
``arrived`` is what such parameters can hold of Θ: the base of the next outer gradient (:meth:`FlatModel.round`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gruppetto.attach.sharding import FlatModel
from gruppetto.runtime.leases import Lease

__all__ = ["blend", "carry", "overwrite"]

Float32 = NDArray[np.float32]


def overwrite(model: FlatModel, fragment: int, arrived: Lease) -> None:
    """θ ← Θ. What was learned while the fragment was in flight is discarded."""
    model.round(fragment, arrived.values)
    on_gpu = model.on_one_gpu
    model.write(fragment, arrived.values, non_blocking=on_gpu)
    if on_gpu:
        written = torch.cuda.Event()  # type: ignore[no-untyped-call]
        written.record(torch.cuda.current_stream(model.device))
        arrived.ready = written.synchronize


def blend(model: FlatModel, fragment: int, arrived: Lease, scratch: Float32, alpha: float) -> None:
    """θ ← α·θ + (1 − α)·Θ."""
    model.read(fragment, scratch)
    scratch *= np.float32(alpha)
    scratch += np.float32(1 - alpha) * arrived.values
    model.write(fragment, scratch)
    model.round(fragment, arrived.values)


def carry(model: FlatModel, fragment: int, arrived: Lease, scratch: Float32, offered: Float32) -> None:
    """θ ← Θ + (θ − θ_offered), where ``offered`` is the snapshot whose contribution is part of Θ."""
    model.read(fragment, scratch)
    scratch -= offered
    scratch += arrived.values
    model.write(fragment, scratch)
    model.round(fragment, arrived.values)
