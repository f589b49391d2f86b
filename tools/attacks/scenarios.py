"""The scenarios of `make attack`, in the order of their run."""

from tools.attacks.live import engine_faults, histories, starvation, stores, streams, texts
from tools.attacks.scenario import Scenario
from tools.attacks.suites import run_tests

PROTOCOLS = "packages/protocols/tests"
TOKENIZERS = "packages/tokenizers/tests"
ENCODING = f"{TOKENIZERS}/test_encoding.py"

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "crash-recovery",
        "No prompt has reasoning of another conversation after SIGKILL or while Redis is frozen",
        run_tests("server/test_crash_recovery.py", "ledger/test_redis_lease.py"),
        limit_seconds=480.0,
    ),
    Scenario(
        "crash-histories",
        "No wrong splice in histories with crashes at every step and stores that lag and fail",
        histories.crash_histories,
        limit_seconds=480.0,
    ),
    Scenario(
        "digests",
        "Digests cover what templates show; ignored differences are a closed list",
        run_tests(
            "prompt/test_digest_coverage.py",
            "ledger/test_form_differences.py",
            "ledger/test_turn_digest.py",
        ),
        limit_seconds=480.0,
    ),
    Scenario(
        "false-splices",
        "No turn is spliced into another conversation or tenant",
        run_tests("pipeline/test_false_splices.py", "pipeline/test_tenant_isolation.py"),
    ),
    Scenario(
        "body-limits",
        "Bodies with too many parts, bombs and prompts that cannot fit are rejected early",
        run_tests(
            "http/test_large_bodies.py",
            "http/test_body.py",
            "pipeline/test_token_bound.py",
            f"{PROTOCOLS}/test_body_limits.py",
        ),
    ),
    Scenario(
        "large-bodies",
        "Paced streams pause at most 100 ms more than at another server; memory is released",
        starvation.large_bodies,
        limit_seconds=480.0,
    ),
    Scenario(
        "constraint-limits",
        "Schemas, choices and patterns are limited and converted to grammars off the event loop",
        run_tests(
            "packages/parsers/tests/test_constraint_limits.py", "pipeline/test_guided_decoding.py"
        ),
    ),
    Scenario(
        "few-open-files",
        "With nofile=256 each of 300 streams completes or gets Retry-After; no engine is down",
        starvation.few_open_files,
    ),
    Scenario(
        "paced-streams",
        "No event is lost, repeated or reordered while clients leave and send malformed requests",
        streams.paced_streams,
    ),
    Scenario(
        "slow-readers",
        "The memory of the server does not grow with output that clients do not read",
        streams.slow_readers,
    ),
    Scenario(
        "endless-engine-responses",
        "An engine's line, event or trailer without end is an engine error in bounded memory",
        run_tests("net/test_endless_responses.py"),
    ),
    Scenario(
        "slow-clients",
        "Slow, frozen and vanished clients hold neither memory nor the engine",
        run_tests("net/test_slow_clients.py"),
    ),
    Scenario(
        "panics",
        "A panic or unexpected exception is the API's own error on every transport",
        run_tests(
            "http/test_panics.py",
            f"{ENCODING}::test_panic_of_the_library_is_an_error",
        ),
    ),
    Scenario(
        "nesting",
        "Deeply nested values are a 400 that names the field, with short log lines",
        run_tests("http/test_nested_requests.py", "telemetry/test_log_lines.py"),
    ),
    Scenario(
        "malformed-requests",
        "Malformed requests cause no status of 500 or above, and no own metric or log format",
        run_tests("http/test_abuse_requests.py::test_malformed_requests_cause_no_server_errors"),
    ),
    Scenario(
        "smuggling",
        "Ambiguous requests, also in Host and transfer codings, are rejected and disconnected",
        run_tests("http/test_abuse_connections.py"),
    ),
    Scenario(
        "engine-frames",
        "Invalid token ids, nested frames and broken UTF-8 of an engine are engine errors",
        run_tests(
            "engines/completions/test_frames.py",
            "engines/sglang/test_frames.py",
            "engines/llamacpp/test_frames.py",
        ),
    ),
    Scenario(
        "corrupted-engine-responses",
        "Corrupted engine responses give complete responses or engine errors of the API",
        engine_faults.corrupted_responses,
    ),
    Scenario(
        "unencodable-texts",
        "12 million spaces and keys that are not UTF-8 get errors of the API on every transport",
        texts.unencodable_texts,
    ),
    Scenario(
        "imitated-control-tokens",
        "No text in a message becomes a control token",
        texts.imitated_control_tokens,
    ),
    Scenario(
        "drain",
        "A drain completes responses; a body that is still arriving at its end gets 503",
        run_tests("http/test_drain.py"),
    ),
    Scenario(
        "upstream",
        "Unexpected statuses of an upstream are 502; its address and keys never reach clients",
        run_tests("engines/openai/test_unexpected_responses.py"),
    ),
    Scenario(
        "web-pages",
        "Without keys no foreign origin or host is accepted, over HTTP and WebSockets",
        run_tests("http/test_browser_access.py", "access/test_browser.py"),
    ),
    Scenario(
        "browser",
        "A hostile page in a real browser achieves nothing; an allowed origin works",
        run_tests("http/test_browser_pages.py"),
        limit_seconds=480.0,
    ),
    Scenario(
        "control-tokens",
        "Text of clients never becomes an added token, with any tokenizer",
        run_tests(
            "prompt/test_control_tokens.py",
            f"{TOKENIZERS}/test_guard.py",
            f"{ENCODING}::test_plain_text_yields_no_added_token",
            f"{ENCODING}::test_plain_text_yields_no_control_token",
            f"{ENCODING}::test_fill_in_the_middle_tokens_are_text_unless_the_text_is_raw",
            f"{ENCODING}::test_control_token_spelled_by_the_vocabulary_is_split",
        ),
        limit_seconds=600.0,
    ),
    Scenario(
        "sqlite-failures",
        "Full disks and deleted, replaced or damaged store files fail no response",
        stores.sqlite_failures,
    ),
    Scenario(
        "store-files",
        "Damaged, deleted and replaced files are reported; clock jumps expire nothing at once",
        run_tests("server/test_store_files.py", "storage/test_database_file.py"),
    ),
    Scenario(
        "redis-failures",
        "Redis that is killed or frozen fails no response and does not delay it for long",
        stores.redis_failures,
    ),
    Scenario(
        "store-faults",
        "A store that fails costs splices, never a response",
        run_tests("storage/test_faults.py"),
    ),
)
