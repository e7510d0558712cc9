"""Your own data under the run's ledger: slots are leased, and their cursors survive whoever has them.

::

    data = gruppetto.data.slots(my_dataset, num_slots=16)
    with gruppetto.Learner(model, optimizer, syncer=...) as learner:
        for batch in learner.until_finished(data.of(learner, batch_size=8)):
            ...

=======  ==================================================================
slots    the data of whichever slot a learner has, from wherever it stands
sources  what can be put in: sequences, and streams with or without a state
windows  a file of token numbers as a sequence
=======  ==================================================================
"""

from __future__ import annotations

from gruppetto.data.slots import Slots, slots
from gruppetto.data.windows import TokenWindows

__all__ = ["Slots", "TokenWindows", "slots"]
