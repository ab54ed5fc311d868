"""The configuration of `penstock serve`: what can be chosen, where it is chosen, and what is in force.

Theory of operation
-------------------
A setting is a row of `PANELS`, and a field of `Settings` of the same name. From the row follow its flag (`--http-addr`), its variable
(`PENSTOCK_HTTP_ADDR`), its key in a TOML file (`http_addr`, or `addr` in a table `[http]`), its line in `penstock config` and in the reference.

Sources, the first that has a value wins: flags, the environment, the file `.env` of the working directory, a TOML file, the default. An empty
variable is one that is not set, as Compose files write it. What a value came from is kept with it (`Settings.sources`), and an error names it.

The variables of MQueue and GoMQ work as they are (`SYNONYMS`). Some are so general that another
program may have set them, so a name with our prefix wins wherever it stands: `PENSTOCK_LOG_LEVEL`
in `.env` wins over `LOG_LEVEL` in the environment.

A name that nobody knows is a mistake that would otherwise be found at night: in our own TOML file it is an error; a variable `PENSTOCK_…` only gives a
warning, because others set such variables, too (Kubernetes makes `PENSTOCK_SERVICE_HOST` for a service of that name). Both say which name is near.

Secrets have no flag, because everybody on a machine sees the flags of a process. Each may be given as a file instead (`PENSTOCK_JWT_SECRET_FILE`), and
none is ever printed.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidArgument
from penstock.policy import Policy
from penstock.server import dotenv, quantity, quotas
from penstock.server.quantity import Address

PREFIX: Final = "PENSTOCK_"
DOTENV: Final = Path(".env")
TOML: Final = Path("penstock.toml")
HIDDEN: Final = "***"

#: Variables of other commands and of the tests: known, and no settings of the server.
OTHER_VARIABLES: Final = frozenset(
    f"{PREFIX}{name}"
    for name in "URL TOKEN CA NAMESPACE JWT_PRIVATE_KEY JWT_PRIVATE_KEY_FILE FAULT_ROUNDS".split()
)

#: The variables of MQueue and GoMQ, and the settings that they set.
SYNONYMS: Final[Mapping[str, str]] = {
    "DATABASE_URLS": "database_urls",
    "REDIS_ADDRS": "redis_addrs",
    "REDIS_PASSWORD": "redis_password",
    "WAL_DIR": "wal_dir",
    "MQUEUE_NODE_ID": "node_id",
    "LOG_LEVEL": "log_level",
    "LOG_ENCODING": "log_encoding",
    "JWT_SECRET": "jwt_secret",
    "NAMESPACE_QUOTAS": "namespace_quotas",
    "BUFFER_TTL": "buffer_ttl",
    "GOMQ_STORAGE": "storage",
    "GOMQ_DATA_DIR": "data_dir",
    "GOMQ_DEFAULT_TTL": "default_ttl",
    "GOMQ_MAX_MESSAGE_SIZE": "max_message_size",
    "GOMQ_MAX_QUEUE_DEPTH": "max_queue_depth",
    "GOMQ_MAX_RETRIES": "max_retries",
    "GOMQ_LISTEN_ADDR": "listen_addr",
}

#: A configuration that is longer than that is something else.
FILE_BYTES_MAX: Final = 1 << 20

_BODY_BYTES_MAX: Final = 1 << 30
_NODE_MAX: Final = (1 << limits.ID_NODE_BITS) - 1


class Setting(NamedTuple):
    """One thing that can be chosen."""

    name: str
    parse: Callable[[Any], Any]
    default: Any
    help: str
    secret: bool = False
    awaits: str | None = None  # the part that will heed it, if that is not built yet

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_switch(self) -> bool:
        return self.parse is quantity.flag


def _path(given: Any) -> Path:
    if "\0" in str(given):
        raise ValueError("give the name of a file or directory")
    return Path(str(given)).expanduser()


def _quotas(given: Any) -> str:
    """As text, which whoever applies it reads again. A TOML table is the same text in another dress."""
    text = (
        ",".join(f"{name}:{limit}" for name, limit in given.items())
        if isinstance(given, Mapping)
        else str(given)
    )
    quotas.parse(text)
    return text.strip()


_optional = quantity.or_nothing

# A row is a line.
# fmt: off
PANELS: Final[dict[str, tuple[Setting, ...]]] = {
    "Storage": (
        Setting("storage", quantity.choice("disk", "memory", "shards"), "disk", "disk, or memory: everything is forgotten at the end"),
        Setting("data_dir", _path, Path("data"), "the directory of the journal; made if it is not there"),
        Setting("durability", quantity.choice("commit", "interval", "os"), "commit", "what a publish waits for: commit (synced), interval, os"),
        Setting("commit_interval_ms", quantity.number(0, limits.COMMIT_INTERVAL_MS_MAX), limits.COMMIT_INTERVAL_MS, "with durability interval: how often is synced"),
        Setting("node_id", quantity.count(0, _NODE_MAX), 0, f"0 to {_NODE_MAX}, part of every id: servers with different ones never make the same id"),
        Setting("trace", quantity.flag, True, "keep timelines of recent messages"),
    ),
    "Queues, where they do not say it themselves": (
        Setting("default_ttl", _optional(quantity.seconds), None, "how long a message lives"),
        Setting("max_message_size", quantity.size_bytes(1, limits.MESSAGE_BYTES_MAX), limits.MESSAGE_BYTES_DEFAULT, "the largest payload"),
        Setting("max_queue_depth", _optional(quantity.count(1)), None, "messages not settled, above which a publish is refused"),
        Setting("max_retries", _optional(quantity.count(0, limits.ATTEMPTS_MAX - 1)), 2, "attempts after the first one, before a message is a dead letter"),
    ),
    "Network": (
        Setting("http_addr", quantity.address, Address("127.0.0.1", 8080), "where HTTP is served; port 0: any that is free"),
        Setting("listen_addr", quantity.address, Address("127.0.0.1", 5672), "where AMQP is served", awaits="AMQP is"),
        Setting("tls_cert", _path, None, "the certificate and its chain, in PEM; read again on SIGHUP"),
        Setting("tls_key", _path, None, "its private key, in PEM"),
        Setting("tls_self_signed", quantity.flag, False, "TLS with a certificate made now, to try (curl -k)"),
        Setting("shutdown_timeout", quantity.seconds, 10.0, "how long requests may take to end after SIGTERM"),
    ),
    "Accounts": (
        Setting("jwt_secret", quantity.text, None, "the secret that tokens are signed with (HS256); its file is read again on SIGHUP", secret=True),
        Setting("jwt_public_key", quantity.text, None, "the public key of who signs tokens (RS256, ES256): PEM, or its file's name; that is read again on SIGHUP"),
        Setting("jwt_jwks", _path, None, "a file of such keys (JWKS); read again on SIGHUP"),
        Setting("jwt_audience", quantity.text, None, "the audience that a token must name"),
        Setting("jwt_issuer", quantity.text, None, "the issuer that a token must name"),
        Setting("namespace_quotas", _quotas, "", "publishes a minute by namespace: tenant-a:1000,tenant-b:500"),
    ),
    "Limits": (
        Setting("max_body_size", quantity.size_bytes(1024, _BODY_BYTES_MAX), 48 << 20, "the largest body of a request"),
        Setting("max_bodies_size", quantity.size_bytes(1024, 1 << 40), 512 << 20, "bodies that are held at once, all together; room for one there always is"),
        Setting("max_staged_size", quantity.size_bytes(1024, 1 << 50), 8 << 30, "rows of a namespace that Spark has sent and not published yet"),
        Setting("max_header_size", quantity.size_bytes(1024, 1 << 20), 32 << 10, "the largest head of a request"),
        Setting("max_connections", quantity.count(1, 1_000_000), 10_000, "open connections at once"),
        Setting("max_connections_per_address", quantity.count(1, 1_000_000), 4000, "the same from one address (IPv6: one /64)"),
        Setting("keep_alive", quantity.seconds, 75.0, "how long a connection may stand idle"),
        Setting("header_timeout", quantity.seconds, 10.0, "how long the head of a request may take"),
        Setting("body_timeout", quantity.seconds, 20.0, "how long a body may take, and a second more for every 16 KiB of it"),
        Setting("max_wait", quantity.seconds, 50.0, "how long a long poll may wait"),
        Setting("max_long_polls", quantity.count(1, 1_000_000), 10_000, "long polls that wait at once"),
        Setting("max_long_polls_per_caller", quantity.count(1, 1_000_000), 2000, "the same of one caller"),
    ),
    "Observing": (
        Setting("metrics", quantity.flag, True, "serve /metrics"),
        Setting("tracing", quantity.flag, False, "OpenTelemetry spans, by the SDK of this process (opentelemetry-instrument penstock serve …)"),
        Setting("log_level", quantity.choice("debug", "info", "warn", "warning", "error"), "info", "debug, info, warn or error"),
        Setting("log_encoding", quantity.choice("auto", "json", "console"), "auto", "json or console; auto: console on a terminal, json elsewhere"),
    ),
    "Shards": (
        Setting("database_urls", quantity.words, (), "PostgreSQL, one URL for each shard", secret=True, awaits="the shards are"),
        Setting("redis_addrs", quantity.words, (), "Redis, HOST:PORT", awaits="the shards are"),
        Setting("redis_password", quantity.text, None, "its password", secret=True, awaits="the shards are"),
        Setting("wal_dir", _path, None, "the journal of what is not in PostgreSQL yet", awaits="the shards are"),
        Setting("buffer_ttl", quantity.seconds, 60.0, "how long Redis keeps what it buffers", awaits="the shards are"),
    ),
}
# fmt: on

SETTINGS: Final = {row.name: row for rows in PANELS.values() for row in rows}


class Source(NamedTuple):
    """Where a value came from: which of the sources, and by what name it is found there."""

    kind: str  # flag, environment, .env, file, default
    place: str

    def __str__(self) -> str:
        return self.place or self.kind


DEFAULT: Final = Source("default", "")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force. Made by `load`; the fields are those of `SETTINGS`, in its order."""

    storage: str
    data_dir: Path
    durability: str
    commit_interval_ms: float
    node_id: int
    trace: bool
    default_ttl: float | None
    max_message_size: int
    max_queue_depth: int | None
    max_retries: int | None
    http_addr: Address
    listen_addr: Address
    tls_cert: Path | None
    tls_key: Path | None
    tls_self_signed: bool
    shutdown_timeout: float
    jwt_secret: str | None
    jwt_public_key: str | None
    jwt_jwks: Path | None
    jwt_audience: str | None
    jwt_issuer: str | None
    namespace_quotas: str
    max_body_size: int
    max_bodies_size: int
    max_staged_size: int
    max_header_size: int
    max_connections: int
    max_connections_per_address: int
    keep_alive: float
    header_timeout: float
    body_timeout: float
    max_wait: float
    max_long_polls: int
    max_long_polls_per_caller: int
    metrics: bool
    tracing: bool
    log_level: str
    log_encoding: str
    database_urls: tuple[str, ...]
    redis_addrs: tuple[str, ...]
    redis_password: str | None
    wal_dir: Path | None
    buffer_ttl: float
    sources: dict[str, Source]
    files: dict[str, Path] = {}  # of secrets that were given as files
    warnings: tuple[str, ...] = ()

    def secret_now(self, name: str) -> str | None:
        """A secret as it is now: one that was given as a file is read from that again."""
        if name not in self.files:
            found: str | None = getattr(self, name)
            return found
        return _secret_of(self.files[name], self.sources[name])

    @property
    def has_key(self) -> bool:
        """Whether callers must show a token."""
        return bool(self.jwt_secret or self.jwt_public_key or self.jwt_jwks)

    @property
    def has_tls(self) -> bool:
        return self.tls_self_signed or self.tls_cert is not None

    @property
    def policy(self) -> Policy:
        """The policy of queues and topics that are made without one, and of what is left out in one."""
        return Policy.of(
            ttl=self.default_ttl,
            max_message_bytes=self.max_message_size,
            max_depth=self.max_queue_depth,
            max_attempts=None if self.max_retries is None else self.max_retries + 1,
        )

    def shown(self, name: str) -> Any:
        """A value as it may be printed: plain, and no secret."""
        value = getattr(self, name)
        if SETTINGS[name].secret and value:
            return HIDDEN
        if (begin := "-----BEGIN ") in str(value):  # perhaps a private key, pasted by mistake
            return f"{begin}{str(value).partition(begin)[2].partition('-')[0]}----- …"
        return plain(value)


def plain(value: Any) -> Any:
    """A value of a setting as JSON and people have it."""
    if isinstance(value, Address | Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


class Given(NamedTuple):
    """A value of a source, not looked at yet."""

    value: Any
    source: Source
    file: Path | None = None  # that holds it, if it is a secret in a file


Values = dict[str, Given]


class Variables(NamedTuple):
    """The variables of the environment or of a `.env` file, and the lines there."""

    kind: str
    values: Mapping[str, str]
    places: Mapping[str, str] = {}

    def source(self, variable: str) -> Source:
        return Source(self.kind, f"{variable} ({self.places.get(variable, self.kind)})")


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv_file: Path | None = None,
    toml_file: Path | None = None,
) -> Settings:
    """The settings that these sources say together; a file that is None is not read.

    `flags` are settings by name, those that were not given as None; `host` and `port` replace one half of `http_addr`.

    >>> found = load({"port": 9000}, {"PENSTOCK_HTTP_ADDR": "127.0.0.1:8000"})
    >>> str(found.http_addr), str(found.sources["http_addr"])
    ('127.0.0.1:9000', '--port')
    """
    warnings: list[str] = []
    given: Values = {}
    if toml_file is not None:
        given |= _from_toml(toml_file)
    variables = [] if dotenv_file is None else [_in_dotenv(dotenv_file)]
    variables.append(Variables("environment", environ or {}))
    for some in variables:
        given |= _from_synonyms(some)
    for some in variables:
        given |= _from_variables(some, warnings)
    flags = {name: value for name, value in (flags or {}).items() if value is not None}
    halves: dict[str, Any] = {name: flags.pop(name) for name in ("host", "port") if name in flags}
    given |= _from_flags(flags)

    values = {name: row.default for name, row in SETTINGS.items()}
    sources = dict.fromkeys(SETTINGS, DEFAULT)
    files = {name: file for name, (_, _, file) in given.items() if file is not None}
    for name, (value, source, _) in given.items():
        values[name], sources[name] = _parsed(SETTINGS[name], value, source), source
        if (part := SETTINGS[name].awaits) is not None:
            warnings.append(f"{source} has no effect: {part} not built yet")
    if halves:
        _replace_halves(values, sources, halves)
    found = Settings(**values, sources=sources, files=files, warnings=tuple(warnings))
    _require_sense(found)
    return found


def load_here(flags: Mapping[str, Any] | None = None, toml_file: Path | None = None) -> Settings:
    """The same from the environment of this process and the files of its working directory."""
    if toml_file is None and TOML.is_file():
        toml_file = TOML
    return load(flags, os.environ, DOTENV if DOTENV.is_file() else None, toml_file)


def _row(name: str) -> Setting:
    if name not in SETTINGS:
        raise InvalidArgument(f"there is no setting {name!r}{_nearest(name, SETTINGS)}")
    return SETTINGS[name]


def _nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Which one may have been meant; a prefix that all of them have says nothing."""
    near = difflib.get_close_matches(
        name.removeprefix(prefix), [one.removeprefix(prefix) for one in known], n=1
    )
    return f"; did you mean {prefix}{near[0]}?" if near else "; `penstock config` shows those that there are"


def shown_path(path: Path) -> str:
    """Return a path as an error shows it; one that does not exist may be a secret, given by mistake."""
    return repr(str(path)) if os.path.exists(path) else f"{HIDDEN} (not shown: it may be a secret)"


def _read(path: Path, shown: str | None = None) -> str:
    shown = shown or str(path)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise InvalidArgument(f"{shown} has more than {FILE_BYTES_MAX} bytes; that is no configuration")
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{shown} is not UTF-8 text") from None
    except InvalidArgument:  # a ValueError too
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is no file's name"
        raise InvalidArgument(f"{shown} cannot be read: {reason}") from None


def _from_flags(flags: Mapping[str, Any]) -> Values:
    found: Values = {}
    for name, value in flags.items():
        secret = name.removesuffix("_file")
        if name != secret and name not in SETTINGS and _row(secret).secret:
            source = Source("flag", f"{SETTINGS[secret].flag}-file")
            found[secret] = _in_file(value, source)
        else:
            found[name] = Given(value, Source("flag", _row(name).flag))
    return found


def _in_dotenv(path: Path) -> Variables:
    lines = dotenv.parse(_read(path), str(path))
    values = {name: line.value for name, line in lines.items()}
    return Variables(".env", values, {name: f"{path}, line {line.number}" for name, line in lines.items()})


def _from_synonyms(variables: Variables) -> Values:
    return {
        name: Given(value, variables.source(variable))
        for variable, name in SYNONYMS.items()
        if (value := variables.values.get(variable))
    }


#: What begins like this is meant to close the server: a mistake in it stops the start.
KEY_VARIABLES: Final = PREFIX + "JWT"


def _from_variables(variables: Variables, warnings: list[str]) -> Values:
    known = {row.variable: name for name, row in SETTINGS.items()}
    files = {f"{row.variable}_FILE": name for name, row in SETTINGS.items() if row.secret}
    found: Values = {}
    for variable, value in variables.values.items():
        if not variable.startswith(PREFIX) or not value or variable in OTHER_VARIABLES:
            continue
        source = variables.source(variable)
        if variable in known:
            found[known[variable]] = Given(value, source)
        elif variable in files:
            found.setdefault(files[variable], _in_file(value, source))
        else:
            said = f"{source} is no setting{_nearest(variable, [*known, *files], PREFIX)}"
            if variable.startswith(KEY_VARIABLES):  # without its key a server is open to the machine
                raise InvalidArgument(f"{said}; correct it, or remove it")
            warnings.append(said)
    return found


def _from_toml(path: Path) -> Values:
    try:
        document = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is not TOML: {error}") from None
    files = {f"{name}_file": name for name, row in SETTINGS.items() if row.secret}
    found: Values = {}
    for key, value in _flat(document):
        source = Source("file", f"{key} ({path})")
        if key in SETTINGS:
            found[key] = Given(value, source)
        elif key in files:
            found.setdefault(files[key], _in_file(value, source))
        else:
            raise InvalidArgument(f"{path}: there is no setting {key!r}{_nearest(key, SETTINGS)}")
    return found


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """A table `[tls]` with a key `cert` is the setting `tls_cert`; that of the quotas is a value."""
    for key, value in table.items():
        name = before + key.replace("-", "_")
        if isinstance(value, dict) and name not in SETTINGS:
            yield from _flat(value, f"{name}_")
        else:
            yield name, value


def _in_file(given: Any, source: Source) -> Given:
    path = Path(str(given)).expanduser()
    return Given(_secret_of(path, source), source, path)


def _secret_of(path: Path, source: Source) -> str:
    try:
        found = _read(path, shown_path(path)).rstrip("\r\n")
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {error}") from None
    if not found:  # without a secret everybody may do everything, and that is not what a file for one says
        raise InvalidArgument(f"{source}: {path} is empty")
    return found


def _parsed(row: Setting, value: Any, source: Source) -> Any:
    try:
        if isinstance(value, list | dict) and row.parse not in {quantity.words, _quotas}:
            raise ValueError("give a single value")
        return row.parse(value)
    except (ValueError, InvalidArgument) as error:
        shown = HIDDEN if row.secret or row.name.startswith("jwt_") else repr(value)[:100]
        winner = f"; or set {row.variable}, which wins" if source.place.partition(" ")[0] in SYNONYMS else ""
        raise InvalidArgument(f"{source} is {shown}; {error}{winner}") from None


def _replace_halves(values: dict[str, Any], sources: dict[str, Source], halves: Mapping[str, Any]) -> None:
    host, port = values["http_addr"]
    host = str(halves.get("host", host)).strip("[]")
    if "port" in halves:
        port = _parsed(SETTINGS["http_addr"], f":{halves['port']}", Source("flag", "--port")).port
    values["http_addr"] = Address(host, port)
    sources["http_addr"] = Source("flag", " ".join(f"--{name}" for name in halves))


def _require_sense(found: Settings) -> None:
    """Raise what is wrong between settings, each of which is right by itself."""

    def said(*names: str) -> str:
        return " and ".join(str(found.sources[name]) for name in names)

    # Once there are shards, URLs alone mean them; disk or memory named beside URLs stops the start.
    shards = [
        name for name in ("database_urls", "storage") if getattr(found, name) not in ((), "disk", "memory")
    ]
    if shards:
        raise InvalidArgument(
            f"{said(*shards)}: shards are not built yet; leave that out to serve from a directory or from memory"
        )
    if (found.tls_cert is None) != (found.tls_key is None):
        there, missing = ("tls_cert", "tls_key") if found.tls_key is None else ("tls_key", "tls_cert")
        raise InvalidArgument(
            f"{said(there)} is given without its other half; give {SETTINGS[missing].flag}, too"
        )
    if found.tls_self_signed and found.tls_cert is not None:
        raise InvalidArgument(
            f"{said('tls_self_signed', 'tls_cert')} contradict each other; leave one of them out"
        )
    keys = [name for name in ("jwt_secret", "jwt_public_key", "jwt_jwks") if getattr(found, name)]
    if len(keys) > 1:
        raise InvalidArgument(
            f"{said(*keys)} contradict each other: tokens are checked with one kind of key; leave the others out"
        )
    try:
        found.policy  # noqa: B018  # it is checked when it is made
    except InvalidArgument as error:  # pragma: no cover  # each is checked by itself with the same bounds
        raise InvalidArgument(f"the settings of queues contradict each other: {error}") from None
