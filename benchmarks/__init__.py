"""Benchmarks: one file per question asked of Penstock, its baseline measured in the same run.

=============  =====================================================================================
`answer`       what a question came to: ours, the baseline, the ratio, the target
`rounds`       the way of measuring: ours and the baseline take turns
`child`        work in a process of its own, where memory can be looked at and a crash is free
`session`      the command line, a place on the disk, and what becomes of the answers
`table`        answers as a table in the terminal
`picture`      answers as a PNG
`journal`      the questions asked of the journal (`make bench BENCH=journal`)
`queues`       the questions asked of the queues (`make bench BENCH=queues`)
`logs`         the questions asked of topics, readers and transactions (`make bench BENCH=logs`)
`peers`        what the queues are measured beside
`streams`      what fan-out is measured beside
=============  =====================================================================================

Compare ratios, not absolute numbers: the machine is never quiet, so a figure from one run says little beside one
from another.
"""
