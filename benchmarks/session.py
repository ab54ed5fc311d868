"""A run of benchmarks: the command line, a place on the disk, and what becomes of the answers."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks import picture, table
from benchmarks.answer import Answer

ROUNDS = 9
ROUNDS_QUICK = 5
QUICK = 10
RESULTS = Path("benchmarks/results")
PICTURES = Path("docs/images")


class Session:
    """What a question needs: how much work to do, and where."""

    def __init__(self, directory: Path, console: Console, *, quick: bool) -> None:
        self._directory = directory
        self.console = console
        self.quick = quick
        self.rounds = ROUNDS_QUICK if quick else ROUNDS

    def work(self, amount: int) -> int:
        """That much, or a tenth of it if it has to be quick."""
        return amount // QUICK if self.quick else amount

    def place(self, name: str) -> Path:
        """A directory that did not exist before."""
        path = self._directory / name
        path.mkdir()
        return path

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar for work that takes minutes; call what it gives with how much is done."""
        with Progress(console=self.console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)

    def clear(self) -> None:
        """Give the disk space back before the next question."""
        for path in self._directory.iterdir():
            shutil.rmtree(path)


Question = Callable[[Session], Iterable[Answer]]


def main(
    name: str, title: str, questions: Mapping[str, Question], arguments: Sequence[str] | None = None
) -> int:
    """Ask the questions; 0, whether or not the targets are met: a noisy machine is not a mistake."""
    options = _parser(name, title, questions).parse_args(arguments)
    console = Console()
    chosen = options.only or list(questions)
    answers: list[Answer] = []
    # In the current directory, not in /tmp, which may be in memory.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as directory:
        session = Session(Path(directory), console, quick=options.quick)
        for each in chosen:
            console.print(f"[dim]{each} …[/dim]", highlight=False)
            answers += questions[each](session)
            session.clear()
    table.show(title, answers, console)
    data, image = options.json or RESULTS / f"{name}.json", _picture_path(name, options)
    _write_json(data, answers, session)
    picture.draw(title, answers, image)
    console.print(f"wrote {data} and {image}", highlight=False)
    return 0


def _parser(name: str, title: str, questions: Mapping[str, Question]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=f"Benchmark: {title}.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument(
        "--only", action="append", choices=list(questions), metavar="NAME",
        help=f"ask only this question; may be repeated: {', '.join(questions)}",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"instead of {RESULTS}/{name}.json")
    parser.add_argument(
        "--png", type=Path, metavar="FILE",
        help=f"instead of {PICTURES}/{name}-benchmarks.png (of {RESULTS}/ with --quick or --only)",
    )  # fmt: skip
    return parser


def _picture_path(name: str, options: argparse.Namespace) -> Path:
    """The picture in the docs shows whole runs only."""
    if options.png is not None:
        return Path(options.png)
    return (RESULTS if options.quick or options.only else PICTURES) / f"{name}-benchmarks.png"


def _write_json(path: Path, answers: Sequence[Answer], session: Session) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "python": sys.version.split()[0],
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "quick": session.quick,
        "rounds": session.rounds,
        "answers": [
            {**msgspec.to_builtins(answer), "score": answer.score, "met": answer.met} for answer in answers
        ],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
