"""Real time: the syncer as a service, and a learner's link to it. No torch.

The syncer, from the outside in::

    serving        the process: address, threads, timer, signals         setting     what it may be told
    http_server    the endpoints                                         mailbox     the same through a bucket
    service        what a transport calls                                health      what people see
    engine         one run: the core and all that its decisions set in motion
    driver         event → tape → core → tape → action                   clock       the only home of clocks
    switchboard    which learner is behind which connection              connection  what waits to be sent to it
    intake         bodies coming in                                      parameters  Θ, momentum, running merges
    store          the durable state                                     durable     files whole or not at all
    worker         where slow work is done                               model_stream, tensorfile, saved_model

    assembly       contributions that come in pieces
    surroundings   disk, clocks and losses, for alarms                   antechamber who waits, and who serves
    shared_memory  bodies that need no socket, at both ends              engine_notes what the trace is told besides
    orphans        a child whose parent has gone

Both sides share ``wire`` (frames), ``headers``, ``plausible`` (what may stand in a message) and ``cut`` (the fragments
of a run). The learner's side is ``client`` and what it imports; there ``recovering`` finds a state to begin from,
``joining`` takes it from a peer, and ``donor`` gives it to others, as ``donation`` says. ``transfers`` moves vectors;
``rank_client`` is the link of a rank that follows, and ``orders`` what it is told. Of many ranks each takes, and gives,
its part: ``spans`` says which bytes, ``companions`` is how rank 0 sees the others, ``portion_donor`` how these give.
"""
