"""The server: what an embedded broker gives one process, for everybody on the network."""
