"""How many values a body has, before it is decoded."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import wire
from penstock.broker.compose import publish_of
from penstock.broker.opening import in_memory
from penstock.clock import ManualClock
from penstock.errors import BatchTooLarge
from penstock.limits import BODY_VALUES_MAX
from penstock.message import Message
from penstock.server.http import body_values
from penstock.server.http.bodies import Reading
from penstock.server.http.body_values import BYTE_VALUES_MAX, require_values
from tests import asking

texts = st.text(st.sampled_from('a"\\,:[{é\n')) | st.text("x", min_size=20, max_size=300)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts
trees = st.recursive(
    scalars, lambda each: st.lists(each, min_size=1) | st.dictionaries(texts, each, min_size=1)
)


def values_of(tree: Any) -> int:
    if isinstance(tree, dict):
        return BYTE_VALUES_MAX + len(tree) + sum(map(values_of, tree.values()))
    return BYTE_VALUES_MAX + sum(map(values_of, tree)) if isinstance(tree, list) else 1


def require_exactly(body: bytes, count: int, *, packed: bool) -> None:
    require_values(body, count, packed=packed)
    with pytest.raises(BatchTooLarge, match=f"more than {count - 1} values"):
        require_values(body, count - 1, packed=packed)


@given(trees, st.integers(1, 9))
def test_values_are_counted_and_what_stands_in_texts_is_not(tree: Any, piece_bytes: int) -> None:
    require_exactly(msgspec.msgpack.encode(tree), values_of(tree), packed=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_values, "PIECE_BYTES", piece_bytes)
        body = msgspec.json.encode(tree)
        require_exactly(body, values_of(tree), packed=False)
        require_exactly(msgspec.json.format(body), values_of(tree), packed=False)


@pytest.mark.parametrize(
    "one",
    [
        *(b"x" * size for size in (0, 255, 256, 65_536)),
        *("x" * size for size in (31, 32, 256, 65_536)),
        *(msgspec.msgpack.Ext(5, b"x" * size) for size in (1, 2, 3, 4, 8, 16, 256, 65_536)),
        [0] * 15,
        [0] * 16,
        [0] * 65_536,
        {str(key): 0 for key in range(15)},
        {str(key): 0 for key in range(65_536)},
    ],
    ids=lambda one: f"{type(one).__name__}",
)
def test_msgpack_has_lengths_of_many_widths(one: Any) -> None:
    count = values_of(one)
    require_exactly(msgspec.msgpack.encode([one, one]), BYTE_VALUES_MAX + 2 * count, packed=True)


@pytest.mark.parametrize("body", [b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc7", b"\xc1" * 9])
def test_what_a_length_claims_is_not_believed(body: bytes) -> None:
    require_values(body, 9, packed=True)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", key="a", priority=1, dedup_id="a", ttl=9, delay=1),
        Message(b"", headers={"a": ""}, key="a"),
        Message(b"", key="a", priority=1, dedup_id="a", ttl=9, delay=1, headers={"a": ""}),
    ],
    ids=["fields", "header", "all"],
)
def test_a_batch_that_a_commit_takes_is_never_refused(message: Message) -> None:
    """What has too many values for a body is too large for the broker, too."""
    fields = {key: value for key, value in msgspec.to_builtins(message).items() if value is not None}
    each = values_of({"headers": {}, **fields})
    with closing(in_memory(ManualClock())) as port:
        log = asking.declare(port)
        with pytest.raises(BatchTooLarge):
            asking.begin(port, log, publish_of([message] * (BODY_VALUES_MAX // each)))


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_a_policy_of_a_million_fields_is_refused_before_it_is_decoded(encode: Any) -> None:
    kind = b"application/msgpack" if encode is msgspec.msgpack.encode else b"application/json"
    body = encode({"policy": {str(number): 0 for number in range(1_000_000)}})
    with pytest.raises(BatchTooLarge, match="262144 values"):
        Reading(wire.Declare)(body, kind)
    with pytest.raises(BatchTooLarge, match="262144 values"):
        Reading(wire.Declare)(body[:-1], kind)  # though it cannot be decoded
