"""Each process gets the secrets it needs and no others."""

import pytest

from overnight_server.settings import Settings
from overnight_server.settings.field_types import Secret, annotation_of, env_of
from overnight_server.settings.process_secrets import NEEDED_BY, PROCESSES, own_environment


def test_every_secret_setting_says_which_processes_need_it() -> None:
    secrets = {
        name for name, field in Settings.model_fields.items() if annotation_of(field, Secret)
    }

    assert secrets <= NEEDED_BY.keys()
    assert set().union(*NEEDED_BY.values()) == PROCESSES


@pytest.mark.parametrize("process", sorted(PROCESSES))
def test_a_process_keeps_what_it_needs_and_what_is_no_secret(process: str) -> None:
    environ = {
        name: "x" for setting in NEEDED_BY for name in (env_of(setting), f"{env_of(setting)}_FILE")
    } | {"PATH": "/bin", "OVERNIGHT_POOL": "default", "SECRET_NAME": "x"}

    kept = own_environment(process, environ)

    assert {"PATH", "OVERNIGHT_POOL"} <= kept.keys()
    assert ("SECRET_NAME" in kept) == (process == "worker")
    for setting, processes in NEEDED_BY.items():
        assert (env_of(setting) in kept) == (process in processes)
        assert (f"{env_of(setting)}_FILE" in kept) == (process in processes)
