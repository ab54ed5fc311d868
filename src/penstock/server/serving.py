"""`penstock serve`: one process, one event loop, a broker and its fronts, from the first signal to the last sync.

Theory of operation
-------------------
The order of a life, and why it is that:

1. What is wrong with the settings, or with a key, is said before anything is touched. Without a key only this machine may reach the server.
2. The address is taken, then the directory: whoever starts a second server by mistake hears at once who holds what.
3. The broker opens in a thread, because recovering a large journal takes its time: signals are heard meanwhile, `/health` answers, everything
   else is told to come back.
4. `assemble` builds accounts, metrics and the application around the open broker, and the fronts serve it.
5. SIGTERM or SIGINT: the fronts stop accepting, long polls end with what they have, requests are answered, for so long as
   `shutdown_timeout` says; then the rest is cut. Then the broker is closed, which syncs. A second signal cuts at once, and still closes the broker;
   a third ends the process where it is, which costs a recovery and nothing that was acknowledged.
6. SIGHUP: certificate and keys are read again, each by itself, and the log says of each whether it was; connections go on.

A journal that fails is not served any longer: the process ends with 1, and opening it again recovers it, as it would after a crash.

Exit codes: `STOPPED` 0, `FAILED` 1, `WRONG_USE` 2 (settings, a port that is taken), `HELD` 3 (somebody else has the directory), `AT_ONCE` 130.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker import opening
from penstock.broker.embedded import Embedded
from penstock.broker.port import Port
from penstock.clock import SystemClock
from penstock.errors import DirectoryLocked, InvalidArgument, MissingExtra, PenstockError
from penstock.journal.directory import Directory, holder
from penstock.journal.files import Files
from penstock.limits import SEGMENT_BYTES
from penstock.server.connections import Bound
from penstock.server.listening import AddressTaken, App, HttpFront, is_loopback
from penstock.server.quotas import Quotas
from penstock.server.settings import Settings
from penstock.server.threads import in_thread

if TYPE_CHECKING:
    from penstock.server import tls
    from penstock.server.keys import Keys

log = logging.getLogger("penstock.server")

STOPPED: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
HELD: Final = 3
AT_ONCE: Final = 130

#: How often a long recovery says how far it is, and how often somebody looks whether the journal has failed.
PROGRESS_S: Final = 5.0
LOOK_S: Final = 1.0

#: Where a thread commits (see `journal.hosting`), it tells the loop of the end. Whichever of the two has the interpreter gives it up after so long; by default after 5 ms, which every publish would wait for the other, once or twice.
SWITCH_S: Final = 0.0001

#: For the garbage collector: a walk through the youngest takes a fraction of a millisecond, one through everything comes rarely.
COLLECTOR_THRESHOLDS: Final = (2000, 20, 50)

#: Files that are not connections: segments, snapshots, sockets, modules.
OTHER_FILES: Final = 256


class Assembled(NamedTuple):
    """What the fronts serve, and how it is told of what happens around it. All of it is called in the loop's thread."""

    app: App
    stop: Callable[[], None]  # nobody is to wait any longer: long polls end with what they have
    reload: Callable[[], None]  # keys are read again


Refused = Callable[[], Mapping[str, int]]
"""How many connections were refused, by why."""


class Admission(NamedTuple):
    """Who may come, and with how much: read before anything is touched."""

    keys: Keys | None
    quotas: Quotas

    @classmethod
    def of(cls, settings: Settings) -> Admission:
        return cls(keys_now(settings), Quotas.configured(settings.namespace_quotas, SystemClock()))


Assemble = Callable[[Settings, Embedded, Refused, Admission], Assembled]


def keys_now(settings: Settings) -> Keys | None:
    """What tokens are checked with; None if everybody may do everything."""
    if not settings.has_key:
        return None
    from penstock.server.keys import keys_of

    return keys_of(settings)


def assemble(settings: Settings, port: Embedded, refused: Refused, admission: Admission) -> Assembled:
    """Everything between the broker and the network: accounts, quotas, metrics, and the application over them."""
    from penstock.observe.metrics import Metrics
    from penstock.server.accounts import Accounts
    from penstock.server.bounds import Bounds
    from penstock.server.http import app as http

    accounts = Accounts(
        admission.keys, clock=port.clock, audience=settings.jwt_audience, issuer=settings.jwt_issuer
    )
    bounds = Bounds(
        body_bytes_max=settings.max_body_size,
        wait_s_max=settings.max_wait,
        long_polls_max=settings.max_long_polls,
        long_polls_per_caller_max=settings.max_long_polls_per_caller,
        staged_bytes_max=settings.max_staged_size,
    )
    metrics = Metrics(port, version=version("penstock"))
    metrics.refusals = refused
    app = http.create(
        _traced(port) if settings.tracing else port,
        accounts=accounts,
        quotas=admission.quotas,
        bounds=bounds,
        observer=metrics,
        directory=settings.data_dir.absolute() if settings.storage == "disk" else None,
        intake=port.monitor.intake,
        ready=lambda: port.monitor.failure is None,
        routes=tuple(row for row in http.ROUTES if settings.metrics or row.path != "/metrics"),
    )

    def reload() -> None:
        where = key_file(settings)
        found = None if where is None else keys_now(settings)
        if found is not None:
            accounts.replace(found)
            log.info("the key of tokens was read again from %s; what another has signed is refused", where)
        elif settings.has_key:
            log.warning(
                "the key of tokens was not read again: it is in no file; start the server again to change it"
            )

    served: App = _traced_requests(app) if settings.tracing else app
    return Assembled(served, app.front.stop, reload)


def key_file(settings: Settings) -> Path | None:
    """Where the key of tokens can be read again; None if there is none, or it was given as it is."""
    if settings.jwt_secret:
        return settings.files.get("jwt_secret")
    if settings.jwt_public_key:
        from penstock.server.keys import is_pem

        return None if is_pem(settings.jwt_public_key) else Path(settings.jwt_public_key)
    return settings.jwt_jwks


def _traced(port: Embedded) -> Port:
    from penstock.observe.tracing import TracedPort

    return TracedPort(port)


def _traced_requests(app: App) -> App:
    from penstock.observe.tracing import TracedRequests

    return TracedRequests(app)


def serve(settings: Settings, assemble: Assemble = assemble) -> int:
    """Serve until a signal comes; the exit code. Raises what keeps it from starting."""
    log_as(settings)
    for warning in settings.warnings:
        log.warning(warning)
    require_key_or_loopback(settings)
    sys.setswitchinterval(SWITCH_S)
    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        return runner.run(Serving(settings, assemble).run())
    finally:
        # Closing it would wait for ever for a request that does not hear when it is cancelled.
        if not asyncio.all_tasks(runner.get_loop()):
            runner.close()


def calm_collector() -> None:
    """Have the garbage collector leave alone what was made for the server's whole life, and come less often.

    It would walk through all of it whenever a quarter as much was added: a pause of 60 ms and more, in the middle of requests, every few seconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def exit_code_of(error: PenstockError) -> int:
    """How a server ends that could not start."""
    return HELD if isinstance(error, DirectoryLocked) else WRONG_USE


def require_key_or_loopback(settings: Settings) -> None:
    """Without a key everybody may do everything: then only those on this machine."""
    if settings.has_key or is_loopback(settings.http_addr):
        return
    raise InvalidArgument(
        f"{settings.sources['http_addr']} is {settings.http_addr}, which others can reach, and there is no key to know callers by. "
        'Make one with `export PENSTOCK_JWT_SECRET="$(openssl rand -base64 32)"` and tokens with `penstock token`, '
        "or listen on this machine only: --host 127.0.0.1"
    )


def log_as(settings: Settings) -> None:
    """Have everything logged as the settings say."""
    level = {"warn": "warning"}.get(settings.log_level, settings.log_level)
    encoding = encoding_of(settings)
    try:
        from penstock.observe import logs
    except ImportError:
        logging.basicConfig(
            level=level.upper(), stream=sys.stderr, format="penstock: %(message)s", force=True
        )
    else:
        logs.configure(level, "json" if encoding == "json" else "console")
    # uvicorn tells of each step of its own; what is to be known of the server's life is told here.
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    uvicorn.addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Whoever sends what is no HTTP could fill the log. He is counted with those who are refused (see `connections`)."""
    return record.msg != "Invalid HTTP request received."


def encoding_of(settings: Settings) -> str:
    if settings.log_encoding != "auto":
        return settings.log_encoding
    return "console" if sys.stderr.isatty() else "json"


class Serving:
    """The life of one server."""

    def __init__(self, settings: Settings, assemble: Assemble) -> None:
        self.settings = settings
        self._assemble = assemble
        self._signals = 0
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._admission = Admission.of(settings)
        self._tls = tls_of(settings)
        context = None if self._tls is None else self._tls.ssl
        self._http = HttpFront(settings.http_addr, bound_of(settings), context=context)
        self._fronts = [self._http]  # another protocol's stands beside it
        self._assembled: Assembled | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovered_bytes = 0

    async def run(self) -> int:
        self._listen_to_signals()
        try:
            self._http.bind()
        except AddressTaken:
            require_free(self.settings)  # who holds the directory is the better answer
            raise
        try:
            for front in self._fronts:
                await front.start()
            port = await self._opened()
        except BaseException:
            await self._stop_fronts(0)
            raise
        if port is None:
            await self._stop_fronts(0)
            return AT_ONCE if self._hurry.is_set() else STOPPED
        return await self._served(port)

    async def _served(self, port: Embedded) -> int:
        in_time = True
        try:
            if not port.host():
                log.info("this kernel does not sync files by itself: a thread does")
            self._assembled = self._assemble(self.settings, port, self._http.refused, self._admission)
            await self._http.serve(self._assembled.app)
            self._begin(self._look_for_failure(port))
            if self._tls is not None and self.settings.tls_cert is not None:
                self._begin(self._tls.watch())
            self._greet()
            calm_collector()
            await self._stopping.wait()
            tell_supervisor("STOPPING=1")
            log.info(
                "stopping: nothing new is accepted, what is under way may take %g s",
                self.settings.shutdown_timeout,
            )
            self._assembled.stop()
            in_time = await self._stop_fronts(self.settings.shutdown_timeout)
        finally:
            await self._end_tasks()
            # Also after an error: the broker is whole, and closing it syncs.
            failure = port.monitor.failure
            await in_thread(port.close)
        return self._ended(failure, in_time)

    def _ended(self, failure: PenstockError | None, in_time: bool) -> int:
        if failure is not None:
            log.error(
                "the journal failed: %s. Start again to recover it: what was acknowledged is there", failure
            )
            return FAILED
        log.info(
            "stopped; everything acknowledged is synced%s", "" if in_time else ", some requests were cut"
        )
        return AT_ONCE if self._hurry.is_set() else STOPPED

    # --- opening ---

    async def _opened(self) -> Embedded | None:
        """The broker; None if a signal came before it was open."""
        settings = self.settings
        path = settings.data_dir if settings.storage == "disk" else None
        begun_s = asyncio.get_running_loop().time()

        def open_() -> Embedded:
            # In memory there is nothing to recover, and no progress of it.
            more = {} if path is None else {"progress": self._note_progress}
            return opening.port(
                path, None, settings.node_id, settings.trace, defaults=settings.policy, durability=settings.durability,
                commit_interval_ms=settings.commit_interval_ms, segment_bytes=SEGMENT_BYTES,
                admits=self._admission.quotas.admits, **more,
            )  # fmt: skip

        opened = asyncio.ensure_future(in_thread(open_))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not opened.done() and not stopping.done():
                await asyncio.wait(
                    (opened, stopping), timeout=PROGRESS_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not opened.done() and not stopping.done():
                    passed_s = asyncio.get_running_loop().time() - begun_s
                    log.info(
                        "recovering %s: %.0f MiB in %.0f s", path, self._recovered_bytes / (1 << 20), passed_s
                    )
            if not opened.done():
                await self._given_up(opened)
                return None
            return opened.result()
        finally:
            stopping.cancel()

    def _note_progress(self, count: int) -> None:
        self._recovered_bytes += count

    async def _given_up(self, opened: asyncio.Future[Embedded]) -> None:
        """A signal came while the broker was opening: wait a little, so that it is closed in order; a recovery may also be left half done."""
        log.info("stopping: the journal is still being recovered")
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((opened, hurry), timeout=self.settings.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        hurry.cancel()
        if not opened.done():
            log.warning("the recovery was left half done; the next start begins it again")
        elif opened.exception() is None:
            await in_thread(opened.result().close)

    # --- signals ---

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._stopping.set()
        elif self._signals == 2:
            log.warning("stopping at once")
            self._hurry.set()
        else:
            os._exit(AT_ONCE)

    def _on_hangup(self) -> None:
        tell_supervisor("RELOADING=1")
        # Each says itself what it has read. What is wrong with one of them keeps the other from nothing.
        if self._tls is not None:
            _read_again("the certificate", self._tls.reload)
        if self._assembled is not None:
            _read_again("the key of tokens", self._assembled.reload)
        tell_supervisor("READY=1")

    # --- the rest ---

    def _begin(self, coroutine: Coroutine[object, object, None]) -> None:
        self._tasks.add(asyncio.create_task(coroutine))

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_for_failure(self, port: Embedded) -> None:
        while port.monitor.failure is None:  # noqa: ASYNC110  # whoever notices it first is in another thread
            await asyncio.sleep(LOOK_S)
        self._stopping.set()

    async def _stop_fronts(self, timeout_s: float) -> bool:
        """Whether everything ended by itself."""
        stops = [asyncio.ensure_future(front.stop(timeout_s)) for front in self._fronts]
        hurry = asyncio.create_task(self._hurry.wait())
        together = asyncio.gather(*stops)
        await asyncio.wait((together, hurry), return_when=asyncio.FIRST_COMPLETED)
        if not together.done():
            for front in self._fronts:
                front.cut()
        hurry.cancel()
        return all(await together)

    def _greet(self) -> None:
        settings, url = self.settings, self._http.url
        log.info("listening on %s", url)
        if not settings.has_key:
            log.warning(
                "there is no key: everybody on this machine may do everything, and nobody else can connect"
            )
        tell_supervisor(f"READY=1\nSTATUS=listening on {url}")
        if encoding_of(settings) == "console":
            sys.stdout.write(welcome(settings, url))
            sys.stdout.flush()


def _read_again(what: str, read: Callable[[], object]) -> None:
    try:
        read()
    except PenstockError as error:
        log.error("%s was not read again, the one in force stays: %s", what, error)
    except Exception:
        log.exception("%s was not read again, the one in force stays", what)


def welcome(settings: Settings, url: str) -> str:
    """Where to look, and what to try."""
    insecure = " -k" if settings.tls_self_signed else ""
    token = ' -H "Authorization: Bearer $TOKEN"' if settings.has_key else ""
    curl = f"curl{insecure}{token}"
    where = (
        "memory: all of it is gone at the end" if settings.storage == "memory" else f"{settings.data_dir}/"
    )
    lines = [
        "",
        f"Penstock {version('penstock')} serves {where}",
        "",
        f"  {url}/docs      what it can do, with examples",
        f"  {url}/health    whether it lives (/ready: whether it works)",
        *([f"  {url}/metrics   for Prometheus"] if settings.metrics else []),
        "",
        "Try, in another terminal:",
        "",
        *(['  TOKEN="$(penstock token --namespace default)"'] if settings.has_key else []),
        f"  curl{insecure} {url}/health",
        f'  {curl} {url}/enqueue -d \'[{{"namespace": "default", "topic": "jobs", "priority": 1, "payload": "SGVsbG8="}}]\'',
        f"  {curl} '{url}/dequeue?namespace=default&topic=jobs&limit=1'",
        f'  {curl} {url}/ack -d \'{{"namespace": "default", "topic": "jobs", "receipt": "…"}}\'   # the receipt that came',
        "",
        "Ctrl-C stops it: requests are finished, and everything acknowledged is on the disk.",
        "",
    ]
    return "\n".join(lines) + "\n"


def tls_of(settings: Settings) -> tls.Context | None:
    """The certificate that the settings name, or one that is made now."""
    if not settings.has_tls:
        return None
    from penstock.server import tls

    if settings.tls_cert is not None:
        for name in ("tls_cert", "tls_key"):
            if not os.path.exists(getattr(settings, name)):  # not shown: it may be the key itself
                raise InvalidArgument(f"{settings.sources[name]} is not the path of a file that exists")
        return tls.Context(settings.tls_cert, settings.tls_key)
    # Beside the journal, so that whoever trusts it may go on trusting it after a restart.
    place = settings.data_dir / "tls" if settings.storage == "disk" else None
    hosts = dict.fromkeys((*tls.LOCAL_HOSTS, socket.gethostname(), settings.http_addr.host))
    return tls.Context(*tls.self_signed(place, [host for host in hosts if host and host.isascii()]))


def bound_of(settings: Settings) -> Bound:
    """What connections may take: as the settings say, and as many as this process may have files."""
    allowed = _raise_file_limit(settings.max_connections + OTHER_FILES) - OTHER_FILES
    if allowed < settings.max_connections:
        log.warning(
            "this process may open %d files, so it takes %d connections and not %d: raise `ulimit -n` (LimitNOFILE= in systemd)",
            allowed + OTHER_FILES, max(allowed, 1), settings.max_connections,
        )  # fmt: skip
    return Bound(
        connections=max(1, min(settings.max_connections, allowed)),
        connections_per_address=settings.max_connections_per_address,
        head_bytes=settings.max_header_size,
        body_bytes=settings.max_body_size,
        bodies_bytes=settings.max_bodies_size,
        head_s=settings.header_timeout,
        body_s=settings.body_timeout,
        idle_s=settings.keep_alive,
    )


def _raise_file_limit(wanted: int) -> int:
    """Be allowed so many open files, as far as that goes; how many they are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    aim = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < aim:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def require_free(settings: Settings) -> None:
    """Raise who holds the directory, if somebody does."""
    path = Path(settings.data_dir).absolute()
    if settings.storage != "disk" or not path.is_dir():
        return
    found = holder(Directory(Files(), path))
    if found is not None:
        raise DirectoryLocked(
            f"{settings.data_dir} is held by {found}, and {settings.http_addr} is taken: a server is running. "
            "Connect to it, or stop it first",
            holder=found,
        )


def tell_supervisor(state: str) -> None:
    """What systemd wants to know (`Type=notify`), if it asked for it."""
    where = os.environ.get("NOTIFY_SOCKET")
    if not where:
        return
    address = "\0" + where[1:] if where.startswith("@") else where
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.connect(address)
        teller.send(state.encode())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        raise MissingExtra('serving needs uvloop; install with: pip install "penstock[server]"') from None
    return uvloop.new_event_loop
