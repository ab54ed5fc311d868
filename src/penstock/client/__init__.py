"""A broker over the network: `penstock.connect` and `penstock.aio.connect`.

The package that speaks HTTP is imported when somebody connects, and not before.
"""

from penstock.client.connecting import aio_connect, connect

__all__ = ["aio_connect", "connect"]
