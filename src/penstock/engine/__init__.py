"""Queue semantics: what is ready, leased, retried, dead or expired. Knows nothing of bytes, files, threads, clocks or sockets.

=============  =====================================================================================
`events`       what happened, as it is recorded and replayed
`lane`         the ready messages of one priority, and of all
`lease`        what is handed out, until when
`keys`         messages of one key, one at a time
`timeline`     what waits for a moment
`tally`        how often a message was attempted
`dedup`        which dedup ids were seen
`chance`       jitter, from a seed
`letter`       what a dead letter says of itself
`filter`       expressions over a message, with `filter_parser`, `filter_tree` and `like`
`group`        one cursor over a log: lanes, leases, retries, settled offsets
`log`          one queue or topic: its policy, its groups, what is delayed or expires
`engine`       all logs: commands in, events out
=============  =====================================================================================
"""
