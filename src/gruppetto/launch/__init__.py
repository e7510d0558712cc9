"""Where a run happens: :mod:`~gruppetto.launch.local` starts a syncer and learners on this machine.

:mod:`~gruppetto.launch.reference` is what one of those learners does, :mod:`~gruppetto.launch.judge` how the global
model is evaluated meanwhile, :mod:`~gruppetto.launch.children` how processes are started and stopped, and
:mod:`~gruppetto.launch.ask` how a running syncer is asked.
"""
