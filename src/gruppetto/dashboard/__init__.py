"""To see a run: a page that shows it while it goes on or afterwards, and its metrics for other tools.

=============  ======================================================================================
picture        a trace, folded into what there is to see: read it first
seen           what is held; work, course, notes: what each kind of line changes in it
series         numbers over time in bounded memory; stretches: states over time; lane: one learner
happenings     what happened, in words; headline: is it training, who is not, why, what to do; alarms
tail, tap      lines of a trace as they are written; book: all that is read, desk: on which thread
window         a stretch of a run, small enough for a page; export: the same as a table
pages          page, data and news over HTTP; door: who may look
annex          the page at a syncer; serving: alone, for a directory or for a syncer elsewhere
metrics        what Prometheus reads
static/        the page itself: plain HTML, CSS and ES modules
=============  ======================================================================================
"""
