"""The pages about accounts and quotas have other numbers, claims or options than the code."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from penstock import limits
from penstock.cli import token
from penstock.server.accounts import Caller
from penstock.server.quotas import Limit

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
ACCOUNTS = (REFERENCE / "accounts.md").read_text("utf-8")
QUOTAS = (REFERENCE / "quotas.md").read_text("utf-8")


def section(page: str, heading: str) -> str:
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\b\d+\b", text)]


def test_the_pages_have_another_bound_than_the_code() -> None:
    assert numbers(section(ACCOUNTS, "Limits")) == [
        limits.TOKEN_BYTES_MAX,
        limits.TOKENS_REMEMBERED_MAX,
        limits.TOKEN_LEEWAY_S,
    ]
    for bound in (limits.SECRET_BYTES_MIN, limits.RSA_BITS_MIN, limits.KEYS_MAX):
        assert bound in numbers(section(ACCOUNTS, "Keys"))
    for told in (limits.TOKEN_LEEWAY_S, limits.SUBJECT_CHARS_MAX, limits.CLAIM_PATTERNS_MAX):
        assert told in numbers(section(ACCOUNTS, "Claims"))
    for days_or_seconds in (limits.SELF_SIGNED_DAYS, limits.TLS_LOOK_S):
        assert days_or_seconds in numbers(section(ACCOUNTS, "TLS"))
    assert numbers(section(QUOTAS, "Limits")) == [limits.QUOTA_NAMESPACES_MAX]


def test_an_option_of_the_command_is_not_explained() -> None:
    command = typer.main.get_command(token.app)
    options = {
        name for option in command.params for name in option.opts if name.startswith("-") and name != "--help"
    }
    told = set(re.findall(r"`(-[\w-]+)", section(ACCOUNTS, "`penstock token`")))
    assert options - {"--install-completion", "--show-completion"} == told


def test_a_setting_of_a_quota_is_not_explained() -> None:
    table = QUOTAS.partition("| setting |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)=", table, re.MULTILINE) == list(Limit.__struct_fields__)


def test_a_default_is_another_than_the_page_has() -> None:
    plain = Caller.of("x")
    assert plain.namespaces(["default", "other"]) == ["default"]
    assert '| `["default"]` |' in ACCOUNTS
    assert plain.permissions == {"publish", "consume"}
    assert '| `["publish", "consume"]` |' in ACCOUNTS
