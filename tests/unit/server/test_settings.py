"""Where a setting comes from, what it may be, and what is said when it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidArgument
from penstock.policy import Policy
from penstock.server import dotenv
from penstock.server.keys import keys_of
from penstock.server.quantity import Address
from penstock.server.serving import tls_of
from penstock.server.settings import SETTINGS, SYNONYMS, Settings, load

ROOT = Path(__file__).parents[3]


def from_toml(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    return load(toml_file=path)


# --- sources ---


def test_a_later_source_wins_over_an_earlier_one(tmp_path: Path) -> None:
    toml, env = tmp_path / "penstock.toml", tmp_path / ".env"
    toml.write_text('durability = "os"\nlog_level = "debug"\nnode_id = 1\nmax_retries = 1\n')
    env.write_text("PENSTOCK_LOG_LEVEL=warn\nPENSTOCK_NODE_ID=2\nPENSTOCK_MAX_RETRIES=2\n")
    found = load({"max_retries": "4"}, {"PENSTOCK_NODE_ID": "3", "PENSTOCK_MAX_RETRIES": "3"}, env, toml)
    assert (found.storage, found.durability, found.log_level, found.node_id, found.max_retries) == ("disk", "os", "warn", 3, 4)  # fmt: skip
    kinds = [
        found.sources[name].kind for name in ("storage", "durability", "log_level", "node_id", "max_retries")
    ]
    assert kinds == ["default", "file", ".env", "environment", "flag"]
    assert str(found.sources["log_level"]) == f"PENSTOCK_LOG_LEVEL ({env}, line 1)"
    assert str(found.sources["node_id"]) == "PENSTOCK_NODE_ID (environment)"
    assert str(found.sources["durability"]) == f"durability ({toml})"


def test_a_flag_that_was_not_given_hides_a_variable() -> None:
    found = load({"node_id": None, "trace": None}, {"PENSTOCK_NODE_ID": "3"})
    assert found.node_id == 3


def test_an_empty_variable_is_a_value() -> None:
    found = load({}, {"PENSTOCK_JWT_SECRET": "", "PENSTOCK_NODE_ID": "", "PENSTOCK_DEFAULT_TTL": ""})
    assert (found.jwt_secret, found.node_id, found.default_ttl) == (None, 0, None)
    assert found.sources["node_id"].kind == "default"


def test_names_of_mqueue_and_gomq_set_the_same_settings(tmp_path: Path) -> None:
    """As in their configuration tables; Go's file has no quotes."""
    env = tmp_path / ".env"
    env.write_text(
        'REDIS_ADDRS=redis:6379\nREDIS_PASSWORD=""\nWAL_DIR=/data/wal\nMQUEUE_NODE_ID=1\nLOG_LEVEL=info\n'
        f"LOG_ENCODING=json\nJWT_SECRET={SECRET}\nNAMESPACE_QUOTAS=tenant-a:1000,tenant-b:500\nBUFFER_TTL=1m\n"
    )
    gomq = {
        "GOMQ_STORAGE": "memory", "GOMQ_DATA_DIR": "./data", "GOMQ_DEFAULT_TTL": "24h", "GOMQ_MAX_MESSAGE_SIZE": "1MB",
        "GOMQ_MAX_QUEUE_DEPTH": "100000", "GOMQ_MAX_RETRIES": "3", "GOMQ_LISTEN_ADDR": ":5672",
    }  # fmt: skip
    found = load({}, gomq, env)
    assert (found.node_id, found.log_encoding, found.jwt_secret, found.wal_dir) == (1, "json", SECRET, Path("/data/wal"))  # fmt: skip
    assert (found.storage, found.max_message_size, found.default_ttl) == ("memory", 10**6, 86_400.0)
    assert (found.max_queue_depth, found.max_retries, found.listen_addr.port) == (100_000, 3, 5672)
    assert str(found.sources["jwt_secret"]) == f"JWT_SECRET ({env}, line 7)"
    assert str(found.sources["storage"]) == "GOMQ_STORAGE (environment)"
    assert [warning.partition(" ")[0] for warning in found.warnings] == ["REDIS_ADDRS", "WAL_DIR", "BUFFER_TTL", "GOMQ_LISTEN_ADDR"]  # fmt: skip


def test_prefixed_names_win_wherever_they_are(tmp_path: Path) -> None:
    toml, env = tmp_path / "penstock.toml", tmp_path / ".env"
    toml.write_text("node_id = 1\n")
    env.write_text("PENSTOCK_LOG_LEVEL=warn\nMQUEUE_NODE_ID=2\nLOG_ENCODING=json\n")
    variables = {"LOG_LEVEL": "of another program", "LOG_ENCODING": "console", "PENSTOCK_MAX_RETRIES": "", "GOMQ_MAX_RETRIES": "7"}  # fmt: skip
    found = load({}, variables, env, toml)
    assert (found.log_level, found.node_id, found.log_encoding, found.max_retries) == ("warn", 2, "console", 7)  # fmt: skip


def test_wrong_value_of_a_plain_name_names_it_and_the_prefixed_one() -> None:
    with pytest.raises(InvalidArgument) as raised:
        load({}, {"LOG_LEVEL": "trace"})
    assert str(raised.value) == "LOG_LEVEL (environment) is 'trace'; give one of debug, info, warn, warning, error; or set PENSTOCK_LOG_LEVEL, which wins"  # fmt: skip


def test_a_port_replaces_the_host_or_the_other_way_round() -> None:
    variables = {"PENSTOCK_HTTP_ADDR": "192.0.2.7:1"}
    assert load({"port": "9000"}, variables).http_addr == Address("192.0.2.7", 9000)
    assert load({"host": "::1"}, variables).http_addr == Address("::1", 1)
    assert str(load({"host": "::1", "port": "2"}, variables).http_addr) == "[::1]:2"


def test_tables_and_dashes_of_toml_are_not_understood(tmp_path: Path) -> None:
    found = from_toml(
        tmp_path,
        'data-dir = "/srv"\n[tls]\ncert = "c.pem"\nkey = "k.pem"\n[namespace_quotas]\ntenant-a = 1000\n"tenant-b" = "500"\n'
        '[http]\naddr = "[::1]:80"\n[log]\nlevel = "error"\n',
    )
    assert (found.data_dir, found.tls_cert, found.tls_key) == (Path("/srv"), Path("c.pem"), Path("k.pem"))
    assert found.namespace_quotas == "tenant-a:1000,tenant-b:500"
    assert (found.http_addr, found.log_level) == (Address("::1", 80), "error")


def test_the_table_and_the_struct_differ() -> None:
    fields = [found.name for found in msgspec.structs.fields(Settings)]
    assert fields == [*SETTINGS, "sources", "files", "warnings"]
    for name, row in SETTINGS.items():
        if row.default is not None:
            given = ",".join(row.default) if isinstance(row.default, tuple) and not isinstance(row.default, Address) else row.default  # fmt: skip
            assert row.parse(given) == row.default, name


# --- values ---


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("default_ttl", "24h", 86_400.0),
        ("default_ttl", "1h30m", 5400.0),
        ("default_ttl", "500ms", 0.5),
        ("default_ttl", "90", 90.0),
        ("default_ttl", 90, 90.0),
        ("default_ttl", "none", None),
        ("max_queue_depth", "100_000", 100_000),
        ("max_queue_depth", "unlimited", None),
        ("max_message_size", "1MB", 1_000_000),
        ("max_message_size", "1 MiB", 1 << 20),
        ("max_message_size", "64k", 64_000),
        ("max_message_size", 65536, 65_536),
        ("metrics", "off", False),
        ("metrics", True, True),
        ("http_addr", ":8080", Address("", 8080)),
        ("http_addr", "*:8080", Address("", 8080)),
        ("log_level", "WARN", "warn"),
        ("redis_addrs", "a:1, b:2", ("a:1", "b:2")),
        ("commit_interval_ms", "2.5", 2.5),
        ("data_dir", "~/queue", Path("~/queue").expanduser()),
    ],
)
def test_a_value_is_read_as_another(name: str, given: Any, value: Any) -> None:
    assert getattr(load({name: given}), name) == value


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("storage", "tape"),
        ("durability", "fsync"),
        ("default_ttl", "soon"),
        ("default_ttl", "-1"),
        ("default_ttl", "0"),
        ("default_ttl", "1e400"),
        ("default_ttl", "99999999h"),
        ("max_queue_depth", "0"),
        ("max_queue_depth", "1.5"),
        ("max_queue_depth", "9" * 5000),
        ("max_queue_depth", True),
        ("max_message_size", "17MiB"),
        ("max_message_size", "lots"),
        ("node_id", "1024"),
        ("node_id", "-1"),
        ("metrics", "perhaps"),
        ("http_addr", "8080"),
        ("http_addr", "::1:8080"),
        ("http_addr", "host:99999"),
        ("http_addr", "host:"),
        ("commit_interval_ms", "0"),
        ("commit_interval_ms", "nan"),
        ("data_dir", "a\0b"),
        ("log_level", ["info"]),
        ("max_connections", "0"),
        ("namespace_quotas", "tenant-a"),
    ],
)
def test_a_wrong_value_is_taken_or_its_source_is_not_said(name: str, given: Any) -> None:
    with pytest.raises(InvalidArgument, match="; (give|the quota)"):
        load({name: given})
    if isinstance(given, str):
        with pytest.raises(InvalidArgument, match=rf"PENSTOCK_{name.upper()} \(environment\) is "):
            load({}, {f"PENSTOCK_{name.upper()}": given})


def test_shards_are_promised() -> None:
    with pytest.raises(
        InvalidArgument, match=r"PENSTOCK_STORAGE \(environment\): shards are not built yet; leave that out"
    ):
        load({}, {"PENSTOCK_STORAGE": "shards"})


@pytest.mark.parametrize("storage", [{}, {"GOMQ_STORAGE": "disk"}, {"PENSTOCK_STORAGE": "shards"}])
@pytest.mark.parametrize("name", ["DATABASE_URLS", "PENSTOCK_DATABASE_URLS"])
def test_database_urls_stop_the_start(name: str, storage: dict[str, str]) -> None:
    with pytest.raises(
        InvalidArgument, match=rf"^{name} \(environment\).*: shards are not built yet; leave that out"
    ) as raised:
        load({}, {name: f"postgresql://u:{SECRET}@h/d", **storage})
    assert SECRET not in str(raised.value)


def test_a_setting_of_what_is_not_built_is_silently_ignored() -> None:
    found = load({}, {"PENSTOCK_REDIS_ADDRS": "a:1", "PENSTOCK_LISTEN_ADDR": ":5672"})
    assert [warning.partition(" ")[0] for warning in found.warnings] == ["PENSTOCK_REDIS_ADDRS", "PENSTOCK_LISTEN_ADDR"]  # fmt: skip
    assert all("not built yet" in warning for warning in found.warnings)


def test_half_a_certificate_is_taken() -> None:
    with pytest.raises(InvalidArgument, match="--tls-cert is given without its other half; give --tls-key"):
        load({"tls_cert": "a"})
    with pytest.raises(InvalidArgument, match="contradict"):
        load({"tls_cert": "a", "tls_key": "b", "tls_self_signed": True})


def test_two_keys_are_taken() -> None:
    with pytest.raises(
        InvalidArgument, match=r"PENSTOCK_JWT_SECRET \(environment\) and --jwt-jwks contradict"
    ):
        load({"jwt_jwks": "a"}, {"PENSTOCK_JWT_SECRET": "x" * 32})


def test_the_settings_of_queues_are_another_policy() -> None:
    assert load().policy == Policy()
    found = load({"default_ttl": "1m", "max_queue_depth": "5", "max_retries": "0", "max_message_size": "10"})
    assert found.policy == Policy.of(ttl=60, max_depth=5, max_attempts=1, max_message_bytes=10)
    assert load({"max_retries": "none"}).policy.max_attempts is None


# --- names that nobody knows ---


def test_an_unknown_variable_is_not_noticed_or_ends_the_server() -> None:
    found = load({}, {"PENSTOCK_LOGLEVEL": "debug", "PENSTOCK_SERVICE_HOST": "10.0.0.1", "PENSTOCK_URL": "http://…", "PENSTOCK_CA": "ca.pem", "PATH": "/bin"})  # fmt: skip
    assert found.warnings == (
        "PENSTOCK_LOGLEVEL (environment) is no setting; did you mean PENSTOCK_LOG_LEVEL?",
        "PENSTOCK_SERVICE_HOST (environment) is no setting; `penstock config` shows those that there are",
    )


def test_unknown_variable_of_a_key_stops_the_start() -> None:
    with pytest.raises(InvalidArgument, match="PENSTOCK_JWT_PUBLIC_KEY_FILE .* did you mean"):
        load({}, {"PENSTOCK_JWT_PUBLIC_KEY_FILE": "key.pem"})


def test_an_unknown_key_of_the_file_is_not_noticed(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="there is no setting 'max_retry'; did you mean max_retries?"):
        from_toml(tmp_path, "max_retry = 3")
    with pytest.raises(InvalidArgument, match="there is no setting 'tls_crt'; did you mean tls_cert?"):
        from_toml(tmp_path, '[tls]\ncrt = "x"')


def test_an_unknown_flag_is_not_noticed() -> None:
    with pytest.raises(InvalidArgument, match="there is no setting 'durable'; did you mean durability?"):
        load({"durable": "x"})


def test_a_file_that_cannot_be_read_is_an_obscure_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        load(toml_file=tmp_path / "missing")
    with pytest.raises(InvalidArgument, match="is not TOML: .*line 1"):
        from_toml(tmp_path, "a = = 1")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match="is not UTF-8"):
        load(toml_file=tmp_path / "bytes")
    (tmp_path / "large").write_bytes(b"#" * (2 << 20))
    with pytest.raises(InvalidArgument, match="no configuration"):
        load(dotenv_file=tmp_path / "large")


# --- secrets ---

SECRET = "correct horse battery staple 0123"


def test_a_secret_is_shown(tmp_path: Path) -> None:
    found = load({}, {"PENSTOCK_JWT_SECRET": SECRET, "PENSTOCK_REDIS_PASSWORD": SECRET})
    assert found.jwt_secret == SECRET
    assert found.has_key
    assert [found.shown("jwt_secret"), found.shown("redis_password")] == ["***", "***"]
    with pytest.raises(InvalidArgument) as raised:
        from_toml(tmp_path, f'jwt_secret = ["{SECRET}"]')
    assert SECRET not in str(raised.value)


def test_a_secret_in_a_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "other").write_text("another")
    variables = {"PENSTOCK_JWT_SECRET_FILE": str(tmp_path / "secret")}
    assert load({}, variables).jwt_secret == SECRET
    assert load({"jwt_secret_file": str(tmp_path / "other")}, variables).jwt_secret == "another"
    assert from_toml(tmp_path, f'[jwt]\nsecret_file = "{tmp_path / "secret"}"').jwt_secret == SECRET
    with pytest.raises(InvalidArgument, match=r"PENSTOCK_JWT_SECRET_FILE \(environment\): .* cannot be read"):
        load({}, {"PENSTOCK_JWT_SECRET_FILE": str(tmp_path / "missing")})


def test_a_key_that_was_pasted_is_shown() -> None:
    pasted = "-----BEGIN PRIVATE KEY-----\\nMIIsecret\\n-----END PRIVATE KEY-----"
    found = load({"tls_cert": "c", "tls_key": pasted}, {"PENSTOCK_JWT_PUBLIC_KEY": pasted})
    for name in ("jwt_public_key", "tls_key"):
        assert found.shown(name) == "-----BEGIN PRIVATE KEY----- …"


@pytest.mark.parametrize("name", ["JWT_PUBLIC_KEY", "JWT_JWKS", "JWT_SECRET_FILE", "TLS_CERT", "TLS_KEY"])
@pytest.mark.parametrize("secret", [SECRET, "-----BEGIN X-----\nMII" + SECRET, "/" + SECRET * 10])
def test_secret_given_as_a_path_is_in_no_error(name: str, secret: str) -> None:
    def start(variables: dict[str, str]) -> None:
        found = load({}, variables)
        keys_of(found)
        tls_of(found)

    files = {"PENSTOCK_TLS_CERT": "/dev/null", "PENSTOCK_TLS_KEY": "/dev/null"} if "TLS" in name else {}
    with pytest.raises(InvalidArgument) as raised:
        start({**files, f"PENSTOCK_{name}": secret})
    assert f"PENSTOCK_{name} (environment)" in str(raised.value)
    assert SECRET not in str(raised.value)


# --- .env ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=1", "1"),
        ("export A=1", "1"),
        ("  A = 1  ", "1"),
        ("A=1 # one", "1"),
        ("A=1#one", "1#one"),
        ("A=# nothing", "# nothing"),
        ("A=", ""),
        ("A=\nB=2", ""),
        ("A='1 # one'", "1 # one"),
        ("A='$HOME \\n'", "$HOME \\n"),
        ('A="a\\nb\\t\\"\\\\\\$"', 'a\nb\t"\\$'),
        ('A="\\x"', "\\x"),
        ('A="first\nsecond" # key', "first\nsecond"),
        ("A='first\nsecond'", "first\nsecond"),
        ("A=two words", "two words"),
        ("A=it's", "it's"),
        ("\ufeffA=1\r\nB=2\r\n", "1"),
        ("# A=0\n\n\t\nA=1", "1"),
        ("A=0\nA=1", "1"),
        ("A=$B", "$B"),
    ],
)
def test_a_line_is_read_as_something_else(text: str, value: str) -> None:
    assert dotenv.parse(text)["A"].value == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A", "line 1 is not NAME=value"),
        ("\n\n1A=2", "line 3 is not NAME=value"),
        ("export", "line 1 is not NAME=value"),
        ("A='1", "line 1: A begins with ' and does not end"),
        ('\nA="1\\"', 'line 2: A begins with " and does not end'),
        ("A='1'2", "line 1: A has something behind its closing quote"),
        ("A='first\nsecond'\nB", "line 3 is not NAME=value"),
    ],
)
def test_a_line_that_is_none_is_skipped(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        dotenv.parse(text)


# --- the command ---


def config(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name not in SYNONYMS}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", "from penstock.cli import main; main()", "config", *arguments],
        env={**environment, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "140", **variables},
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_command_shows_something_else_than_is_in_force(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"PENSTOCK_JWT_SECRET={SECRET}\n")
    (tmp_path / "penstock.toml").write_text("[http]\naddr = '127.0.0.1:1'\n")
    done = config(tmp_path, "--json", "--no-trace", PENSTOCK_NODE_ID="7")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert list(shown) == list(SETTINGS)
    assert shown["trace"] == {
        "value": False,
        "source": "--trace",
        "default": True,
        "variable": "PENSTOCK_TRACE",
    }
    assert shown["node_id"]["source"] == "PENSTOCK_NODE_ID (environment)"
    assert shown["http_addr"]["value"] == "127.0.0.1:1"
    assert shown["http_addr"]["source"] == "http_addr (penstock.toml)"
    assert shown["jwt_secret"] == {"value": "***", "source": "PENSTOCK_JWT_SECRET (.env, line 1)", "default": None, "variable": "PENSTOCK_JWT_SECRET"}  # fmt: skip
    table = config(tmp_path, "--changed").stdout
    assert "***" in table
    assert SECRET not in table
    assert "durability" not in table


def test_the_command_hides_what_is_wrong(tmp_path: Path) -> None:
    done = config(tmp_path, "--port", "http")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--port is ':http'" in done.stderr
    done = config(tmp_path, PENSTOCK_HTTP_ADR=":1")
    assert done.returncode == 0
    assert "did you mean PENSTOCK_HTTP_ADDR?" in done.stderr
    done = config(tmp_path, PENSTOCK_JWT_SECRET="too short")
    assert (done.returncode, done.stdout) == (2, "")
    assert "PENSTOCK_JWT_SECRET (environment): " in done.stderr
