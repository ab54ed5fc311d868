"""Watching a broker: metrics for Prometheus, structured logs, spans of OpenTelemetry.

Each module needs the package of its trade, which `penstock[server]` brings; a broker that nobody watches needs none of them.
"""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import MissingExtra

_missing = [name for name in ("prometheus_client", "structlog", "opentelemetry") if find_spec(name) is None]
if _missing:
    raise MissingExtra(
        f'watching a broker needs {", ".join(_missing)}; install with: pip install "penstock[server]"'
    )
