"""Opaque bytes of fronts, by namespace and key: such as the exchanges and bindings of AMQP.

They are recorded in the unit that puts them, and are in every snapshot. The engine looks into none.
"""

from __future__ import annotations

from penstock.engine.change import Change
from penstock.engine.events import Noted
from penstock.errors import InvalidArgument
from penstock.limits import METADATA_BYTES_MAX, METADATA_KEY_BYTES_MAX, METADATA_KEYS_MAX

#: More than a row takes beside its namespace, key and value.
ROW_BYTES_MAX = 512


class Metadata:
    """What fronts have stored."""

    def __init__(self, stored: dict[str, dict[str, bytes]] | None = None) -> None:
        self.stored = stored or {}

    def of(self, namespace: str, prefix: str) -> dict[str, bytes]:
        """Return what is stored under keys that begin so."""
        found = self.stored.get(namespace, {})
        return {key: value for key, value in found.items() if key.startswith(prefix)}

    def bytes_of(self, namespace: str, key: str, value: bytes | None) -> int:
        """Check what is about to be put; return more than it takes in a journal."""
        if not key or len(key.encode()) > METADATA_KEY_BYTES_MAX:
            raise InvalidArgument(
                f"a key of metadata has 1 to {METADATA_KEY_BYTES_MAX} bytes, not {len(key.encode())}"
            )
        if value is not None and len(value) > METADATA_BYTES_MAX:
            raise InvalidArgument(
                f"the metadata {key!r} has {len(value)} bytes and the bound is {METADATA_BYTES_MAX}: split it"
            )
        known = self.stored.get(namespace, {})
        if value is not None and key not in known and len(known) >= METADATA_KEYS_MAX:
            raise InvalidArgument(
                f"the namespace {namespace!r} has {METADATA_KEYS_MAX} keys of metadata, and that is the bound: remove some"
            )
        return ROW_BYTES_MAX + 2 * len(key.encode()) + len(value or b"")

    def put(self, namespace: str, key: str, value: bytes | None, now_us: int, change: Change) -> None:
        """Store bytes under a key; None removes them."""
        event = Noted(namespace, key, value, now_us)
        self.take_in(event)
        change.events.append(event)

    def take_in(self, event: Noted) -> None:
        """Apply what was recorded, live or replayed."""
        if event.value is not None:
            self.stored.setdefault(event.namespace, {})[event.key] = event.value
            return
        known = self.stored.get(event.namespace, {})
        known.pop(event.key, None)
        if not known:
            self.stored.pop(event.namespace, None)
