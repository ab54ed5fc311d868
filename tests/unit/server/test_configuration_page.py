"""The page about configuration has other settings or defaults than the code."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.server.settings import PANELS, SETTINGS, load

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text("utf-8")
SETTINGS_PART = PAGE.partition("\n## Settings\n")[2].partition("\n## ")[0]


def shown(value: object) -> str:
    if value in (None, "", []):
        return "–"
    if isinstance(value, bool):
        return "`on`" if value else "`off`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def test_the_page_has_other_settings_or_defaults_than_the_code() -> None:
    told = re.findall(r"^\| `(\w+)` \| (\S+) \|", SETTINGS_PART, re.MULTILINE)
    defaults = load()
    assert told == [(name, shown(defaults.shown(name))) for name in SETTINGS]


def test_the_page_has_other_panels_than_the_code() -> None:
    assert re.findall(r"^### (.+)$", SETTINGS_PART, re.MULTILINE) == list(PANELS)


def test_a_default_that_differs_is_not_the_one_of_the_code() -> None:
    rows = re.findall(
        r"^\| (`.+?`) \| .+? \| (.+?) \| .+ \|$", PAGE.partition("\n## Where a default")[2], re.MULTILINE
    )
    assert rows
    for names, here in rows:
        for name in re.findall(r"`(\w+)`", names):
            default = shown(load().shown(name))
            assert default == {"none": "–", "1 MiB": f"`{1 << 20}`"}.get(here, here), name
