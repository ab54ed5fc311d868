"""The embedded broker: the engine, the journal and waiting, behind one port; sync and asyncio shells over it.

=============  =====================================================================================
`port`         the seam: ten calls that every front and API object uses; its data is in `penstock.model`
`ticket`       an answer that comes later, for threads and for asyncio
`ledger`       how events are written down in a journal, and read again
`shelf`        what stored messages contain
`compose`      from messages to columns, and from those to what is stored
`contents`     what stored messages contain, in other forms
`monitor`      the lock, the time, recording, the timer and the end, on which commands stand
`lines`        those who wait for messages
`handing`      messages to consumers, at once or when they come
`express`      plain messages one at a time, by the shortest way
`upkeep`       snapshots and cleaning while a broker is in use
`embedded`     the port over one engine in this process; `transaction` does several commands as one unit
`opening`      a broker in memory, or over a directory
`calls`        from a caller's arguments to commands
`deliveries`   what a receive gives
`aio`          the objects of the API, with `await`; `sync` is made from it by `tools/twin.py`
`pauses`       what those wait for beside tickets: threads here, asyncio in `pauses_aio`
`aio_opening`  open a broker from asyncio
`worker`       receive, handle and settle, in threads and in asyncio
`verdict`      what a handler's outcome means, and what a worker has in hand
`hands`        threads that call a worker's handler
=============  =====================================================================================
"""
