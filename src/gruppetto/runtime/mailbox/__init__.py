"""A run without a server: learners and the syncer exchange letters and bodies through a bucket of an object store.

Nobody listens; everybody needs outbound HTTPS to the store, and nothing else. The cores, the service, the desk and the
gate are those of every other run; what is here plays the part of :mod:`~gruppetto.runtime.http_server` and
:mod:`~gruppetto.runtime.http_client`. Below the prefix of an address lie

===============================================  ==================================================================
``lease``                                        who serves (:mod:`.tenure`); changed with ``If-Match`` alone
``TERM/fragment/P``                              the newest published value of a fragment (:mod:`.shelf`)
``TERM/box/BOX/up/N``, ``TERM/box/BOX/down/N``   letters (:mod:`.letters`), numbered, made with ``If-None-Match: *``
``TERM/box/BOX/body/N``                          contributions and first weights, told of in a letter
===============================================  ==================================================================

TERM rises with every change of who serves, so that whoever has served before writes where nobody looks; BOX is new for
every connection. Whoever has read a letter or body deletes it, and the syncer what is left of boxes and terms.
"""
