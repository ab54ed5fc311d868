"""Who is calling, and what they may do.

A caller shows a token (``Authorization: Bearer …``), signed by one of the server's `keys`. Its claims are all there is to an account: nothing is
stored, and whoever has the key makes accounts (`penstock token`).

    claim           meaning                                                              without it
    ─────           ───────                                                              ──────────
    exp             when it ends, in seconds since 1970; to the second, without leeway   refused
    nbf, iat        not before; some seconds of leeway, for clocks that differ           any time
    sub             who it is, for the log; with the namespaces, who is bounded as one   a digest of the token, for the log
    aud, iss        compared with what is configured; an aud where none is: refused      refused, where one is configured
    namespaces      a list of names and patterns; * stands for any characters            ["default"]
    permissions     a list of publish, consume, admin, or * for all three                ["publish", "consume"]
    deny            {"namespaces": [...], "permissions": [...]}, the same lists          nothing is denied

What always holds:

- **Deny wins.** A namespace that is denied is closed altogether, whatever else the token says; a permission that is denied is denied everywhere.
- **What is not understood is refused**: a claim of these of another shape, a permission that does not exist, a pattern that could match no
  name. A token that says less than its maker meant must not pass for one that says more; other claims are nobody's business here.
- **Permissions do not imply one another.** ``admin`` is about queues as such (make, alter, purge, delete); it neither publishes nor consumes. Queues
  are made on first use, so whoever publishes or consumes may make them too; to alter, purge and delete them is left to ``admin``.
- `Forbidden` says what the caller lacks, from its token alone: whether a namespace exists is not asked, and not told.
- A verified token is remembered until it expires, so that the next check is a look-up. A token that is refused is not remembered.

Without keys everybody is `ANYBODY`, who may do everything; so the server listens on loopback only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NoReturn, get_args

import msgspec

from penstock import argument
from penstock.clock import SECOND_US, Clock
from penstock.errors import Forbidden, Unauthorized
from penstock.limits import (
    CLAIM_PATTERNS_MAX,
    NAME_CHARS_MAX,
    SUBJECT_CHARS_MAX,
    TOKEN_EXPIRY_S_MAX,
    TOKEN_LEEWAY_S,
    TOKENS_REMEMBERED_MAX,
)
from penstock.server.keys import Keys

Permission = Literal["publish", "consume", "admin"]

PERMISSIONS: Final[frozenset[str]] = frozenset(get_args(Permission))
PERMISSIONS_DEFAULT: Final = ("publish", "consume")
NAMESPACES_DEFAULT: Final = ("default",)

ANY: Final = "*"

# What a name may hold, and the wildcard. A pattern that could match no name is a mistake, and not one to be passed over.
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9._:@*-]*", re.ASCII)
_BEARER: Final = re.compile(r"bearer +(\S+)", re.ASCII | re.IGNORECASE)


class Names(msgspec.Struct, frozen=True):
    """A set of names: some as they are, others by patterns in which ``*`` stands for any characters, also none.

    >>> names = Names.of(["tenant-a", "team-*"])
    >>> "tenant-a" in names, "team-7" in names, "tenant-b" in names
    (True, True, False)
    """

    exact: frozenset[str]
    patterns: tuple[tuple[str, ...], ...]  # split at the wildcards: at least two parts

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        every = list(patterns)
        return cls(
            frozenset(one for one in every if ANY not in one),
            tuple(tuple(one.split(ANY)) for one in every if ANY in one),
        )

    def __contains__(self, name: str) -> bool:
        if name in self.exact:
            return True
        # No generator: every request asks, and mostly there is no pattern.
        for parts in self.patterns:  # noqa: SIM110
            if _matches(parts, name):
                return True
        return False

    @property
    def is_everything(self) -> bool:
        return any(not any(parts) for parts in self.patterns)

    @property
    def is_empty(self) -> bool:
        return not self.exact and not self.patterns


def _matches(parts: tuple[str, ...], name: str) -> bool:
    """Whether the parts stand in a name one behind the other: taking each at its first place is enough, and linear."""
    first, last = parts[0], parts[-1]
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in parts[1:-1]:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class Caller(msgspec.Struct, frozen=True):
    """Somebody with a valid token, and what it allows.

    >>> caller = Caller.of("billing", namespaces=["team-*"], denied_namespaces=["team-secret"])
    >>> caller.may("team-a", "publish"), caller.may("team-a", "admin"), caller.may("team-secret", "publish")
    (True, False, False)
    >>> caller.require("team-a", "admin")
    Traceback (most recent call last):
    ...
    penstock.errors.Forbidden: the token of 'billing' does not permit admin, which this takes; ask for one with that permission
    """

    subject: str
    allowed: Names
    denied: Names
    permissions: frozenset[str]
    is_admin_of_all: bool
    """Admin of every namespace, those included that do not exist yet."""
    party: str
    """Who is bounded as one, and may end the waits of one another: those of one name (if they have one) in the same namespaces. Two tenants share none, whatever they are called."""
    until_us: int | None = None
    """When the token expires."""

    @classmethod
    def of(
        cls,
        subject: str,
        *,
        namespaces: Iterable[str] = NAMESPACES_DEFAULT,
        permissions: Iterable[str] = PERMISSIONS_DEFAULT,
        denied_namespaces: Iterable[str] = (),
        denied_permissions: Iterable[str] = (),
        is_named: bool = True,
        until_us: int | None = None,
    ) -> Caller:
        """A caller by the lists of its token, which are not checked here."""
        namespaces, denied_namespaces = list(namespaces), list(denied_namespaces)
        allowed, denied = Names.of(namespaces), Names.of(denied_namespaces)
        granted = _granted(permissions) - _granted(denied_permissions)
        return cls(
            subject,
            allowed,
            denied,
            granted,
            is_admin_of_all="admin" in granted and allowed.is_everything and denied.is_empty,
            party=_party(subject if is_named else None, namespaces, denied_namespaces),
            until_us=until_us,
        )

    def sees(self, namespace: str) -> bool:
        """Whether a namespace is any of this caller's business."""
        return namespace in self.allowed and namespace not in self.denied and bool(self.permissions)

    def may(self, namespace: str, permission: Permission) -> bool:
        """Whether something is permitted in a namespace."""
        return permission in self.permissions and namespace in self.allowed and namespace not in self.denied

    def require(self, namespace: str, *any_of: Permission) -> None:
        """Raise `Forbidden` unless one of these permissions is held in a namespace; with none, unless it may be seen."""
        for one in any_of:
            if self.may(namespace, one):
                return
        if not any_of and self.sees(namespace):
            return
        whose = f"the token of {self.subject!r}"
        if not self.sees(namespace):
            raise Forbidden(
                f"{whose} is not for the namespace {argument.quoted(namespace)}; ask for one with that namespace"
            )
        raise Forbidden(
            f"{whose} does not permit {' or '.join(any_of)}, which this takes; ask for one with that permission"
        )

    def namespaces(self, known: Iterable[str]) -> list[str]:
        """Of these namespaces, those that the caller may see."""
        return [name for name in known if self.sees(name)]


def _party(name: str | None, namespaces: Iterable[str], denied: Iterable[str]) -> str:
    """A token that was renewed says the same of these, so it is the same party."""
    said = msgspec.json.encode([name, sorted(set(namespaces)), sorted(set(denied))])
    return hashlib.sha256(said).hexdigest()[:32]


def _granted(permissions: Iterable[str]) -> frozenset[str]:
    given = frozenset(permissions)
    return PERMISSIONS if ANY in given else given


ANYBODY: Final = Caller.of("anybody", namespaces=[ANY], permissions=[ANY])
"""Whoever calls a server without keys: everything is permitted."""


class Accounts:
    """Tells callers by what they show.

    >>> from penstock.clock import ManualClock
    >>> from penstock.server.keys import Signer
    >>> secret, clock = "0123456789abcdef0123456789abcdef", ManualClock()
    >>> accounts = Accounts(Keys.from_secret(secret), clock=clock)
    >>> ends = clock.now_us() // 1_000_000 + 3600
    >>> token = Signer.from_secret(secret).sign({"sub": "billing", "exp": ends, "namespaces": ["tenant-a"]})
    >>> accounts.caller(f"Bearer {token}").may("tenant-a", "publish")
    True
    >>> clock.advance(seconds=3600)
    >>> accounts.caller(f"Bearer {token}")
    Traceback (most recent call last):
    ...
    penstock.errors.Unauthorized: the token has expired; ask for a new one
    """

    def __init__(
        self, keys: Keys | None, *, clock: Clock, audience: str | None = None, issuer: str | None = None
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        # By the header as it usually comes, so that nothing is cut out of it: (who, until when).
        self._remembered: dict[str, tuple[Caller, int]] = {}

    def replace(self, keys: Keys) -> None:
        """Take other keys from now on. What the old ones signed is verified anew."""
        self._keys = keys
        self._remembered = {}

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything."""
        return self._keys is None

    def caller(self, authorization: str | None) -> Caller:
        """Who sent this ``Authorization`` header; raises `Unauthorized` if it does not say so."""
        if self._keys is None:
            return ANYBODY
        if authorization is None:
            raise Unauthorized(
                "there is no token; send one as `Authorization: Bearer …` (`penstock token` makes one)"
            )
        remembered = self._remembered.get(authorization)
        if remembered is None:
            bearer = _BEARER.fullmatch(authorization.strip(" \t"))
            if bearer is None:
                raise Unauthorized(
                    "the Authorization header does not hold a token; send `Authorization: Bearer …`"
                )
            return self.caller_by_token(bearer[1])
        caller, until_us = remembered
        if self._clock.now_us() >= until_us:
            del self._remembered[authorization]
            _refuse("has expired; ask for a new one")
        return caller

    def caller_by_token(self, token: str) -> Caller:
        """The same for a token by itself, as protocols other than HTTP carry it."""
        if self._keys is None:
            return ANYBODY
        # A token is remembered once, however its header was written: spaces must not fill the memory.
        shown = f"Bearer {token}"
        if shown in self._remembered:
            return self.caller(shown)
        caller, until_us = self._verified(self._keys, token)
        self._remember(shown, caller, until_us)
        return caller

    def _remember(self, shown: str, caller: Caller, until_us: int) -> None:
        if len(self._remembered) >= TOKENS_REMEMBERED_MAX:
            del self._remembered[
                next(iter(self._remembered))
            ]  # the oldest: it costs a verification when it comes back
        self._remembered[shown] = (caller, until_us)

    def _verified(self, keys: Keys, token: str) -> tuple[Caller, int]:
        claims = keys.payload(token)
        until_us = self._check_times(claims)
        self._check_parties(claims)
        return _caller(claims, token, until_us), until_us

    def _check_times(self, claims: Mapping[str, Any]) -> int:
        now_us = self._clock.now_us()
        if "exp" not in claims:
            _refuse("does not say when it expires; it needs an 'exp'")
        until_us = _moment_us(claims, "exp")
        if until_us <= now_us:
            _refuse("has expired; ask for a new one")
        for name in ("nbf", "iat"):
            if name in claims and _moment_us(claims, name) > now_us + TOKEN_LEEWAY_S * SECOND_US:
                _refuse(
                    f"is not valid yet, by its '{name}'; compare the clocks of who made it and of this server"
                )
        return until_us

    def _check_parties(self, claims: Mapping[str, Any]) -> None:
        audience = claims.get("aud")
        meant = [audience] if isinstance(audience, str) else audience
        if "aud" in claims and (
            not isinstance(meant, list) or not all(isinstance(one, str) for one in meant)
        ):
            _refuse("has an 'aud' that is neither a text nor a list of texts")
        if self._audience is None and "aud" in claims:
            _refuse(
                "is for an audience ('aud'), and this server is not configured to be any; configure its audience"
            )
        if self._audience is not None and self._audience not in (meant or ()):
            _refuse(f"is not for this server: its 'aud' does not name {self._audience!r}")
        if self._issuer is not None and claims.get("iss") != self._issuer:
            _refuse(f"is not from {self._issuer!r} by its 'iss'")


# --- claims ---


def _refuse(what: str) -> NoReturn:
    raise Unauthorized(f"the token {what}")


def _moment_us(claims: Mapping[str, Any], name: str) -> int:
    seconds = argument.number(claims[name])
    if seconds is None:
        _refuse(f"has an '{name}' that is no number of seconds since 1970")
    if not 0 <= seconds <= TOKEN_EXPIRY_S_MAX:
        _refuse(f"has an '{name}' out of any time; it is in seconds since 1970, not milliseconds")
    return int(seconds * SECOND_US)


def _caller(claims: Mapping[str, Any], token: str, until_us: int) -> Caller:
    denied = claims.get("deny", {})
    if not isinstance(denied, dict) or not denied.keys() <= {"namespaces", "permissions"}:
        _refuse('has a \'deny\' that is not {"namespaces": […], "permissions": […]}')
    return Caller.of(
        _subject(claims, token),
        namespaces=_patterns(claims.get("namespaces", [*NAMESPACES_DEFAULT]), "namespaces"),
        permissions=_permissions(claims.get("permissions", [*PERMISSIONS_DEFAULT]), "permissions"),
        denied_namespaces=_patterns(denied.get("namespaces", []), "deny.namespaces"),
        denied_permissions=_permissions(denied.get("permissions", []), "deny.permissions"),
        is_named="sub" in claims,
        until_us=until_us,
    )


def _subject(claims: Mapping[str, Any], token: str) -> str:
    if "sub" not in claims:
        return f"token-{hashlib.sha256(token.encode()).hexdigest()[:12]}"
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS_MAX or not subject.isprintable():
        _refuse(f"has a 'sub' that is not 1 to {SUBJECT_CHARS_MAX} printable characters")
    return subject


def _patterns(value: object, claim: str) -> list[str]:
    found = _texts(value, claim)
    if len(found) > CLAIM_PATTERNS_MAX:
        _refuse(f"has {len(found)} entries in '{claim}', above {CLAIM_PATTERNS_MAX}; use wildcards")
    for one in found:
        if len(one) > NAME_CHARS_MAX or _PATTERN.fullmatch(one) is None:
            _refuse(
                f"has {argument.quoted(one)} in '{claim}', which is no name of a namespace, nor one with wildcards (*)"
            )
    return found


def _permissions(value: object, claim: str) -> list[str]:
    found = _texts(value, claim)
    for one in found:
        if one not in PERMISSIONS and one != ANY:
            _refuse(
                f"has {argument.quoted(one)} in '{claim}'; there are publish, consume and admin, and * for all"
            )
    return found


def _texts(value: object, claim: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        _refuse(f"has '{claim}' that is not a list of texts")
    return value
