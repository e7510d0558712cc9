"""Where a run happens: :mod:`~gruppetto.launch.local` starts a syncer and learners on this machine.

Of its parts :mod:`~gruppetto.launch.syncers` keeps the syncer and its standby, :mod:`~gruppetto.launch.learners` the
learners, :mod:`~gruppetto.launch.revival` and :mod:`~gruppetto.launch.restart` say who is started again,
:mod:`~gruppetto.launch.judging` and :mod:`~gruppetto.launch.notes` look after the judge and what is noted,
:mod:`~gruppetto.launch.sight` is what there is to see, :mod:`~gruppetto.launch.stopping` how a run is told to stop, and
:mod:`~gruppetto.launch.failing` what is said when it came to nothing.

:mod:`~gruppetto.launch.reference` is what one of those learners does, :mod:`~gruppetto.launch.judge` how the global
model is evaluated meanwhile, :mod:`~gruppetto.launch.children` how processes are started and stopped,
:mod:`~gruppetto.launch.ask` how a running syncer is asked, and :mod:`~gruppetto.launch.unanswered` what is said when it
does not answer.
"""
