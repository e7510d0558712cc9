"""The same small training in several systems, as real processes: ours, torchft's streaming DiLoCo, hivemind.

:mod:`alone` is the loop by itself; :mod:`ours`, :mod:`with_torchft` and :mod:`with_hivemind` are the same loop with
what a system wants of it, each a script that is run by a Python which has the system. :mod:`course` is what they train,
:mod:`crew` their processes, :mod:`mishaps` what is done to them, :mod:`running` one race and :mod:`race` what calls for
it; :mod:`question` asks.

torchft and hivemind want their own versions of much, so they have an environment of their own below the cache::

    python -m venv .cache/experiments/peers
    .cache/experiments/peers/bin/pip install torch torchft==0.2.0 hivemind==1.1.12 msgspec numpy

Where it is not there, ours is run alone.
"""
