"""Several hosts on one machine: network namespaces, and between them an internet made of packets.

A proxy (:mod:`gruppetto.chaos.real.proxy`) sees connections; here real TCP meets real distance: a packet is late, lost,
too large, translated, or of an address that has moved. Read :mod:`~gruppetto.chaos.hosts.way` (what one direction of a
link does to a packet), :mod:`~gruppetto.chaos.hosts.translation` (a site behind one public address),
:mod:`~gruppetto.chaos.hosts.internet` (who carries packets), :mod:`~gruppetto.chaos.hosts.hosts` (the machines) and
:mod:`~gruppetto.chaos.hosts.light` (learners that weigh little, one at each host).
"""
