"""`penstock create`, `alter` and `delete`: queues and topics, and the policies that they have."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer

from penstock.broker.port import Port
from penstock.cli import output
from penstock.cli.place import Json, Name, Place, opened, placed
from penstock.errors import InvalidArgument
from penstock.limits import COUNT_MAX
from penstock.model.commands import Alter, Delete, Handle, Kind, Spec, Unit
from penstock.model.queries import OfLog
from penstock.model.stats import QueueStats
from penstock.policy import Backoff, Policy
from penstock.server import quantity
from penstock.wire import policy_out

app = typer.Typer()

#: Exit code of a delete without --yes: nothing was done.
NOT_DONE: Final = 1

Topic = Annotated[bool, typer.Option("--topic", help="A topic, not a queue.")]


# --- the options of a policy ---


def _seconds(given: str) -> float:
    return 0.0 if given.strip() == "0" else quantity.seconds(given)


def _backoff(given: str) -> Backoff:
    """`initial=1,factor=2,maximum=5m,jitter=0.1`; what is left out has its default."""
    found: dict[str, float] = {}
    for part in quantity.words(given):
        name, equals, value = part.partition("=")
        if not equals or name not in Backoff.__struct_fields__:
            raise ValueError("give initial=SECONDS,factor=NUMBER,maximum=SECONDS,jitter=0…1, or none")
        found[name] = _seconds(value) if name in ("initial", "maximum") else float(value)
    return Backoff(**found)


class Field(NamedTuple):
    """How a field of a policy is given on the command line. A flag has no metavar."""

    metavar: str | None
    help: str
    parse: Callable[[str], Any] = quantity.text


_TIME: Final = quantity.or_nothing(_seconds)
_COUNT: Final = quantity.or_nothing(quantity.count(1))
_SIZE: Final = quantity.or_nothing(quantity.size_bytes(1, COUNT_MAX))

#: Every field of a policy.
FIELDS: Final[dict[str, Field]] = {
    "visibility_timeout": Field("SECONDS", "How long a message is leased before it goes to another consumer, or none: until its consumer goes.", _TIME),
    "max_attempts": Field("COUNT", "Attempts before a message is a dead letter, or none: without a bound.", _COUNT),
    "backoff": Field("WAITS", "The wait before a retry, of which each part may be left out, or none: at once.", quantity.or_nothing(_backoff)),
    "dead_letter": Field("QUEUE", "The queue that gets dead letters, or none: NAME.dlq.", quantity.or_nothing(quantity.text)),
    "ttl": Field("SECONDS", "How long a message lives that does not say so itself, or none: for ever.", _TIME),
    "on_expire": Field("WORD", "What becomes of a message whose time is over: drop, or dead-letter."),
    "max_depth": Field("COUNT", "The most messages that are not settled, or none.", _COUNT),
    "max_bytes": Field("BYTES", "The most bytes of payloads that are not settled, or none.", _SIZE),
    "overflow": Field("WORD", "What a full queue does: reject a publish, or drop-head, its oldest messages."),
    "max_message_bytes": Field("BYTES", "The largest payload.", quantity.size_bytes(1, COUNT_MAX)),
    "ordering": Field("WORD", "fifo, or key: one message of a key at a time, in order."),
    "delivery": Field("WORD", "at-least-once, at-most-once, or exactly-once, which needs a dedup_id with each message."),
    "dedup_window": Field("SECONDS", "How long a dedup_id is remembered.", _seconds),
    "retain": Field("WORD", "How long messages are stored: until they are consumed, or until-archived."),
    "retain_seconds": Field("SECONDS", "Keep messages for so long, consumed or not, or none.", _TIME),
    "retain_bytes": Field("BYTES", "Keep the newest messages of so many bytes, consumed or not, or none.", _SIZE),
    "strategy": Field("WORD", "How consumers share messages: round-robin, least-busy or random."),
    "durable": Field(None, "Keep it across restarts."),
    "expires": Field("SECONDS", "Delete it when it was not used for so long, or none.", _TIME),
    "single_active": Field(None, "Only the first of its consumers is given messages."),
}  # fmt: skip

Command = Callable[..., None]


def with_policy(command: Command) -> Command:
    """A command that takes an option for each field: it is called with those that were given, as `policy`."""
    own = inspect.signature(command, eval_str=True).parameters
    options = {name: _option(name, field) for name, field in FIELDS.items()}

    def called(place: Place, **given: Any) -> None:
        with output.answering(place):
            policy = dict(_given({name: given.pop(name) for name in FIELDS}))
        command(place=place, policy=policy, **given)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    mine = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, one in own.items() if name != "policy"]
    called.__signature__ = inspect.Signature([*mine, *options.values()])  # type: ignore[attr-defined]
    called.__annotations__ = {}
    return called


def _option(name: str, field: Field) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    default = _shown(getattr(Policy(), name))
    option = typer.Option(
        flag if field.metavar else f"{flag}/--no-{flag[2:]}",
        metavar=field.metavar,
        help=f"{field.help} ({default})",
        rich_help_panel="Policy (what it is by default)",
        show_default=False,
    )
    kind: Any = str if field.metavar else bool
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _given(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if value is not None:
            try:
                yield name, FIELDS[name].parse(value) if isinstance(value, str) else value
            except ValueError as error:
                raise InvalidArgument(f"--{name.replace('_', '-')} is {value!r}; {error}") from None


def _shown(value: Any) -> str:
    """A value of a policy as it may be typed."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Backoff):
        parts = msgspec.structs.asdict(value).items()
        return ", ".join(f"{name}={part:g}" for name, part in parts)
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- commands ---


@placed(app)
@with_policy
def create(
    place: Place, queue: Name, policy: dict[str, Any], topic: Topic = False, as_json: Json = False
) -> None:
    """Make a queue, or a topic; a directory is made if it does not exist.

    Times are seconds, or 500ms, 15m, 1h30m; sizes are bytes, or 64KiB, 1MB. What is not given is as the place has it by default. With --json it prints the policy.

    Exits with 0, and with 2 if there is a queue or a topic of that name already.

    [bold]Examples[/bold]

      penstock create ./queue orders --max-attempts 5 --visibility-timeout 2m

      penstock create ./queue mails --backoff initial=10,maximum=1h --dead-letter failures

      penstock create http://127.0.0.1:8080 events --topic --retain-seconds 7d
    """
    kind = _kind(topic)
    with output.answering(place):
        with opened(place, create=True) as (_, port):
            found = port.declare(Spec(place.namespace, queue, policy, True, kind)).wait()
        if as_json:
            _print_policy(found)
        else:
            sys.stdout.write(f"Made the {kind} {queue}.\n")


@placed(app)
@with_policy
def alter(
    place: Place, queue: Name, policy: dict[str, Any], topic: Topic = False, as_json: Json = False
) -> None:
    """Change the policy of a queue, or a topic, from now on. What is not given stays.

    Prints what changed, or with --json the policy.

    Exits with 0, and with 2 if there is no such queue, or its policy would contradict itself.

    [bold]Examples[/bold]

      penstock alter ./queue orders --max-attempts 10

      penstock alter ./queue orders --ttl none --backoff none

      penstock alter http://127.0.0.1:8080 events --topic --retain-bytes 10GiB
    """
    kind = _kind(topic)
    with output.answering(place):
        if not policy:
            raise InvalidArgument(
                "there is nothing to change; give an option of the policy, such as --max-attempts 5"
            )
        with opened(place) as (_, port):
            found = _existing(port, place, queue, kind)
            before = found.policy
            port.commit(Unit(place.namespace, ((found, Alter(policy)),))).wait()
            found = _existing(port, place, queue, kind)
        if as_json:
            _print_policy(found)
            return
        changed = [name for name in policy if getattr(before, name) != getattr(found.policy, name)]
        for name in changed:
            was, now = _shown(getattr(before, name)), _shown(getattr(found.policy, name))
            sys.stdout.write(f"{name.replace('_', '-')}: {was} → {now}\n")
        if not changed:
            sys.stdout.write("Nothing changed: it was so already.\n")


@placed(app)
def delete(
    place: Place,
    queue: Name,
    topic: Topic = False,
    yes: Annotated[bool, typer.Option("--yes", help="Really do it. Without it, only say what would be deleted.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Delete a queue, or a topic, with everything in it; dead letters are a queue of their own. Does nothing without --yes.

    Exits with 0, with 1 if --yes was missing, and with 2 if there is no such queue.

    [bold]Examples[/bold]

      penstock delete ./queue orders            [dim]# what would be deleted[/dim]

      penstock delete ./queue orders --yes

      penstock delete http://127.0.0.1:8080 events --topic --yes
    """
    kind = _kind(topic)
    with output.answering(place):
        with opened(place) as (_, port):
            found = _existing(port, place, queue, kind)
            stats: QueueStats = port.describe(OfLog(found)).wait()
            if yes:
                port.commit(Unit(place.namespace, ((found, Delete()),))).wait()
        if as_json:
            output.print_json({kind: queue, "messages": stats.depth, "done": yes})
        elif yes:
            sys.stdout.write(f"Deleted the {kind} {queue} with {stats.depth:,} messages.\n")
        else:
            command = f"penstock delete --yes{' --topic' if topic else ''} {place.typed()} {queue}"
            sys.stdout.write(
                f"The {kind} {queue} would be deleted with {stats.depth:,} messages. Nothing was changed. To do it: {command}\n"
            )
    raise typer.Exit(output.FINE if yes else NOT_DONE)


def _kind(topic: bool) -> Kind:
    return "topic" if topic else "queue"


def _existing(port: Port, place: Place, name: str, kind: Kind) -> Handle:
    return port.declare(Spec(place.namespace, name, {}, False, kind)).wait()


def _print_policy(found: Handle) -> None:
    output.print_json(
        {found.kind: found.name, "namespace": found.namespace, "policy": policy_out(found.policy)}
    )
