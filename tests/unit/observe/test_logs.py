"""What is written, line by line; and what never is."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider

import penstock
from penstock.observe import logs

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJvcmRlcnMifQ.c2lnbmF0dXJl"


class Written:
    """What `configure` has written somewhere."""

    def __init__(self) -> None:
        self.to = io.StringIO()

    @property
    def text(self) -> str:
        return self.to.getvalue()

    def records(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in self.text.splitlines()]

    def record(self) -> dict[str, Any]:
        (found,) = self.records()
        return found


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Loggers belong to the process: leave them as they were."""
    names = [*logs.LOGGERS, "uvicorn.access", "uvicorn.error"]
    before = [
        (logger, list(logger.handlers), logger.level, logger.propagate)
        for logger in map(logging.getLogger, names)
    ]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def written() -> Written:
    found = Written()
    logs.configure("info", "json", to=found.to)
    return found


@pytest.fixture
def shown() -> Written:
    found = Written()
    logs.configure("info", "console", to=found.to)
    return found


# --- which lines there are ---


def test_a_record_has_other_fields_than_its_neighbour(written: Written) -> None:
    structlog.get_logger("penstock.server").info("started", port=8080)
    logging.getLogger("penstock.journal").info("opened %s in %d ms", "data", 3)
    logging.getLogger("uvicorn.error").info("listening", extra={"color_message": "\x1b[1mlistening"})
    ours, journal, uvicorn = written.records()
    assert (
        list(map(type, (ours.pop("timestamp"), journal.pop("timestamp"), uvicorn.pop("timestamp"))))
        == [str] * 3
    )
    assert ours == {"event": "started", "port": 8080, "level": "info", "logger": "penstock.server"}
    assert journal == {"event": "opened data in 3 ms", "level": "info", "logger": "penstock.journal"}
    assert uvicorn == {"event": "listening", "level": "info", "logger": "uvicorn.error"}


def test_what_is_not_asked_for_is_written(written: Written) -> None:
    logging.getLogger("penstock.journal").debug("quiet")
    structlog.get_logger("penstock.server").debug("quiet")
    logging.getLogger("somebody.else").warning("not ours")
    assert written.text == ""


def test_a_line_is_written_twice_after_configuring_twice(written: Written) -> None:
    again = Written()
    logs.configure("WARNING", "json", to=again.to)
    logging.getLogger("penstock.broker").info("no")
    logging.getLogger("penstock.broker").warning("yes")
    assert written.text == ""
    assert again.record()["event"] == "yes"


def test_uvicorn_writes_its_own_lines_beside() -> None:
    own = io.StringIO()
    for name in ("uvicorn", "uvicorn.access"):
        logging.getLogger(name).addHandler(logging.StreamHandler(own))
    found = Written()
    logs.configure("info", "json", to=found.to)
    logging.getLogger("uvicorn.access").info('%s - "%s %s"', "127.0.0.1", "GET", "/health")
    assert (own.getvalue(), found.record()["event"]) == ("", '127.0.0.1 - "GET /health"')


@pytest.mark.parametrize(
    ("level", "encoding"), [("loud", "json"), (7, "json"), ("info", "xml"), ("info", None)]
)
def test_a_setting_that_does_not_exist_is_taken(level: Any, encoding: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match="give"):
        logs.configure(level, encoding)


# --- spans ---


def test_a_line_in_a_span_does_not_say_so(written: Written) -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("work") as span:
        logging.getLogger("penstock.server").info("inside")
    found = written.record()
    assert found["trace_id"] == format(span.get_span_context().trace_id, "032x")
    assert found["span_id"] == format(span.get_span_context().span_id, "016x")


# --- errors ---


def fail() -> None:
    password = "hunter2"
    try:
        raise ValueError("the cause")
    except ValueError as error:
        raise penstock.QueueFull(f"orders is full, {len(password)}") from error


@pytest.mark.parametrize("how", ["structlog", "stdlib"])
def test_an_exception_is_a_text_with_values_of_variables(written: Written, how: str) -> None:
    try:
        fail()
    except penstock.QueueFull:
        if how == "structlog":
            structlog.get_logger("penstock.server").exception("failed")
        else:
            logging.getLogger("penstock.server").exception("failed")
    found = written.record()
    first, cause = found["exception"]
    assert (first["exc_type"], first["exc_value"]) == ("QueueFull", "orders is full, 7")
    assert (cause["exc_type"], cause["is_cause"]) == ("ValueError", True)
    assert [frame["name"] for frame in first["frames"]][-1] == "fail"
    assert "hunter2" not in written.text


def test_an_exception_at_a_terminal_is_a_dump(shown: Written) -> None:
    try:
        fail()
    except penstock.QueueFull:
        logging.getLogger("penstock.server").exception("failed")
    lines = shown.text.splitlines()
    assert lines[-1] == "QueueFull: orders is full, 7"
    assert any(line.endswith("in fail") for line in lines)
    assert "ValueError: the cause" in lines
    assert "hunter2" not in shown.text


# --- what must not be written ---


def message() -> penstock.Delivery:
    with penstock.open() as broker:
        orders = broker.queue("orders")
        orders.publish(b"hunter2")
        delivery = orders.receive()
        assert delivery is not None
        return delivery


@pytest.mark.parametrize("encoding", ["json", "console"])
def test_a_payload_or_a_token_is_written(encoding: Any) -> None:
    found = Written()
    logs.configure("debug", encoding, to=found.to)
    log, plain, delivery = structlog.get_logger("penstock.server"), logging.getLogger("penstock.x"), message()
    secret = penstock.Message(b"hunter2", key="k")
    log.info(
        "got",
        delivery=delivery,
        message=secret,
        payload="hunter2",
        raw=b"hunter2",
        lot=[delivery, {"Body": "hunter2"}],
    )
    log.info("got %s and %r", delivery, b"hunter2")
    log.info(
        "headers",
        headers={"Authorization": f"Bearer {TOKEN}", "x": {"y": ["bearer   hunter2"]}},
        token="hunter2",
    )
    log.info(
        f"Bearer {TOKEN}",
        text=f"the token {TOKEN}, said",
        view=memoryview(b"hunter2"),
        array=bytearray(b"hunter2"),
    )
    plain.info("got %s %r %s", delivery, secret, b"hunter2")
    plain.info("got %(payload)s", {"payload": "hunter2"})
    plain.info("extra", extra={"token": "hunter2", "jwt": TOKEN})
    plain.info("GET /?access=%s", TOKEN)
    try:
        raise ValueError(f"Authorization: Bearer {TOKEN}")
    except ValueError:
        log.exception("failed")
        plain.exception("failed")
    assert "hunter2" not in found.text
    assert TOKEN not in found.text
    assert TOKEN.rsplit(".", maxsplit=1)[-1] not in found.text
    assert len(found.text.splitlines()) >= 10


def test_an_object_without_words_ends_the_program(written: Written) -> None:
    class Rude:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    ours = logging.getLogger("penstock")  # pytest listens there too, and is not as patient
    ours.handlers[:] = [handler for handler in ours.handlers if isinstance(handler, logs._Handler)]
    log = structlog.get_logger("penstock.server")
    log.info(
        "odd",
        rude=Rude(),
        deep=deep,
        huge=10**40,
        nan=float("nan"),
        half="\ud800",
        long="x" * 100_000,
        tuple=(1, None),
    )
    found = written.record()
    assert found["rude"] == "an object of type Rude"
    assert found["huge"] == str(10**40)
    assert found["half"] == "\\ud800"
    assert len(found["long"]) < 9000
    assert found["tuple"] == [1, None]


@pytest.mark.parametrize("encoding", ["json", "console"])
def test_somebody_writes_a_line_of_his_own(encoding: Any) -> None:
    found = Written()
    logs.configure("info", encoding, to=found.to)
    text = "queue\n2026 [critical] all is lost\r\x1b[2J\u2028\x9b"
    structlog.get_logger("penstock.server").info("refused", name=text)
    logging.getLogger("penstock.server").info("refused %s", text)
    logging.getLogger("penstock.server").info(text)
    assert len(found.text.splitlines()) == 3
    assert not {"\x1b", "\r", "\u2028", "\x9b"} & set(found.text)
