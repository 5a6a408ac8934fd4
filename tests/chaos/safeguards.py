"""The safeguards that mutants remove, and the failures that each removal must cause."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

TESTS: Final = "tests/integration"
SQL: Final = "app/overnight_server/store/sql"
SANDBOX: Final = "workers/overnight_worker/sandbox"
HOURS: Final = "app/overnight_server/store/migrations/versions/schema/09_hours_and_costs.sql"

Edit = tuple[str, str, str]


@dataclass(frozen=True)
class Mutant:
    """One removed safeguard: the file, the text and its replacement, and the expected failures.

    `tests` names tests that must fail, each with a part of its message. `chaos` names findings:
    a short run with the given `bias` must have one of them. Where a second safeguard hides the
    loss of the first, chaos runs `also_without` it.
    """

    lost: str
    edit: Edit
    tests: Mapping[str, str]
    chaos: Sequence[str] = ()
    also_without: Mapping[str, Edit] = field(default_factory=dict)
    bias: str = "late"


FENCE: Final = (
    f"{SQL}/settle.sql",
    "     WHERE t.epoch = v.epoch\n       AND t.token = v.token\n       AND t.state",
    "     WHERE t.state",
)
# Makes the first of three equal parts of fair_order.sql unique: the dispatcher's.
LANE_LIMIT: Final = (
    "     LIMIT (SELECT greatest(CAST(:min_lanes AS int),"
    " ceil(CAST(:limit AS int) / avg(room))::int) FROM next)\n)\nSELECT user_id, room FROM locked;"
)
# A worker ends a run before its lease ends, so late results are rare.
OWN_CLOCK: Final = (
    "workers/overnight_worker/stop_policy.py",
    "return self._confirmed_at + self._limits.lease - self._limits.margin",
    "return self._confirmed_at + 3600",
)
# Edits that every chaos run of a bias has; with these alone a run must pass.
COMPANIONS: Final[Mapping[str, Sequence[Edit]]] = {"late": [OWN_CLOCK], "crowd": [], "kin": []}
MUTANTS: Final = (
    Mutant(
        "the lane's lock in the gate",
        (
            f"{SQL}/fair_order.sql",
            f" FOR NO KEY UPDATE SKIP LOCKED) lane\n{LANE_LIMIT}",
            f") lane\n{LANE_LIMIT}",
        ),
        {
            f"{TESTS}/test_gate_pools.py"
            "::test_claimers_of_four_pools_never_exceed_a_limit_of_three": "I06",
        },
        # Claims beyond a limit, or deadlocks between claims that lock lanes in different orders.
        chaos=["I06", "deadlock detected"],
        bias="crowd",
    ),
    Mutant(
        "the pool's lock in the gate",
        (
            f"{SQL}/claim.sql",
            "pg_advisory_xact_lock(hashtext('overnight.pool'), hashtext(:pool));",
            "hashtext(:pool);",
        ),
        {
            f"{TESTS}/test_gate_races.py::test_a_running_pass_skips_no_lane_for_what_old_workers"
            "_could_do": "assert [] ==",
        },
    ),
    Mutant(
        "the fence: epoch and token of a settle",
        FENCE,
        {
            f"{TESTS}/test_settle.py"
            "::test_a_settle_without_the_claim_changes_nothing": "assert True is False",
        },
        # The second safeguard: a lost run has been charged already.
        chaos=['unique constraint "usage_ledger_once"'],
        also_without={"the worker's own clock": OWN_CLOCK},
    ),
    Mutant(
        "the state a start expects",
        (f"{SQL}/run.sql", "           AND state = ANY (CAST(:sources AS text[]))\n", ""),
        {f"{TESTS}/test_start.py::test_the_same_message_twice_starts_once": "assert Run("},
        chaos=["I20"],
    ),
    Mutant(
        "the row's lock in a start",
        (f"{SQL}/run.sql", "OFFSET 0 FOR NO KEY UPDATE) t", "OFFSET 0) t"),
        {f"{TESTS}/test_start.py::test_two_workers_with_one_message_start_one_run": "assert Run("},
    ),
    Mutant(
        "the fence of a heartbeat",
        (f"{SQL}/run.sql", "   AND epoch = :epoch\n   AND token = :token\n", ""),
        {
            f"{TESTS}/test_heartbeat.py"
            "::test_a_heartbeat_without_a_held_claim_is_answered_with_lost": "Answer.CONTINUE",
        },
    ),
    Mutant(
        "the fence of the begin of a validation",
        (
            f"{SQL}/run.sql",
            " WHERE (id, epoch, token) = (:task_id, :epoch, :token)\n",
            " WHERE id = :task_id\n",
        ),
        {
            f"{TESTS}/test_validating.py"
            "::test_only_the_holder_of_a_started_claim_begins_a_validation": "assert not True",
            f"{TESTS}/test_validating.py"
            "::test_a_run_that_lost_its_claim_does_not_validate_the_next_one": "assert not True",
        },
    ),
    Mutant(
        "the lane's lock that makes parents take turns",
        (f"{SQL}/lanes.sql", " ORDER BY user_id\n   FOR NO KEY UPDATE;", " ORDER BY user_id;"),
        {
            f"{TESTS}/test_spawn.py::test_a_child_that_completes_while_its_parent_suspends"
            "_is_not_missed": "('pending', 1)",
            f"{TESTS}/test_graph_races.py"
            "::test_a_retry_and_a_dead_letter_never_leave_the_child_stuck": "'pending']",
            f"{TESTS}/test_submit.py"
            "::test_eight_submits_at_once_get_only_the_five_places_there_are": "assert 8 == 5",
        },
        chaos=["unmet_counts", "edges"],
        bias="kin",
    ),
    Mutant(
        "the once in flipping an edge",
        (
            f"{SQL}/graphs.sql",
            "       AND e.satisfied_at IS NULL\n       AND is_met(",
            "       AND is_met(",
        ),
        {
            f"{TESTS}/test_edge_count.py"
            "::test_a_parent_counted_twice_does_not_meet_another_edge": "('ready', 0)",
        },
    ),
    Mutant(
        "the ledger's key",
        (
            HOURS,
            "CONSTRAINT usage_ledger_once UNIQUE (task_id, epoch, period_started_at, kind)",
            "CONSTRAINT usage_ledger_once UNIQUE (id)",
        ),
        {f"{TESTS}/test_ledger_key.py::test_a_run_recorded_twice_is_charged_once": "charges"},
        chaos=["charges"],
        also_without={"the fence": FENCE, "the worker's own clock": OWN_CLOCK},
    ),
    Mutant(
        "a reaper's second look at the lease",
        (f"{SQL}/settle.sql", "       AND (NOT v.only_expired OR t.expires_at <= clock())\n", ""),
        {
            f"{TESTS}/test_reap.py"
            "::test_a_heartbeat_after_the_reaper_read_the_row_keeps_the_run": "continue'>, 1)",
        },
    ),
    Mutant(
        "the promise that hours fit",
        (f"{SQL}/claim.sql", "reserved_seconds <= seconds_left", "true"),
        {
            f"{TESTS}/test_gate.py"
            "::test_hours_are_reserved_one_task_after_the_other": "assert 5 == 2",
        },
    ),
    Mutant(
        "the rule that a worker killed from outside accuses nobody",
        (
            "app/overnight_server/domain/verdicts.py",
            "{WORKER_LOST, RELEASED,",
            "{RELEASED,",
        ),
        {
            "tests/unit/test_verdicts.py"
            "::test_a_worker_killed_from_outside_does_not_count_towards_poison": "assert"
        },
    ),
    Mutant(
        "the end of a sandbox with its worker",
        (
            f"{SANDBOX}/pid1.py",
            "        if not message:\n            os._exit(WORKER_GONE)",
            "        if not message:\n            time.sleep(3600)",
        ),
        {
            "tests/sandbox/test_start.py"
            "::test_a_sandbox_ends_when_the_other_end_of_its_channel_is_closed": "lives on",
        },
    ),
    Mutant(
        "the keyring in the filter of a sandbox",
        (f"{SANDBOX}/seccomp.py", '    "keyctl": (250, 219),\n', ""),
        {
            "tests/sandbox/test_hostile_scripts.py::test_no_key_of_the_worker_is_found": "ESCAPED",
        },
    ),
    Mutant(
        "the refusal of links among the files of a command",
        (
            f"{SANDBOX}/file_collector.py",
            "RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH",
            "0",
        ),
        {
            "tests/unit/test_sandbox_files.py"
            "::test_a_file_that_becomes_a_link_after_it_was_listed_is_not_followed": "['b']",
        },
    ),
    Mutant(
        "the rule that a lost run promotes no artifact",
        (
            "app/overnight_server/outcome/settle.py",
            "in with_artifacts and not isinstance(ending.result, BROKEN_OFF):",
            "in with_artifacts:",
        ),
        {
            f"{TESTS}/test_artifacts.py"
            "::test_a_result_that_loses_against_the_reaper_promotes_nothing": "assert not",
        },
    ),
    Mutant(
        "the question before a task is sent to an HTTP agent again",
        (
            "app/overnight_server/agent_driver/agent_client.py",
            "return NoAnswer(error.reason) if error.was_sent else NotSent(error.reason)",
            "return NotSent(error.reason)",
        ),
        {
            "tests/acceptance/test_http_agents.py::test_a_task_that_was_taken_without_an_answer"
            "_is_found_and_not_sent_again": "assert ['task_",
        },
    ),
    Mutant(
        "the fence of a log",
        (
            f"{SQL}/logs.sql",
            "t.id = c.task_id AND t.epoch = c.epoch AND t.token = c.token",
            "t.id = c.task_id AND t.epoch = c.epoch",
        ),
        {
            f"{TESTS}/test_run_logs.py"
            "::test_a_holder_that_lost_its_claim_can_neither_write_nor_cut": "assert",
        },
    ),
    Mutant(
        "the limit of what a user stores",
        (
            "app/overnight_server/outcome/artifacts.py",
            "    if stored > caps.max_stored_bytes:",
            "    if False:",
        ),
        {
            f"{TESTS}/test_artifact_limits.py"
            "::test_a_user_stores_no_more_than_the_limit": "DID NOT RAISE",
        },
    ),
    Mutant(
        "the question whether another artifact needs a content that is deleted",
        (
            "app/overnight_server/artifact_store/delete_blobs.py",
            "    if needed_blobs(tx, [digest]):",
            "    if False:",
        ),
        {
            f"{TESTS}/test_artifact_retention.py"
            "::test_a_deleted_artifact_leaves_a_content_that_another_one_needs": "BlobNotFound",
        },
    ),
)
