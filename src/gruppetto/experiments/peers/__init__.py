"""The same small training in several systems, as real processes: ours, torchft's streaming DiLoCo, hivemind.

:mod:`alone` is the loop by itself; :mod:`ours`, :mod:`with_torchft` and :mod:`with_hivemind` are the same loop with
what a system wants of it, each a script that is run by a Python which has the system. :mod:`course` is what they train,
:mod:`crew` their processes, :mod:`mishaps` what is done to them, :mod:`running` one race and :mod:`race` what calls for
it; :mod:`question` asks.

torchft and hivemind want their own versions of much, so they have an environment of their own below the cache::

    python -m venv .cache/experiments/peers
    .cache/experiments/peers/bin/pip install torch torchft==0.2.0 hivemind==1.1.12 msgspec numpy

Where it is not there, ours is run alone.

What is the same for all: model, first weights, windows, inner optimizer, its rate by the common step (by each worker's
own with hivemind), pace, mishaps. What is not, and has to be told with the figures:

* **The end.** Ours ends with its last round, which waits for nobody who is slow or away: fewer tokens then, and whoever
  comes back later does not come in. torchft ends with its last synchronisation, of which all are part. hivemind ends
  where each worker has made so many steps of its own: with one four times slower that lasts four times as long by our
  choice, not by its own, so its time there is not judged.
* **The model that is judged**: of ours the run's weights, of the others each worker's own as it is then, in the mean.
* **Bytes** as each ships: ours bf16 up and fp32 down, the others fp32 both ways (torchft's eight bits want a GPU).
* **Merging**: ours and torchft's have the same outer optimizer, ours after radial-directional averaging, torchft's
  after the mean; hivemind averages parameters and has none.
* **Lines** are lines as this project formats them: what has many arguments has many lines.
"""
