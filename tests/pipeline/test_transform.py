"""A user's transform: from a log to Parquet, started again, stopped, and what is said when the file is wrong."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import InvalidArgument, PenstockError, QueueNotFound
from penstock.pipeline.stopping import Stop
from penstock.pipeline.transform import Ran, run

UDF = """
    from pyspark.sql.functions import udf
    import beside

    @udf("string", useArrow=False)
    def shout(payload):
        if payload == b"4":
            raise ValueError("no fours")
        return beside.louder(payload.decode())

    def transform(messages):
        return messages.select("offset", shout("payload").alias("payload"))
"""


def publish(data: Path, *numbers: int) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish_many([str(number).encode() for number in numbers])


def written(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def to_parquet(spark: SparkSession, file: Path, data: Path, **settings: Any) -> Ran:
    return run(
        spark,
        file,
        source=data,
        topic="orders",
        **{"parquet": data.parent / "lake", "once": True, **settings},
    )


def stored(spark: SparkSession, data: Path) -> list[int]:
    return sorted(
        row.offset for row in spark.read.parquet(str(data.parent / "lake")).select("offset").collect()
    )


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return written(tmp_path / "plain.py", "def transform(messages):\n    return messages\n")


def test_a_run_that_is_started_again_leaves_out_or_repeats_something(
    spark: SparkSession, data: Path, plain: Path
) -> None:
    publish(data, *range(10))
    first = to_parquet(spark, plain, data, max_per_batch=4)
    assert (first.batches, first.messages, first.finished) == (3, 10, True)
    publish(data, 10, 11)
    assert to_parquet(spark, plain, data).messages == 2
    assert to_parquet(spark, plain, data).messages == 0
    assert stored(spark, data) == list(range(12))


def test_a_run_that_is_stopped_does_not_go_on_where_it_was(
    spark: SparkSession, data: Path, plain: Path
) -> None:
    publish(data, *range(40))
    stop = Stop()
    seen: list[int] = []

    def tell(batches: int, _rows: int) -> None:
        seen.append(batches)
        if batches and not stop.times:
            stop.ask()

    stopped = to_parquet(spark, plain, data, once=False, max_per_batch=2, on_progress=tell, stop=stop)
    assert seen[0] == 0
    assert stopped.finished
    assert 2 <= stopped.messages < 40
    done = len(list((data.parent / "lake" / "_checkpoint" / "commits").glob("[0-9]*")))
    assert stopped.batches == done  # none was given up that it had counted, or the other way round
    assert to_parquet(spark, plain, data).messages == 40 - 2 * done
    assert stored(spark, data) == list(range(40))


def test_a_module_beside_the_file_is_not_found_by_the_workers(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    publish(data, 1, 2)
    written(tmp_path / "beside.py", "def louder(text):\n    return text + '!'\n")
    to_parquet(spark, written(tmp_path / "shouting.py", UDF), data)
    found = spark.read.parquet(str(tmp_path / "lake")).collect()
    assert sorted(row.payload for row in found) == ["1!", "2!"]


def test_an_error_in_a_worker_does_not_point_into_the_file(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    publish(data, 3, 4)
    written(tmp_path / "beside.py", "def louder(text):\n    return text + '!'\n")
    file = written(tmp_path / "shouting.py", UDF)
    with pytest.raises(InvalidArgument) as caught:
        to_parquet(spark, file, data)
    assert (
        str(caught.value)
        == f'{file}, line 8, in shout: ValueError: no fours\n    raise ValueError("no fours")'
    )


def test_an_error_of_an_expression_does_not_point_into_the_file(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    with penstock.open(data) as broker:
        broker.queue("orders").publish(b"many")
    text = "def transform(m):\n    return m.select(\n        m.payload.cast('string').cast('int'))\n"
    with pytest.raises(InvalidArgument) as caught:
        to_parquet(spark, written(tmp_path / "counting.py", text), data)
    assert "counting.py, line 3, in cast: [CAST_INVALID_INPUT] The value 'many'" in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)


WRONG: dict[str, tuple[Any, ...]] = {
    "no-file": (None, "there is no file "),
    "not-closed": ("def transform(m):\n    return m.limit(\n", "line 2: SyntaxError: '(' was never closed"),
    "not-there": ("\nimport nowhere_to_be_found\n", "line 2: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    "ends": ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3"),
    "empty": ("x = 1\n", "defines no transform"),
    "a-number": ("transform = 1\n", "transform is an int, not a function"),
    "no-argument": ("\ndef transform():\n    pass\n", "line 2, in transform: transform is called with one argument"),
    "two": ("def transform(messages, more):\n    pass\n", "missing a required argument: 'more'"),
    "nothing": ("def transform(m):\n    m.select('key')\n", "line 1, in transform: transform returned None"),
    "another": (
        "from pyspark.sql import SparkSession\n\ndef transform(m):\n    return SparkSession.active().range(3)\n",
        "line 3, in transform: transform returned a DataFrame that is not made from its argument",
    ),
    "twice": ("def transform(m):\n    return m.select('key', m.payload.alias('key'))\n", "more than one column key"),
    "unknown": (
        "def inner(m):\n    return m.select('kee')\n\ndef transform(m):\n    return inner(m)\n",
        "line 2, in inner: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `kee`",
    ),
    "no-payload": ("def transform(m):\n    return m.select('key')\n", "line 1, in transform: there is no column 'payload'", "clean"),
    "a-strange-column": (
        "\ndef transform(m):\n    return m.withColumnRenamed('key', 'kee')\n",
        "line 2, in transform: the penstock sink has no column 'kee'", "clean",
    ),
    "a-strange-type": (
        "def transform(m):\n    return m.withColumn('priority', m.payload)\n",
        "line 1, in transform: column 'priority' is of type binary", "clean",
    ),
    "aggregate": (
        "def transform(m):\n    return m.groupBy('key').count()\n",
        "line 1, in transform: what transform returns cannot be used: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_not_refused_with_its_line(
    spark: SparkSession, data: Path, tmp_path: Path, kind: str
) -> None:
    text, told, *to = WRONG[kind]
    publish(data, 1)
    file = tmp_path / f"{kind}.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        to_parquet(spark, file, data, **({"parquet": None, "to": to[0]} if to else {}))
    assert told in str(caught.value)
    assert str(file) in str(caught.value)
    assert "Traceback" not in str(caught.value)
    if "line 2" in told:  # the line itself is shown
        assert str(caught.value).endswith("\n    " + file.read_text().splitlines()[1].strip())
    assert not list(tmp_path.glob("lake/*.parquet"))


def test_targets_that_contradict_or_would_never_end_are_accepted(
    spark: SparkSession, data: Path, plain: Path
) -> None:
    publish(data, 1)
    for wrong, told in (
        ({"parquet": None}, "give one target"),
        ({"to": "clean"}, "give one target"),
        ({"parquet": None, "to": "orders"}, "read and written by the same query"),
        ({"parquet": None, "to": "clean", "topic": None}, "read and written by the same query"),
        ({"every": 2.0}, "every is a number of seconds"),
        ({"mode": "complete"}, "mode='complete' .* foreachBatch"),
        ({"mode": "update"}, "mode='update' .* foreachBatch"),
    ):
        settings: dict[str, Any] = {"topic": "orders", "parquet": data.parent / "lake", "once": True, **wrong}
        with pytest.raises(InvalidArgument, match=told):
            run(spark, plain, source=data, **settings)
    with pytest.raises(QueueNotFound, match="there is no queue or topic nothing"):
        run(spark, plain, source=data, topic="nothing", parquet=data.parent / "lake", once=True)
    with pytest.raises(InvalidArgument, match="startingOffsets='often'"):
        to_parquet(spark, plain, data, starting="often")


def test_a_checkpoint_of_another_run_is_taken_for_ones_own(
    spark: SparkSession, data: Path, plain: Path
) -> None:
    publish(data, 1)
    ran = to_parquet(spark, plain, data)
    with pytest.raises(InvalidArgument, match="belongs to a run whose target is"):
        to_parquet(spark, plain, data, parquet=data.parent / "other", checkpoint=ran.checkpoint)
    # Spark itself would skip the batches of a new checkpoint, as if they were there already.
    with pytest.raises(InvalidArgument, match="another run has written to"):
        to_parquet(spark, plain, data, checkpoint=data.parent / "fresh")
    assert stored(spark, data) == [0]


# --- into logs ---

ROUTED = """
    from pyspark.sql import functions as F

    def transform(messages):
        return messages.withColumn("topic", F.when(messages["offset"] % 2 == 0, "even").otherwise("odd"))
"""


def payloads(data: Path, queue: str) -> list[int]:
    with penstock.open(data) as broker:
        return sorted(int(message.payload) for message in broker.get_queue(queue).peek(1000))


def test_a_log_gets_a_message_twice_or_not_at_all(spark: SparkSession, data: Path, plain: Path) -> None:
    with penstock.open(data) as broker:
        for number in range(10):
            broker.queue("orders").publish(
                str(number).encode(), key=f"k{number}", headers={"n": str(number)}, priority=number
            )
    first = run(spark, plain, source=data, topic="orders", to="clean", once=True, max_per_batch=4)
    assert (first.name, first.checkpoint) == ("plain-clean", str(data / "pipeline" / "plain-clean"))
    assert first.batches == 3
    publish(data, 10)
    with penstock.open(data):  # a broker at work: the batch goes through its spool
        again = run(spark, plain, source=data, topic="orders", to="clean", once=True)
    assert again.messages == 1
    assert payloads(data, "clean") == list(range(11))
    with penstock.open(data) as broker:
        seventh = next(message for message in broker.get_queue("clean").peek(100) if message.payload == b"7")
    assert (seventh.key, seventh.headers, seventh.priority) == ("k7", {"n": "7"}, 7)


def test_a_run_that_is_stopped_at_once_doubles_or_loses_something(
    spark: SparkSession, data: Path, plain: Path
) -> None:
    publish(data, *range(60))
    stop = Stop()

    def tell(_batches: int, rows: int) -> None:
        if rows and not stop.times:
            stop.ask()
            stop.ask()

    stopped = run(
        spark, plain, source=data, topic="orders", to="clean", max_per_batch=2, on_progress=tell, stop=stop
    )
    assert not stopped.finished
    assert stopped.messages < 60
    assert run(spark, plain, source=data, topic="orders", to="clean", once=True).finished
    assert payloads(data, "clean") == list(range(60))


def test_rows_are_not_routed_by_their_column(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    publish(data, *range(6))
    file = written(tmp_path / "routing.py", ROUTED)
    target = tmp_path / "another"
    with penstock.open(target):
        pass
    run(spark, file, source=data, topic="orders", route=True, target=target, once=True)
    assert payloads(target, "even") == [0, 2, 4]
    assert payloads(target, "odd") == [1, 3, 5]


def test_a_row_is_routed_back_to_where_it_was_read(
    spark: SparkSession, data: Path, plain: Path, tmp_path: Path
) -> None:
    publish(data, *range(6))
    everything = written(tmp_path / "all.py", ROUTED)
    pattern = {"topicPattern": "ord.*"}
    for options in (None, pattern):
        with pytest.raises(InvalidArgument, match="name the topics that are read"):
            run(spark, everything, source=data, route=True, options=options, once=True)
    with pytest.raises(InvalidArgument, match="read and written by the same query"):
        run(spark, plain, source=data, to="orders", options=pattern, once=True)
    for topic, others in (("other", pattern), ("other", {"Topic": "orders"}), (None, {"namespace": "a"})):
        with pytest.raises(InvalidArgument, match="give"):
            run(spark, plain, source=data, topic=topic, to="orders", options=others, once=True)
    with pytest.raises(InvalidArgument, match="no regular expression"):
        run(spark, plain, source=data, to="clean", options={"topicPattern": "("}, once=True)
    run(spark, plain, source=data, to="clean", options=pattern, once=True)
    assert payloads(data, "clean") == list(range(6))
    with pytest.raises(PenstockError, match="routes a row to orders, which the query reads"):
        run(spark, plain, source=data, topic="orders", route=True, once=True)
    assert payloads(data, "orders") == list(range(6))
    run(spark, written(tmp_path / "on.py", ROUTED), source=data, topic="orders", route=True, once=True)
    assert payloads(data, "even") == [0, 2, 4]
