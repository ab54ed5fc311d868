"""Make the threaded twin of the asyncio API: `python tools/twin.py` writes it, `--check` only compares.

The source is `aio.py`; the twin is `sync.py` beside it, committed. Where the two differ in more than
words, they call a helper of `pauses_aio` or `pauses`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

BROKER: Final = Path(__file__).parents[1] / "src" / "penstock" / "broker"
SOURCE: Final = BROKER / "aio.py"
TWIN: Final = BROKER / "sync.py"

HEAD: Final = '''"""The API for threads: the objects that a user holds, each a thin cover over the port.

Made from `aio` by `tools/twin.py`: change that one, and run it.
"""
'''

WORDS: Final = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bpauses_aio\b", "pauses"),
)


def _waited(code: str) -> str:
    """Make what follows an `await` wait: of a ticket the `get` becomes a `wait`, anything else is a plain call."""
    end = depth = 0
    while end < len(code) and (
        depth or code[end] in "(.[" or code[end].isidentifier() or code[end].isdigit()
    ):
        depth += (code[end] in "([{") - (code[end] in ")]}")
        end += 1
    expression = code[:end]
    return expression.removesuffix(".get()") + ".wait()" * expression.endswith(".get()") + code[end:]


def twin_of(source: str) -> str:
    """Return the threaded twin of asyncio source."""
    body = source.split('"""', 2)[2].lstrip("\n")
    for pattern, replacement in WORDS:
        body = re.sub(pattern, replacement, body)
    first, *awaited = body.split("await ")
    body = first + "".join(map(_waited, awaited))
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TWIN), "-"]
    return subprocess.run(
        command, input=HEAD + "\n" + body, capture_output=True, text=True, check=True
    ).stdout


def main() -> None:
    """Write the twin, or say that it differs."""
    made = twin_of(SOURCE.read_text())
    if "--check" not in sys.argv[1:]:
        TWIN.write_text(made)
    elif TWIN.read_text() != made:
        sys.exit(f"{TWIN.name} is not what tools/twin.py makes of {SOURCE.name}: run it")


if __name__ == "__main__":
    main()
