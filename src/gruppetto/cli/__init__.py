"""How you ask: one thin file for each verb of ``gruppetto``.

Every verb module has ``main(arguments) -> int`` and is imported only when its verb is used. :mod:`~gruppetto.cli.flags`
reads the command line, :mod:`~gruppetto.cli.live` shows a run while it goes on.
"""
