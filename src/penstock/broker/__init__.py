"""The embedded broker: the engine, the journal and waiting, behind one port; sync and asyncio shells over it.

=============  =====================================================================================
`port`         what every front and shell uses
`ticket`       an answer that comes later, for threads and for asyncio
`ledger`       how events are written down in a journal, and read again
`shelf`        what stored messages contain
`compose`      from what a caller gives to columns
`contents`     what stored messages contain, in other forms
`monitor`      the lock, the time, recording, the timer and the end, on which commands stand
`lines`        those who wait for messages
`handing`      messages to consumers, at once or when they come
`express`      plain messages one at a time, by the shortest way
`upkeep`       snapshots and cleaning while a broker is in use
`embedded`     the port over one engine in this process
`opening`      a broker in memory, or over a directory
`calls`        what both shells do with a caller's arguments
`deliveries`   what a receive gives
`sync`         the shell for threads
`aio`          the shell for asyncio
`worker`       receive, handle and settle, in threads and in asyncio
`verdict`      what a handler's outcome means, and what a worker has in hand
`hands`        threads that call a worker's handler
=============  =====================================================================================
"""
