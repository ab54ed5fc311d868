"""Logs as records: one line of JSON each, or for people at a terminal.

Theory of operation
-------------------
`configure` gives structlog and the standard library's loggers of `penstock`, `uvicorn`, and what serves with them, one handler and one chain of processors, so that
every line has the same fields: `timestamp` (UTC), `level`, `logger`, `event`, and the span it was written in, if any
(`trace_id`, `span_id`). What the server itself says of a request has its `request_id`. An exception is a list of records with its frames. Loggers of other packages are left as they are.

What a message contains, and what proves who somebody is, is in no line: values of such names, bytes, messages and deliveries are left out wherever
they stand, and what looks like a token is cut out of every text. The values of variables are never shown with an exception. What is left cannot break out of
its line.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, TextIO

import msgspec
import structlog
from opentelemetry import trace
from structlog.processors import ExceptionRenderer, JSONRenderer, StackInfoRenderer, TimeStamper
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor, WrappedLogger

from penstock import argument
from penstock.broker.deliveries import Leased
from penstock.errors import InvalidArgument
from penstock.message import Message

Encoding = Literal["json", "console"]

#: Whose records go through here. `asyncio` says what went wrong in tasks that nobody waited for.
LOGGERS: Final = ("penstock", "uvicorn", "asyncio")

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

#: Fields that are never shown, whatever is in them.
SECRET: Final = frozenset(
    "authorization body cookie jwt key_pem password payload payloads private_key secret set-cookie set_cookie token tokens".split()
)
LEFT_OUT: Final = "[left out]"

#: Bearer tokens and JSON Web Tokens, in whatever text they stand.
_TOKEN: Final = re.compile(r"(?i:bearer)\s+[\w.~+/=-]+|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?")

#: What would begin a new line, or move the cursor of somebody's terminal.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

#: How deep a record is looked into, and how much of one text is shown.
DEPTH_MAX: Final = 8
TEXT_CHARS_MAX: Final = 8192


def configure(level: str, encoding: Encoding, *, to: TextIO | None = None) -> None:
    """Have records of at least that level written, to standard error unless told otherwise. May be called again."""
    number = LEVELS.get(level.lower()) if type(level) is str else None
    if number is None:
        raise InvalidArgument(f"the log level is {argument.quoted(level)}; give one of {', '.join(LEVELS)}")
    if encoding not in ("json", "console"):
        raise InvalidArgument(f"the log encoding is {argument.quoted(encoding)}; give json or console")
    handler = _Handler(to or sys.stderr)
    handler.setFormatter(_formatter(encoding))
    handler.addFilter(_guard_arguments)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for old in list(logger.handlers):
            if isinstance(old, _Handler) or name == "uvicorn":  # uvicorn's own, if it was there first
                logger.removeHandler(old)
        logger.addHandler(handler)
        logger.setLevel(number)
        logger.propagate = False
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_common(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


# --- how a record becomes a line ---


class _Handler(logging.StreamHandler[TextIO]):
    """The one that `configure` made: known when it is called again."""


def _common() -> list[Processor]:
    """What every record goes through, whoever made it."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        _guard_positional,
        structlog.stdlib.PositionalArgumentsFormatter(),
        TimeStamper(fmt="iso", utc=True),
        _add_span,
        StackInfoRenderer(),
        ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
    ]


def _formatter(encoding: Encoding) -> logging.Formatter:
    last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, _guard]
    if encoding == "json":
        last.append(JSONRenderer(serializer=_as_json))
    else:
        last += [_exception_for_people, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_common(), structlog.stdlib.ExtraAdder(), _drop_color], processors=last
    )


def _as_json(record: Any, **_options: Any) -> str:
    return msgspec.json.encode(record).decode()


def _drop_color(_logger: WrappedLogger, _name: str, record: EventDict) -> EventDict:
    """uvicorn says everything twice, once in colours."""
    record.pop("color_message", None)
    return record


def _add_span(_logger: WrappedLogger, _name: str, record: EventDict) -> EventDict:
    said = trace.get_current_span().get_span_context()
    if said.is_valid:
        record["trace_id"] = trace.format_trace_id(said.trace_id)
        record["span_id"] = trace.format_span_id(said.span_id)
    return record


def _exception_for_people(_logger: WrappedLogger, _name: str, record: EventDict) -> EventDict:
    """A terminal gets an exception as the lines that everybody knows, of the same records."""
    found = record.pop("exception", None)
    if isinstance(found, list):
        record["exception"] = "\n".join(_lines(found))
    return record


def _lines(found: list[dict[str, Any]]) -> Iterator[str]:
    for one in reversed(found):
        for frame in one.get("frames", ()):
            yield f'  File "{frame["filename"]}", line {frame["lineno"]}, in {frame["name"]}'
        yield f"{one['exc_type']}: {one['exc_value']}"


# --- what is left out ---


def _guard(_logger: WrappedLogger, _name: str, record: EventDict) -> EventDict:
    return {_text(name): _shown(name, value, 0) for name, value in record.items()}


def _guard_arguments(record: logging.LogRecord) -> bool:
    """Before the standard library makes a text of a record: there, a delivery would be told from other arguments no more."""
    if isinstance(record.args, tuple):
        record.args = tuple(_harmless(one) for one in record.args)
    elif record.args:
        record.args = {name: _shown(name, value, 0) for name, value in record.args.items()}
    return True


def _guard_positional(_logger: WrappedLogger, _name: str, record: EventDict) -> EventDict:
    """The same for structlog's own."""
    if "positional_args" in record:
        record["positional_args"] = tuple(_harmless(one) for one in record["positional_args"])
    return record


def _harmless(value: Any) -> Any:
    """An argument of a format, of which only what must not be shown is another."""
    return _of_content(value) or value


def _of_content(value: Any) -> str | None:
    """What stands in the place of something that has a message's content in it."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    if isinstance(value, Message | Leased):
        return f"[{type(value).__name__} {value.id}]"
    return None


def _shown(name: object, value: Any, depth: int) -> Any:
    if isinstance(name, str) and name.lower() in SECRET:
        return LEFT_OUT
    if value is None or type(value) in (bool, float) or (type(value) is int and value.bit_length() < 64):
        return value
    if isinstance(value, str):
        return _text(value)
    content = _of_content(value)
    if content is not None:
        return content
    if depth >= DEPTH_MAX:
        return LEFT_OUT
    if isinstance(value, Mapping):
        return {_text(key): _shown(key, one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown(None, one, depth + 1) for one in value]
    return _text(_described(value))


def _described(value: object) -> str:
    """Anybody's object: its own words, if it has any."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {argument.quoted(value)}"
    return argument.quoted(value)


def _text(value: object) -> str:
    text = value if type(value) is str else str(value)
    if len(text) > TEXT_CHARS_MAX:
        text = f"{text[:TEXT_CHARS_MAX]}… ({len(text)} characters)"
    if not text.isascii():  # half of a character is none
        text = text.encode(errors="backslashreplace").decode()
    return _CONTROL.sub(_escaped, _TOKEN.sub(LEFT_OUT, text))


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()
