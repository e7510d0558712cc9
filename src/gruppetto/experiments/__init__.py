"""Experiments: what the paper claims, asked again at a scale that two cores can afford, by one command each.

An :class:`~gruppetto.experiments.experiment.Experiment` is a question, arms that differ in one thing, and the orderings
that its answer should show. Its jobs are pure values (:class:`~gruppetto.experiments.ride.Ride`); what came of one is a
line of a file (:mod:`~gruppetto.experiments.store`), so that an interrupted experiment goes on where it stopped.
:mod:`~gruppetto.experiments.catalogue` names them all.
"""
