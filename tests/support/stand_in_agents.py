#!/usr/bin/env python3
"""Stands in for a coding agent: the same options, variables and output, and no model.

It is copied to a file with the name of the agent, which decides how it behaves. It appends the
prompt to notes.txt. The prompts `login refused` and `limit reached` make it fail as the agent does.
Only the standard library is used: it runs inside a sandbox.
"""

# ruff: noqa: T201 - it prints what the agents print

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ANSWER = "I wrote the note."


def main() -> int:
    """Behave as the agent of this file's name."""
    name = Path(sys.argv[0]).name
    return AGENTS[name](sys.argv[1:])


def write_note(prompt: str) -> None:
    with Path("notes.txt").open("a") as notes:
        notes.write(prompt.strip() + "\n")


def failure_of(prompt: str, variable: str) -> str | None:
    if "login refused" in prompt or not os.environ.get(variable):
        return "login"
    return "limit" if "limit reached" in prompt else None


def line(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def claude(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("-p", "--print", action="store_true", required=True)
    options.add_argument("--output-format", choices=["text", "json", "stream-json"])
    options.add_argument("--verbose", action="store_true")
    options.add_argument("--dangerously-skip-permissions", action="store_true", required=True)
    options.add_argument("--model")
    given = options.parse_args(arguments)
    if given.output_format == "stream-json" and not given.verbose:
        print("When using --print, --output-format=stream-json requires --verbose", file=sys.stderr)
        return 1
    if os.getuid() == 0:
        print("--dangerously-skip-permissions cannot be used with root", file=sys.stderr)
        return 1
    prompt = sys.stdin.read()
    line(type="system", subtype="init", session_id="s1", model=given.model, tools=["Edit"])
    failure = failure_of(prompt, "ANTHROPIC_API_KEY")
    if failure is not None:
        texts = {
            "login": "Invalid API key · Fix external API key",
            "limit": 'API Error: 429 {"type":"error","error":{"type":"rate_limit_error"}}',
        }
        line(
            type="result",
            subtype="success",
            is_error=True,
            result=texts[failure],
            total_cost_usd=0,
            usage={"input_tokens": 0, "output_tokens": 0},
        )
        return 1
    content: list[dict[str, object]] = [{"type": "text", "text": "I will write it."}]
    content.append({"type": "tool_use", "name": "Edit", "input": {"file_path": "notes.txt"}})
    line(type="assistant", message={"role": "assistant", "content": content}, session_id="s1")
    write_note(prompt)
    line(type="user", message={"role": "user", "content": [{"type": "tool_result"}]})
    line(
        type="result",
        subtype="success",
        is_error=False,
        duration_ms=12,
        num_turns=2,
        result=ANSWER,
        session_id="s1",
        total_cost_usd=0.0125,
        usage={"input_tokens": 10, "cache_read_input_tokens": 890, "output_tokens": 150},
    )
    return 0


def codex(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("command", choices=["exec"])
    options.add_argument("--json", action="store_true", required=True)
    options.add_argument("--skip-git-repo-check", action="store_true")
    options.add_argument(
        "--dangerously-bypass-approvals-and-sandbox", action="store_true", required=True
    )
    options.add_argument("-m", "--model")
    options.add_argument("prompt", choices=["-"])
    options.parse_args(arguments)
    prompt = sys.stdin.read()
    line(type="thread.started", thread_id="t1")
    line(type="turn.started")
    failure = failure_of(prompt, "CODEX_API_KEY")
    if failure is not None:
        status = {"login": "401 Unauthorized", "limit": "429 Too Many Requests"}[failure]
        message = f"unexpected status {status}"
        line(type="error", message=message)
        line(type="turn.failed", error={"message": message})
        return 1
    item = {"id": "item_0", "type": "command_execution", "command": "bash -lc 'ls'"}
    line(type="item.completed", item={**item, "exit_code": 0, "status": "completed"})
    write_note(prompt)
    line(type="item.completed", item={"id": "item_1", "type": "agent_message", "text": ANSWER})
    usage = {"input_tokens": 900, "cached_input_tokens": 800, "output_tokens": 150}
    line(type="turn.completed", usage=usage)
    return 0


def gemini(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("-o", "--output-format", choices=["text", "json", "stream-json"])
    options.add_argument("--approval-mode", choices=["default", "auto_edit", "yolo"])
    options.add_argument("-m", "--model")
    given = options.parse_args(arguments)
    prompt = sys.stdin.read()
    failure = failure_of(prompt, "GEMINI_API_KEY")
    if failure == "login":
        print("Please set an Auth method in your settings", file=sys.stderr)
        return 41
    if failure == "limit":
        error = {"type": "ApiError", "message": "got status: RESOURCE_EXHAUSTED", "code": 429}
        print(json.dumps({"session_id": "s1", "error": error}, indent=2))
        return 1
    write_note(prompt)
    tokens = {"prompt": 900, "candidates": 150, "total": 1050, "cached": 0, "thoughts": 0}
    stats = {"models": {given.model: {"api": {"totalRequests": 1}, "tokens": tokens}}}
    print(json.dumps({"session_id": "s1", "response": ANSWER, "stats": stats}, indent=2))
    return 0


def aider(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--message-file", required=True)
    options.add_argument("--yes-always", action="store_true", required=True)
    for name in ("stream", "pretty", "gitignore", "check-update", "analytics", "detect-urls"):
        options.add_argument(f"--no-{name}", action="store_true")
    options.add_argument("--no-show-model-warnings", action="store_true")
    options.add_argument("--model")
    given = options.parse_args(arguments)
    prompt = Path(given.message_file).read_text()
    Path(".aider.chat.history.md").write_text(prompt)
    if failure_of(prompt, "ANTHROPIC_API_KEY") is not None:
        print("litellm.AuthenticationError: invalid x-api-key")
        return 0
    write_note(prompt)
    subprocess.run(["git", "add", "notes.txt"], check=True)
    subprocess.run(["git", "commit", "--quiet", "-m", "docs: Write the note"], check=True)
    print(f"{ANSWER}\nTokens: 900 sent, 150 received. Cost: $0.01 message, $0.01 session.")
    return 0


AGENTS = {"claude": claude, "codex": codex, "gemini": gemini, "aider": aider}

if __name__ == "__main__":
    sys.exit(main())
