"""The embedded broker: the engine, the journal and waiting, behind one port; sync and asyncio shells over it.

=============  =====================================================================================
`port`         what every front and shell uses
`ticket`       an answer that comes later, for threads and for asyncio
`ledger`       where events are recorded: nowhere, or in a journal
`shelf`        what stored messages contain
`compose`      from what a caller gives to columns
`contents`     what stored messages contain, in other forms
`express`      plain messages one at a time, in memory, by the shortest way
`upkeep`       snapshots and cleaning while a broker is in use
`worker`       handlers for a queue's messages, in threads and in asyncio
`embedded`     the port over one engine in this process
`deliveries`   what a receive gives
`sync`         the shell for threads
`aio`          the shell for asyncio
`worker`       receive, handle and settle, in threads and in asyncio
`verdict`      what a handler's outcome means, and what a worker has in hand
`hands`        threads that call a worker's handler
=============  =====================================================================================
"""
