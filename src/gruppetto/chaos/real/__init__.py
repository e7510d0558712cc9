"""Chaos on real processes: a real training on this machine, under a plan of what goes wrong in it, with a verdict.

Read :mod:`~gruppetto.chaos.real.plan` and :mod:`~gruppetto.chaos.real.kinds` (what can go wrong),
:mod:`~gruppetto.chaos.real.conductor` and :mod:`~gruppetto.chaos.real.faults` (who does it),
:mod:`~gruppetto.chaos.real.rider` (a process that can be made worse from outside),
:mod:`~gruppetto.chaos.real.proxy` and :mod:`~gruppetto.chaos.real.link` (a connection that can),
:mod:`~gruppetto.chaos.real.evidence` (four witnesses), :mod:`~gruppetto.chaos.real.invariants`,
:mod:`~gruppetto.chaos.real.costs` and :mod:`~gruppetto.chaos.real.figure`.

Its sisters in :mod:`gruppetto.chaos` try millions of events in virtual time; here a few minutes are real.
"""
