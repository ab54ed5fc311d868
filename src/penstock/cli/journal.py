"""`penstock journal`: look into a journal's directory, check it, mend it, print what it holds.

Everything but `repair --yes` only reads, needs no lock, and works while another process has the journal open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from penstock.checkup import Checkup, Repair
from penstock.checkup import repair as mend
from penstock.checkup import verify as check
from penstock.checkup.examination import FOREIGN, Finding
from penstock.cli import output
from penstock.cli.dump import Wanted, print_rows
from penstock.cli.inventory import Inventory, take
from penstock.errors import CorruptJournal, InvalidArgument
from penstock.journal.kinds import KINDS

app = typer.Typer(
    help="Look into a journal's directory, check it, mend it, print what it holds.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The journal's directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]


def _existing(path: Path) -> Path:
    if not path.is_dir():
        raise CorruptJournal(f"{path} is not a journal: it is not a directory")
    return path


def _segment_bytes(path: Path) -> int:
    """What there is to be scanned. A file that goes away meanwhile does not matter."""
    total = 0
    for file in path.glob("*.segment"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


# --- info ---


@app.command()
def info(path: Dir, as_json: Json = False) -> None:
    """Say what a journal holds: segments, logs, snapshots, and who has it open.

    Exits with 0, or with 2 if DIR is not a journal.

    [bold]Examples[/bold]

      penstock journal info ./queue

      penstock journal info ./queue --json | jq '.logs[].messages'
    """
    with output.answering(path):
        with output.progress_over(_segment_bytes(_existing(path)), "Reading") as progress:
            found = take(path, progress)
        if as_json:
            output.print_json(found)
        else:
            _print_inventory(found, path)


def _print_inventory(found: Inventory, path: Path) -> None:
    console = output.console()
    mark = found.mark
    facts = output.table(escape(str(path)), "", "")
    facts.show_header = False
    facts.add_row("held by", escape(found.holder or "nobody"))
    if mark is None:
        facts.add_row("mark", "damaged or gone")
    else:
        facts.add_row("mark", f"sequence {mark.sequence}, segment {mark.segment}, byte {mark.end}")
        facts.add_row("last synced", output.moment(mark.time_us))
    facts.add_row("epoch", str(found.epoch))
    facts.add_row("messages", f"{found.messages:,}")
    facts.add_row("bytes", output.size(found.bytes))
    facts.add_row("snapshots", ", ".join(f"at {s}" for s in found.snapshots) or "none")
    if found.snapshot_us is not None:
        facts.add_row("last snapshot", output.moment(found.snapshot_us))
    facts.add_row("free files", str(len(found.free)))
    facts.add_row("quarantine", f"{len(found.quarantine)} files" if found.quarantine else "empty")
    console.print(facts)
    _print_segments(found)
    logs = output.table(
        "Logs", "log", "name", "first", "next", "messages", right=("log", "first", "next", "messages")
    )
    for log in found.logs:
        first = "–" if log.first is None else str(log.first)
        name = escape(output.harmless(log.name or "–"))
        logs.add_row(str(log.number), name, first, str(log.next), f"{log.messages:,}")
    console.print(logs)
    for damage in found.damage:
        console.print(f"damaged: {escape(str(damage))}", style="red")


def _print_segments(found: Inventory) -> None:
    numbers = ("segment", "frames", "messages", "bytes")
    segments = output.table("Segments", *numbers, "state", "logs: offsets", "from", "to", right=numbers)
    for one in found.segments:
        offsets = "\n".join(f"{log.number}: {log.first}–{log.last}" for log in one.logs) or "–"
        segments.add_row(
            str(one.number), f"{one.frames:,}", f"{one.messages:,}", output.size(one.bytes), one.state, offsets,
            output.moment(one.oldest_us), output.moment(one.newest_us),
        )  # fmt: skip
    output.console().print(segments)


# --- verify ---


@app.command()
def verify(path: Dir, as_json: Json = False) -> None:
    """Check every byte of a journal, and name what is damaged: segment, byte range and messages.

    It changes nothing, and may run while the journal is in use; then it looks up to the last synced commit.

    Exits with 0 if nothing is wrong (losses that are already recorded are listed, and are no error), with 1 if there is damage, and
    with 2 if DIR is not a journal.

    [bold]Examples[/bold]

      penstock journal verify ./queue

      penstock journal verify ./queue --json | jq '.damage[] | {segment, position, end, spans}'
    """
    with output.answering(path):
        with output.progress_over(_segment_bytes(_existing(path)), "Verifying") as progress:
            found = check(path, progress=progress)
        if as_json:
            output.print_json(_plain(found))
        else:
            _print_checkup(found, path)
    raise typer.Exit(output.FINE if found.sound else output.DAMAGED)


def _plain(found: Checkup) -> dict[str, Any]:
    """A checkup as JSON has it, the verdict first."""
    fields = msgspec.structs.asdict(found)
    return {
        "sound": found.sound,
        **fields,
        "mark": found.mark._asdict() if found.mark else None,
        "lost": [_span(*span) for span in found.lost],
        "unrecorded": [_span(*span) for span in found.unrecorded],
        "damage": [_plain_finding(finding) for finding in found.damage],
        "notes": [_plain_finding(finding) for finding in found.notes],
    }


def _plain_finding(finding: Finding) -> dict[str, Any]:
    return {**msgspec.structs.asdict(finding), "spans": [_span(*span) for span in finding.spans]}


def _span(log: int, first: int, last: int) -> dict[str, int]:
    return {"log": log, "first": first, "last": last}


def _print_checkup(found: Checkup, path: Path) -> None:
    console = output.console()
    if found.holder:
        console.print(f"Held by {escape(found.holder)}: looked at what is synced, up to the mark.")
    if found.damage:
        console.print(_findings("Damage", found.damage))
    if found.notes:
        console.print(_findings("Left by a crash; the next opening deals with it", found.notes))
    if found.lost or found.gone:
        known = output.table(
            "Known losses, recorded", "log", "offsets", "messages", right=("log", "messages")
        )
        for log, first, last in found.lost:
            known.add_row(str(log), f"{first}–{last}", f"{last - first + 1:,}")
        for number in found.gone:
            known.add_row("–", f"segment {number} is gone", "–")
        console.print(known)
    looked = (
        f"{len(found.segments)} segments, {found.frames:,} frames, {found.messages:,} messages, {output.size(found.bytes)} "
        f"in {found.seconds:.2f} s"
    )
    if found.sound:
        console.print(f"[green]Sound[/green]: {looked}.")
    else:
        console.print(f"[red]Damaged[/red]: {len(found.damage)} findings in {looked}.")
        by_hand = [finding.file for finding in found.damage if finding.what == FOREIGN]
        if by_hand:
            console.print(f"What to do first: move away what is foreign ({escape(', '.join(by_hand))}), or use the version that wrote it", soft_wrap=True)  # fmt: skip
        if len(by_hand) < len(found.damage):
            console.print(
                f"What to do: penstock journal repair {escape(output.argument(path))}", soft_wrap=True
            )


def _findings(title: str, findings: list[Finding]) -> Any:
    made = output.table(title, "what", "file", "bytes", "messages", "which", "why", right=("messages",))
    for finding in findings:
        which = "\n".join(f"log {log}: {first}–{last}" for log, first, last in finding.spans)
        where = f"{finding.position}–{finding.end}" if finding.end else "–"
        made.add_row(
            finding.what, escape(_short(finding.file)), where, f"{finding.messages:,}", which or "–", escape(finding.detail)
        )  # fmt: skip
    return made


def _short(file: str) -> str:
    """A file's name without the zeros in front: `7.segment`."""
    return file.lstrip("0") if file[:1].isdigit() else file or "–"


# --- repair ---


@app.command()
def repair(
    path: Dir,
    yes: Annotated[
        bool, typer.Option("--yes", help="Really do it. Without it, only say what would be done.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Mend a damaged journal that nobody has open. Does nothing without --yes.

    Damaged segments are written again without their bad ranges, lost messages are recorded as lost, summaries and the mark are made
    again. A copy of everything that is removed is kept in DIR/quarantine. It may be interrupted and run again.

    Exits with 0 if nothing is wrong (any more), with 1 if there is damage and --yes was missing, and with 2 if DIR is not a journal, needs a
    hand, or is in use though there is something to do.

    [bold]Examples[/bold]

      penstock journal repair ./queue          [dim]# what would be done[/dim]

      penstock journal repair ./queue --yes
    """
    with output.answering(path):
        with output.progress_over(_segment_bytes(_existing(path)), "Verifying") as progress:
            found = mend(path, yes=yes, progress=progress)
        if as_json:
            output.print_json(_plain_repair(found))
        else:
            _print_repair(found, path)
    raise typer.Exit(output.DAMAGED if found.needed else output.FINE)


def _plain_repair(found: Repair) -> dict[str, Any]:
    return {
        "needed": found.needed,
        **msgspec.structs.asdict(found),
        "before": _plain(found.before),
        "after": _plain(found.after) if found.after else None,
    }


def _print_repair(found: Repair, path: Path) -> None:
    console = output.console()
    if not found.plan:
        console.print("[green]Nothing to repair.[/green]")
        return
    steps = output.table(
        "Done" if found.done else "To be done", "step", "file", "bytes", "", right=("bytes",)
    )
    for action in found.plan:
        steps.add_row(
            action.what, escape(_short(action.file)), f"{action.bytes:,}" if action.bytes else "–", escape(action.detail)
        )  # fmt: skip
    console.print(steps)
    for name in found.kept:
        console.print(f"kept: quarantine/{escape(name)}", soft_wrap=True)
    if found.after is not None:
        _print_checkup(found.after, path)
    else:
        console.print(
            f"Nothing was changed. To do it: penstock journal repair --yes {escape(output.argument(path))}",
            soft_wrap=True,
        )


# --- dump ---


@app.command()
def dump(
    path: Dir,
    log: Annotated[int | None, typer.Option(help="Only rows of this log.", min=0)] = None,
    kind: Annotated[str | None, typer.Option(help=f"Only rows of this kind: {', '.join(k.name for k in KINDS.values())}.")] = None,
    offset: Annotated[int, typer.Option("--from", help="Only rows at this offset of their log or later.", min=0, metavar="OFFSET")] = 0,
    after: Annotated[int, typer.Option(help="Only commits after this sequence number.", min=0, metavar="SEQUENCE")] = 0,
    limit: Annotated[int | None, typer.Option(help="Stop after so many rows.", min=0)] = None,
    payload: Annotated[bool, typer.Option("--payload/--no-payload", help="Show payloads, or only how long they are.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row and line; bytes as base64.")] = False,
) -> None:  # fmt: skip
    """Print the rows of a journal, oldest first, up to the last synced commit.

    It streams: a journal of any size may be dumped, and `| head` is fine. What is damaged is skipped, said on stderr, and makes it exit
    with 1; without a good mark, only sealed segments are shown. Whether a whole segment is missing, only `verify` can tell.

    [bold]Examples[/bold]

      penstock journal dump ./queue --log 1 --from 1000 --limit 20

      penstock journal dump ./queue --kind settlements --json | jq .offset

      penstock journal dump ./queue --no-payload | less -S
    """
    with output.answering(path):
        known = {k.name: k for k in KINDS.values()}
        if kind is not None and kind not in known:
            raise InvalidArgument(f"there are no rows of kind {kind!r}; there are {', '.join(known)}")
        wanted = Wanted(log, known[kind] if kind else None, offset, after, limit, payload)
        skipped = print_rows(_existing(path), wanted, as_json=as_json)
        for what in skipped:
            output.warn(f"penstock: {what}")
    raise typer.Exit(output.DAMAGED if skipped else output.FINE)
