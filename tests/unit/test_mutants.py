"""The list of mutants fits the source: each would be planted in one place, and its tests are there."""

from __future__ import annotations

import ast
import shlex

import pytest

from tests.mutants.run import KILLED, ROOT, Mutant, load

MUTANTS = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_mutant_stands_once_in_its_file(mutant: Mutant) -> None:
    text = (ROOT / "src/penstock" / mutant.file).read_text()
    assert text.count(mutant.old) == 1, "change `old` and `new` with the code, or take another fault"
    assert mutant.new != mutant.old
    ast.parse(text.replace(mutant.old, mutant.new))
    paths = [word for word in shlex.split(mutant.tests) if word.startswith("tests/")]
    assert paths
    assert all((ROOT / path.split("::")[0]).exists() for path in paths)


def test_all_mutants_were_killed_under_names_of_their_own() -> None:
    killed = [line.split()[0] for line in KILLED.read_text().splitlines()[1:]]
    assert killed == [one.name for one in MUTANTS]
