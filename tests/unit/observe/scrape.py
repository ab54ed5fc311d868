"""What a scrape says, read as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from penstock.observe.metrics import Metrics


class Scrape(NamedTuple):
    values: dict[tuple[str, frozenset[tuple[str, str]]], float]
    types: dict[str, str]

    def get(self, name: str, /, **labels: str) -> float | None:
        """The value of one series, or None if it is not there."""
        return self.values.get((name, frozenset(labels.items())))

    def of(self, name: str, /, queue: str = "orders", **labels: str) -> float | None:
        """The same for a queue of the default namespace."""
        return self.get(name, namespace="default", queue=queue, **labels)

    def names(self) -> set[str]:
        return {name for name, _ in self.values}

    def labelled(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in self.values if found == name]


def scrape(metrics: Metrics, namespaces: Collection[str] | None = None) -> Scrape:
    values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    types: dict[str, str] = {}
    for family in text_string_to_metric_families(metrics.render(namespaces).decode()):
        types[family.name] = family.type
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values, f"{key} stands there twice"
            values[key] = sample.value
    return Scrape(values, types)
