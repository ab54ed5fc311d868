"""The journal: one append-only, columnar, checksummed log. It knows bytes and files, nothing of queues.

Read the modules in this order; each opens with its theory of operation.

=============  =====================================================================================
`checksum`     crc32, the quickest there is (pure)
`columns`      how one column of values is laid out, as Arrow lays it out (pure)
`kinds`        the kinds of rows there are, and the header of a section (pure)
`plan`         sections of common shapes, laid out in one call (pure)
`rows`         rows to be written: checked, merged, encoded as a section (pure)
`section`      a section that was read (pure)
`frame`        a commit: sections between two checksums (pure)
`kernel`       a sync that the kernel does while others go on
`files`        the only place that touches the operating system
`directory`    the names in a journal's directory, and who owns it
`envelope`     a small checksummed file, replaced whole: summaries and snapshots
`mark`         what is synced, for readers outside the owner
`index`        where a log's offsets and times are, an entry per 16 KiB
`segment`      one file of frames: append, scan, seal
`summary`      what a sealed segment holds, so that it need not be scanned
`snapshot`     the state at a sequence number, two of them
`damage`       what was found broken, said the same way everywhere
`losses`       which messages damage cost: what is missing, dealt out (pure)
`state`        what the journal itself must remember when segments are gone
`labels`       the segments' headers, read together: which of them can be believed
`ending`       how a segment ends: rot, torn or void; one judge for opening and `verify`
`view`         the journal as a reader sees it, from inside the owner or from another process
`reading`      by log and offset, by time, or frame by frame
`recovery`     scan, then tell clean from torn from rotten, and mend
`meter`        how commits went, for whoever asks
`commit`       group commit: tickets, and the leader who commits for all
`holdings`     the segments that the owner holds: sealed, written, to be recycled
`hosting`      a loop that leads its own commits
`tail`         the end of the journal: writing, syncing, rotation
`journal`      the owner: it joins all of these
`cleaner`      drop and rewrite segments whose rows are dead
`spool`        batches that others leave for the owner to take in
`arrow`        sections as Arrow record batches (needs pyarrow)
=============  =====================================================================================
"""

from penstock.journal.cleaner import Cleaned, DeadRange, clean
from penstock.journal.journal import Journal
from penstock.journal.reading import Batch, JournalReader
from penstock.journal.rows import Rows, messages
from penstock.journal.tail import Durability
from penstock.model.damage import Damage, JournalStats, Report

__all__ = [
    "Batch", "Cleaned", "Damage", "DeadRange", "Durability", "Journal", "JournalReader", "Report", "Rows", "JournalStats", "clean",
    "messages",
]  # fmt: skip
