"""How a command runs: the part of a task that its agent profile, its plan and its spec decide.

`decide` joins them when the task is created, and the task keeps the result. So a queued task runs
as its owner saw it, whatever happens to the profile; secrets stay references until the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from overnight.errors import FieldError, InvalidRequest
from overnight.models.execution import CommandOptions
from overnight.models.field_errors import validate
from overnight_server.domain.plans import CommandLimits

MODEL: Final = "{model}"
DEFAULT_GRACE_SECONDS: Final = 10.0


@dataclass(frozen=True)
class EffectiveLimits:
    """What the processes of one run may use; `grace_seconds` is their time after SIGTERM."""

    memory_mb: int = 2048
    processes: int = 256
    workspace_mb: int = 1024
    grace_seconds: float = DEFAULT_GRACE_SECONDS


@dataclass(frozen=True)
class Execution:
    """How the command of a task runs.

    `env` is of the agent profile and may refer to the deployment's secrets; `own_env` is of the
    task's spec and may refer only to its owner's. `network` has the hosts that it may reach,
    `mounts` the paths of the worker's machine that it sees, and where. `repo` and `ref` are the
    repository that it works on and where it starts.
    `asked` is what the request said, from which an edit decides again.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    own_env: dict[str, str] = field(default_factory=dict)
    network: tuple[str, ...] = ()
    limits: EffectiveLimits = EffectiveLimits()
    models: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    push: bool = False
    repo: str | None = None
    ref: str = ""
    agent: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    def stored(self) -> dict[str, Any]:
        """Return it as the task's row has it."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Execution":
        """Return what a task's row has."""
        return cls(
            **{
                **stored,
                "argv": tuple(stored["argv"]),
                "network": tuple(stored["network"]),
                "limits": EffectiveLimits(**stored["limits"]),
                "models": tuple(stored["models"]),
                "mounts": tuple((source, target) for source, target in stored["mounts"]),
            }
        )


def command_options(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return argv and env of a spec; raise InvalidRequest if they are wrong."""
    given = {name: spec[name] for name in CommandOptions.model_fields if name in spec}
    try:
        options = validate(CommandOptions, given)
    except InvalidRequest as error:
        wrong = [
            FieldError(f"spec.{each.field}", each.message, each.legal) for each in error.fields
        ]
        raise InvalidRequest.of_fields(wrong) from None
    return {
        "argv": None if options.argv is None else list(options.argv),
        "env": dict(options.env),
    }


def models_of(spec: Mapping[str, Any]) -> list[str]:
    """Return the models that a spec names, in any of its places."""
    constraints = spec.get("constraints") or {}
    names = [
        spec.get("model"),
        *(constraints.get("model_preferences") or []),
        *(constraints.get("fallback_models") or []),
    ]
    return [name for name in names if isinstance(name, str)]


def decide(
    asked: Mapping[str, Any],
    profile: Mapping[str, Any] | None,
    plan: CommandLimits,
    models: Sequence[str] = (),
) -> Execution:
    """Return how a command runs; raise InvalidRequest for what plan or profile do not allow.

    `asked` has agent, argv, env, network and limits of the request; `models` are those that its
    spec names.
    """
    if profile is None:
        return _of_command(asked, plan, models)
    return _of_profile(asked, profile, plan, models)


def _of_command(asked: Mapping[str, Any], plan: CommandLimits, models: Sequence[str]) -> Execution:
    argv = asked.get("argv")
    if not argv:
        raise InvalidRequest(
            "spec.argv",
            "is missing, and the runner command needs a program",
            legal="a list of texts, or an agent instead of a runner",
        )
    if not models:
        _check_model(argv)
    return Execution(
        argv=tuple(argv),
        own_env=dict(asked.get("env") or {}),
        network=_plan_network(asked.get("network"), plan),
        limits=_limits(asked.get("limits"), {}, plan),
        repo=asked.get("repo"),
        ref=asked.get("ref") or "",
        asked=dict(asked),
    )


def _of_profile(
    asked: Mapping[str, Any],
    profile: Mapping[str, Any],
    plan: CommandLimits,
    models: Sequence[str],
) -> Execution:
    if asked.get("argv"):
        raise InvalidRequest(
            "spec.argv", "cannot be set: the agent profile has the command", legal="no spec.argv"
        )
    allowed_models = tuple(profile.get("models") or ())
    for model in models:
        if allowed_models and model not in allowed_models:
            legal = f"one of {', '.join(allowed_models)}"
            raise InvalidRequest(
                "spec.model", f"{model!r} is not of the agent profile", legal=legal
            )
    if not models and not allowed_models:
        _check_model(profile["argv"])
    return Execution(
        argv=tuple(profile["argv"]),
        env=dict(profile.get("env") or {}),
        own_env=dict(asked.get("env") or {}),
        network=_profile_network(asked.get("network"), profile.get("network", "off")),
        limits=_limits(asked.get("limits"), profile.get("limits") or {}, plan),
        models=allowed_models,
        mounts=tuple((each["source"], each["target"]) for each in profile.get("mounts") or ()),
        push=bool(profile.get("push")),
        repo=asked.get("repo"),
        ref=asked.get("ref") or "",
        agent=asked["agent"],
        asked=dict(asked),
    )


def _check_model(argv: Sequence[str]) -> None:
    if any(MODEL in argument for argument in argv):
        raise InvalidRequest(
            "spec.model", "is missing, and the command needs a model", legal="the name of a model"
        )


def _hosts(network: object) -> tuple[str, ...]:
    return tuple(network["allow"]) if isinstance(network, Mapping) else ()


def _plan_network(asked: object, plan: CommandLimits) -> tuple[str, ...]:
    hosts = _hosts(asked)
    if hosts and not plan.network:
        raise InvalidRequest("network", "your plan gives commands no network", legal="off")
    return hosts


def _profile_network(asked: object, of_profile: object) -> tuple[str, ...]:
    """Return the hosts of a run: the profile's, or fewer if the task asks for fewer."""
    allowed = _hosts(of_profile)
    if asked is None:
        return allowed
    for host in _hosts(asked):
        if host not in allowed:
            legal = ", ".join(("off", *allowed))
            raise InvalidRequest("network", f"the agent profile does not allow {host}", legal=legal)
    return _hosts(asked)


def _limits(
    asked: Mapping[str, Any] | None, of_profile: Mapping[str, Any], plan: CommandLimits
) -> EffectiveLimits:
    wanted = {name: value for name, value in (asked or {}).items() if value is not None}
    given = {name: value for name, value in of_profile.items() if value is not None}
    for name, value in wanted.items():
        most = given.get(name) or getattr(plan, name, None)
        if most is not None and value > most:
            source = "the agent profile" if name in given else "your plan"
            raise InvalidRequest(
                f"limits.{name}", f"{value} is more than {source} allows", legal=f"at most {most}"
            )
    return EffectiveLimits(**{**given, **wanted})
