"""Options of the source: what they mean, and that what is wrong is said, with what is allowed."""

from __future__ import annotations

import pickle
import re

import pytest

from penstock.errors import InvalidArgument, PenstockError
from penstock.pipeline import options, schema
from penstock.pipeline.options import EARLIEST, LATEST, Options


def parse(**given: object) -> Options:
    return options.parse({"path": "data", **{name.lower(): str(value) for name, value in given.items()}})


def test_plain_options_are_all_messages_of_the_default_namespace() -> None:
    found = parse()
    assert found.table is schema.MESSAGES_TABLE
    assert "headers" not in found.columns
    assert found.wants("default", "orders")
    assert not found.wants("other", "orders")
    assert found.fail_on_data_loss


def test_names_are_given_as_a_list_or_as_a_pattern_of_the_whole_name() -> None:
    listed = parse(topic="orders, events.dlq")
    assert listed.wants("default", "events.dlq")
    assert not listed.wants("default", "events")
    pattern = parse(topicPattern="ord.*", namespace="*")
    assert pattern.wants("anybody", "orders")
    assert not pattern.wants("anybody", "my-orders")


def test_places_are_words_or_offsets_by_name() -> None:
    assert parse(startingOffsets=" Earliest").starting == EARLIEST
    assert parse(endingOffsets="latest").ending == LATEST
    assert parse(startingOffsets='{"orders": 12, "events": -2}').starting == {
        "orders": 12,
        "events": EARLIEST,
    }


def test_times_are_milliseconds_or_iso_8601() -> None:
    assert parse(startingTimestamp="1700000000123").starting_us == 1_700_000_000_123_000
    assert parse(startingTimestamp="2023-11-14T22:13:20.123Z").starting_us == 1_700_000_000_123_000
    assert parse(startingTimestamp="2023-11-14T23:13:20.123456+01:00").starting_us == 1_700_000_000_123_456


def test_columns_are_those_that_are_named_in_their_order() -> None:
    assert parse(columns="payload, topic").columns == ("payload", "topic")
    assert "headers" in parse(includeHeaders="true").columns
    assert parse(columns="headers").columns == ("headers",)


def test_options_travel_between_processes() -> None:
    for table in schema.TABLES:
        found = parse(table=table)
        assert pickle.loads(pickle.dumps(found)).table is found.table


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"topik": "x"},
            "has no option 'topik'; it has path, url, token, table, namespace, topic, topicPattern, startingOffsets",
        ),
        ({"url": "http://host"}, "path and url contradict each other"),
        ({"url": "http://host", "path": "", "namespace": "*"}, "one namespace is read at a time"),
        ({"url": "ftp://host", "path": ""}, "give a server's address"),
        ({"url": "host:8080", "path": ""}, "give a server's address"),
        ({"url": "http://host:99999", "path": ""}, "give a server's address"),
        ({"url": "http://me:secret@host", "path": ""}, "url has a user or a password in it"),
        ({"url": "http://host", "path": "", "token": "two words"}, "token has characters that no token has"),
        ({"token": "t"}, "token is for a server, and none is given"),
        ({"table": "letters"}, "give one of messages, settlements, deliveries"),
        ({"columns": "payload,body"}, "messages have the columns namespace, topic, offset"),
        ({"columns": "payload,payload"}, "each once"),
        ({"includeHeaders": "yes"}, "give true or false"),
        ({"includeHeaders": "true", "table": "settlements"}, "settlements have no headers"),
        ({"includeHeaders": "true", "columns": "payload"}, "columns does not name headers"),
        ({"topic": "a", "topicPattern": "b"}, "topic and topicPattern contradict each other"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "contradict each other"),
        ({"endingOffsets": "latest", "endingTimestamp": "1"}, "contradict each other"),
        ({"topic": "a b"}, "names are separated by commas"),
        ({"topic": ""}, "names are separated by commas"),
        ({"topicPattern": "("}, "is no regular expression"),
        ({"namespace": "a/b"}, "the namespace 'a/b'"),
        ({"startingOffsets": "first"}, "give earliest, latest, or offsets by name as JSON"),
        ({"startingOffsets": '{"orders": -3}'}, "give earliest, latest, or offsets by name as JSON"),
        ({"startingOffsets": '{"orders": "12"}'}, "give earliest, latest, or offsets by name as JSON"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"table": "settlements", "startingOffsets": '{"orders": 1}'}, "in the order in which they happened"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970, or ISO 8601"),
        ({"startingTimestamp": "2026-11-16T08:00:00"}, "has no time zone"),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "exchange them"),
        ({"maxOffsetsPerTrigger": "0"}, "a whole number above 0"),
        ({"minPartitions": "-1"}, "a whole number above 0"),
        ({"failOnDataLoss": ""}, "give true or false"),
        ({"path": ""}, "no directory is given"),
        ({"reader": "my reader"}, "the reader name 'my reader'"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], said: str) -> None:
    with pytest.raises(PenstockError, match=re.escape(said)):
        parse(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"maxOffsetsPerTrigger": "5"},
        {"reader": "r"},
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"a": -1}'},
    ],
)
def test_what_is_for_streams_is_refused_in_batches(given: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="stream"):
        parse(**given).for_batch()


@pytest.mark.parametrize(
    "given", [{"endingOffsets": "latest"}, {"endingTimestamp": "5"}, {"asOf": "3"}, {"pushFilters": "true"}]
)
def test_what_is_for_batches_is_refused_in_streams(given: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="is for batches"):
        parse(**given).for_stream()
