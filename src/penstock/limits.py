"""Every bound, in one place, each with its reason.

A queue without a limit on something has one anyway; it is found at night. So everything that a user or a peer can make
large has a named constant here. Units come last in the name. A test of the module that enforces a bound goes one above
it. Raising a bound is harmless; lowering one may make stored data unreadable, so treat a smaller number as a format
change.
"""

from __future__ import annotations

from typing import Final

# --- names ---

# AMQP 0-9-1 carries names as short strings, whose length is one byte; a longer name could not be used over it.
NAME_CHARS_MAX: Final = 255

# --- headers, key, dedup_id ---

# Headers are routing facts, not a second payload: above this, filters and tables become the bottleneck.
HEADERS_COUNT_MAX: Final = 128

# Names and values together, in UTF-8. As much as HTTP servers commonly take for all their headers.
HEADERS_BYTES_MAX: Final = 64 * 1024

# A key is held in memory while its message is in flight (ordering by key), so it must stay small.
KEY_BYTES_MAX: Final = 512

# Remembered for the whole window, on disk and (hashed) in memory; long enough for two UUIDs and a URL path.
DEDUP_ID_BYTES_MAX: Final = 512

# --- priority ---

# One byte per message in the journal. Lower goes first.
PRIORITY_MIN: Final = 0
PRIORITY_MAX: Final = 255

# In the middle of the useful part, so that both "sooner" and "later" are left; AMQP's 0 to 255 maps onto 100 - p.
PRIORITY_DEFAULT: Final = 100

# --- payload ---

# A queue moves work, not files; one large message delays everybody behind it in the same commit.
MESSAGE_BYTES_DEFAULT: Final = 1024 * 1024

# What `max_message_bytes` may be raised to. A message lies within one frame (FRAME_BYTES_MAX), with room to spare.
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024

# --- policies ---

# A century: nobody means more, and as microseconds it is still exact in a float (below 2**53).
DURATION_S_MAX: Final = 36_525 * 86_400

# Attempts are a 32-bit column of the journal.
ATTEMPTS_MAX: Final = 2**31 - 1

# Depths and byte counts are signed 64-bit columns; the half leaves room for sums.
COUNT_MAX: Final = 2**62

# Growth per attempt above this reaches any maximum in two steps; it is a typing error.
BACKOFF_FACTOR_MAX: Final = 1000.0

# --- Snowflake ids ---

# 41 + 10 + 12 = 63 bits: an id is a positive signed 64-bit integer everywhere.
ID_TIME_BITS: Final = 41  # of milliseconds: 69 years from 2024
ID_NODE_BITS: Final = 10  # 1024 nodes
ID_SEQUENCE_BITS: Final = 12  # 4096 ids per node and millisecond, before running ahead of the clock

# --- journal ---

# Large enough that rotation is rare, small enough to drop, copy and scan in a fraction of a second.
SEGMENT_BYTES: Final = 128 << 20

# Below that a segment is mostly its own header and seal.
SEGMENT_BYTES_MIN: Final = 4096

# A commit is read into memory whole, and must fit beside others in two gigabytes.
FRAME_BYTES_MAX: Final = 32 << 20

# Bounds the memory that decoding one section can take.
FRAME_ROWS_MAX: Final = 1 << 20

# Messages of one batch: it fits into a frame, where each takes 64 bytes at the least.
MESSAGES_MAX: Final = FRAME_BYTES_MAX // 64

# Stored in 64 bits, and read as Arrow's signed ones.
LOG_NUMBER_MAX: Final = (1 << 63) - 1

# A look-up reads at most about this much, which is 60 frames of a single message; an index costs 24 bytes for each.
INDEX_STRIDE_BYTES: Final = 16 << 10

# The first read of a scan: enough for one look-up.
READ_CHUNK_BYTES: Final = 128 << 10

# The largest read of a scan: what is read is then checked while it is still in the processor's cache.
SCAN_CHUNK_BYTES: Final = 256 << 10

# With durability `os`, this much is written before it is synced behind the writer's back.
WRITE_BEHIND_BYTES: Final = 8 << 20

# Room is taken in such steps, so that a small journal stays small. A segment that has grown takes a quarter of its length at once, up to the second:
# while a file is synced, whoever takes room for it waits for that.
ALLOCATE_STEP_BYTES: Final = 512 << 10
ALLOCATE_STEP_BYTES_MAX: Final = 8 << 20

# Room that new messages may not take: thousands of acknowledgements on a full disk.
RESERVE_BYTES: Final = 1 << 20

# Room that not even acknowledgements may take: a seal must always fit.
RESERVE_LAST_BYTES: Final = 4096

# One to rotate into, and one for the cleaner that is faster than that.
RECYCLED_SEGMENTS_MAX: Final = 2

# A message takes at least this much of a frame (see `journal.rows`), so the bytes of a frame that was lost bound how many it held.
ROW_BYTES_MIN: Final = 4

# Ranges of messages that one section records as cleaned or lost, and sections that one frame has of those: far below what they hold.
RECORDED_AT_ONCE: Final = 10_000

# So that damage to one costs time and nothing else.
SNAPSHOTS_KEPT: Final = 2

# What `interval` durability may lose in a power cut.
COMMIT_INTERVAL_MS: Final = 5.0

# Longer than this is `os` by another name.
COMMIT_INTERVAL_MS_MAX: Final = 60_000.0

# Rewriting pays when at least half of the space comes back.
REWRITE_LIVE_SHARE_MAX: Final = 0.5

# Far beyond any log, and sums of offsets and counts still fit 64 bits.
OFFSET_MAX: Final = 2**62

# A segment a second for thirty years; segments that are missing are listed one by one.
SEGMENT_NUMBER_MAX: Final = 10**9

# Counted in 16 bits of a frame's header.
FRAME_SECTIONS_MAX: Final = 65_535

# Somebody who only asks who holds a directory holds its lock for an instant: look again before believing it.
LOCK_TRIES: Final = 3

# Between two such tries.
LOCK_PAUSE_S: Final = 0.02

# Somebody who owns a directory only for the moment, to empty its spool, is waited for so long by whoever opens it.
LOCK_MOMENT_S: Final = 10.0

# A directory that another machine has written to since is taken to be owned there, though its lock is not heard: not every file system hands it on.
ELSEWHERE_S: Final = 60.0

# A mark that is read while it is being written is whole the next time.
MARK_READS_MAX: Final = 100

# Looks at a directory from outside, each spoilt by a segment that its owner exchanged meanwhile, before the reader gives up.
LOOKS_MAX: Final = 1000

# --- spool ---

# What is staged is published so many messages at a time, each time in one commit: others wait for some 20 ms at the most …
SPOOL_PART_ROWS: Final = 16_384

# … and of so many bytes, unless one message alone has more. Far below what a frame may hold.
SPOOL_PART_BYTES: Final = 4 << 20

# Topics of one batch. One that does not exist is made: a wrong column must not make a million queues.
SPOOL_TOPICS_MAX: Final = 10_000

# A manifest names so many staged files at the most; Spark makes one for each task.
SPOOL_FILES_MAX: Final = 100_000

# The name of a producer is kept for ever. It has room for a namespace, a topic and what an application calls itself.
SPOOL_PRODUCER_BYTES_MAX: Final = 1024

# What an application calls itself, in a producer's name.
SPOOL_APP_BYTES_MAX: Final = 256

# How often the owner looks into the spool by itself: whoever hands something in rings a bell, but not from another machine.
SPOOL_POLL_S: Final = 1.0

# A staged file that nobody has handed in for so long is left over: its task or its driver died. No batch runs that long.
SPOOL_STALE_S: Final = 86_400.0

# How often the owner looks for such files.
SPOOL_SWEEP_S: Final = 3600.0

# --- engine ---

# An error is kept with the message it belongs to, in a header: enough for a sentence and the end of a traceback.
ERROR_CHARS_MAX: Final = 4000

# Messages that recur in one queue or topic: whenever one of them is due, all are looked through.
SCHEDULES_MAX: Final = 1000

# Opaque bytes that a front stores by key: such as an exchange, or its bindings. All of it is in memory and in each snapshot.
METADATA_KEY_BYTES_MAX: Final = 512
METADATA_BYTES_MAX: Final = 1 << 20
METADATA_KEYS_MAX: Final = 100_000

# Steps of one unit. Each may be a section of its frame, or two.
STEPS_MAX: Final = 10_000

# What one call hands out or settles: bounds the time that others wait for it.
DELIVERIES_MAX: Final = 100_000

# A consumer's name stands in every lease row.
PREFETCH_MAX: Final = 65_535

# --- workers ---

# Messages that one worker handles at once. Threads beyond that only fight for the interpreter.
CONCURRENCY_MAX: Final = 4096

# --- filters ---

# Kept with its subscription and run for every message. Long enough for a hundred values; a longer list is a header.
FILTER_CHARS_MAX: Final = 4096

# Parentheses and NOTs within one another. Nobody reads that deep, and the parser takes five Python calls for each.
FILTER_DEPTH_MAX: Final = 32

# Values of one IN. More of them are a table, which belongs where messages are published: set a header there.
FILTER_VALUES_MAX: Final = 256

# A pattern describes the form of a header. What is longer is a whole text, which = compares.
LIKE_CHARS_MAX: Final = 256

# Steps that all LIKEs of a filter take together for one character of a header (`like.steps_of`). A
# step takes half a nanosecond, so the largest headers (HEADERS_BYTES_MAX) take some 10 ms.
FILTER_LIKE_STEPS_MAX: Final = 256

# Steps of filters that are taken in one turn of an event loop: about 4 ms, or one message.
FILTER_STEPS_AT_ONCE: Final = 8_000_000

# Text longer than that is no number that anybody computes with, and reading one takes quadratic time.
FILTER_NUMBER_CHARS_MAX: Final = 64

# --- bodies of requests ---

# Values of a body that is a list of messages. A batch has at most some 516,000 messages, since each counts
# with 64 bytes of a frame, and most of what adds values to a message adds bytes, too. Decoded, so many
# values take 300 to 600 MB.
BODY_VALUES_MAX: Final = 6 << 20

# Values of a transaction, or of the logs of a stream of Spark's: decoded at once, which takes some 0.2 s.
BODY_VALUES_MIXED_MAX: Final = 1 << 20

# Values of any other body: DELIVERIES_MAX leases in two columns, or SPOOL_FILES_MAX names. A policy has some twenty.
BODY_VALUES_SMALL_MAX: Final = 1 << 18

# --- accounts ---

# A token comes with every request and is refused above this before it is parsed. Identity providers stay below half of it.
TOKEN_BYTES_MAX: Final = 8192

# HMAC-SHA256 is as strong as its key up to this (RFC 7518, 3.2); a shorter one can be guessed from a single token.
SECRET_BYTES_MIN: Final = 32

# What NIST SP 800-131A still allows.
RSA_BITS_MIN: Final = 2048

# A file of keys holds the present one and those that are being replaced; a hundred is a mistake.
KEYS_MAX: Final = 100

# And is read whole.
KEYS_BYTES_MAX: Final = 1 << 20

# Clocks of two machines differ by so much at the most, where both ask for the time. For `nbf` and `iat`; `exp` is exact.
TOKEN_LEEWAY_S: Final = 30.0

# The end of the year 9999. A later `exp` is no moment but milliseconds taken for seconds, and would hold for ever.
TOKEN_EXPIRY_S_MAX: Final = 253_402_300_799

# Verified tokens that are remembered, so that a check costs a look-up. With the longest tokens that is 32 MiB.
TOKENS_REMEMBERED_MAX: Final = 4096

# Patterns of namespaces in one claim: each is tried for every request.
CLAIM_PATTERNS_MAX: Final = 100

# A subject stands in every line of the log that is about its requests.
SUBJECT_CHARS_MAX: Final = 255

# --- quotas ---

# A quota is of so many seconds, whenever they begin.
QUOTA_WINDOW_S: Final = 60

# What a full queue asks a publisher to wait: nobody knows when consumers catch up, and a second is a long time for them.
QUOTA_ROOM_RETRY_S: Final = 1.0

# Namespaces whose use is counted apart, some 3 KiB each; whatever comes above shares one count until others fall idle.
QUOTA_NAMESPACES_MAX: Final = 10_000

# --- TLS ---

# How often certificate files are looked at. They are replaced weeks before they expire.
TLS_LOOK_S: Final = 10.0

# A certificate and its chain, or a key: larger is another file.
TLS_FILE_BYTES_MAX: Final = 1 << 20

# A self-signed certificate is for trying things out. Browsers take no longer ones either.
SELF_SIGNED_DAYS: Final = 90
