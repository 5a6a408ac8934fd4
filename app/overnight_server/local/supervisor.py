"""Keep a set of services running: start them in order, restart what dies, stop them in reverse.

Every service stands under a guard (`local/guard_process.py`), so that even `kill -9` of the
supervisor leaves nothing behind. One loop on the main thread does all the work, between signals.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from overnight_server.local.console import Console
from overnight_server.local.logfile import LogFile
from overnight_server.local.service_state import Post, Service, pause_before_restart, read_now

READINESS_PAUSE = 0.1
LONGEST_SLEEP = 1.0
#: What a hurried stop leaves the services before they are killed.
HURRY_GRACE = 2.0
#: A service that fell so often before it was ever ready will not make it by itself.
HOPELESS_FALLS = 3
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Run services until told to stop. Use it as a context manager on the main thread.

    `held` are open files (the lock of the home) that stay open until every service is gone.
    """

    def __init__(self, logs: Path, console: Console, *, held: Sequence[int] = ()) -> None:
        self.logs = logs
        self.console = console
        self.held = held
        self.stop_requests = 0
        self._posts: dict[str, Post] = {}
        self._files: dict[str, LogFile] = {}
        self._stopping = False

    def __enter__(self) -> Self:
        self._nudged, self._wake = os.pipe()
        os.set_blocking(self._nudged, False)
        os.set_blocking(self._wake, False)
        self._old_wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, self._on_stop) for number in _STOPS}
        # Only to be woken: the loop itself looks who has ended.
        self._old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _n, _f: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._nudged)
        os.close(self._wake)
        for file in self._files.values():
            file.close()

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop_requests += 1

    def add(self, services: Iterable[Service]) -> None:
        """Take on services; each starts as soon as what it depends on is ready."""
        for service in services:
            self._posts[service.name] = Post(service)

    def run_until(self, condition: Callable[[], bool], *, timeout: float | None = None) -> bool:
        """Keep everything going until the condition holds; False on a stop request or time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition():
            if self.stop_requests or (deadline is not None and time.monotonic() > deadline):
                return False
            self._turn()
        return True

    def run_until_ready(self, timeout: float) -> bool:
        """Keep everything going until every service is ready; False if one keeps falling."""

        def settled() -> bool:
            return not self.unready() or self._is_hopeless()

        return self.run_until(settled, timeout=timeout) and not self.unready()

    def _is_hopeless(self) -> bool:
        return any(
            post.falls >= HOPELESS_FALLS and not post.is_ready for post in self._posts.values()
        )

    def run(self) -> None:
        """Keep everything going until someone asks to stop."""
        self.run_until(lambda: False)

    def run_once(self, service: Service, *, timeout: float | None = None) -> int | None:
        """Run a program to its end beside the others; None if it did not end by itself."""
        post = Post(service, lasting=False)
        self._posts[service.name] = post
        ended = self.run_until(lambda: post.exit_code is not None, timeout=timeout)
        if post.process:
            post.process.ask_to_stop()
            self._wait_for([post])
        del self._posts[service.name]
        return post.exit_code if ended else None

    def unready(self) -> list[str]:
        """Name the services that are not ready now."""
        return [name for name, post in self._posts.items() if not post.is_ready]

    def last_words(self, name: str) -> list[str]:
        """Return the last lines that a service printed."""
        return list(self._posts[name].last_words)

    def say(self, text: str) -> None:
        """Tell the person at the terminal, and the deployment's own log."""
        self.console.say(text)
        self._log("overnight", text)

    def stop(self) -> None:
        """End all services, the youngest first; one more stop request makes it hurry.

        A service is asked when nothing that needs it runs any more, so that Postgres goes last.
        """
        self._stopping = True
        requests_before = self.stop_requests
        unasked = list(reversed(self._posts.values()))
        while self.running() and self.stop_requests == requests_before:
            for post in [post for post in unasked if not self._is_needed(post)]:
                unasked.remove(post)
                if post.process:
                    self.console.line(post.service.name, "stopping")
                    post.process.ask_to_stop()
            self._turn()
        if self.running():
            self._hurry()
        self._posts.clear()
        self._stopping = False

    def running(self) -> list[str]:
        """Name the services of which anything still runs."""
        return [name for name, post in self._posts.items() if post.process]

    def _is_needed(self, post: Post) -> bool:
        return any(
            other.process and post.service.name in other.service.depends_on
            for other in self._posts.values()
        )

    def _hurry(self) -> None:
        self.say("hurrying")
        running = [post for post in self._posts.values() if post.process]
        for post in running:
            if post.process:
                post.process.ask_to_stop()
        deadline = time.monotonic() + HURRY_GRACE
        self._wait_for(running, unless=lambda: time.monotonic() > deadline)
        for post in running:
            if post.process:
                post.process.send_signal(signal.SIGKILL)
        self._wait_for(running)

    def _wait_for(
        self, posts: Sequence[Post], *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        while any(post.process for post in posts) and not unless():
            self._turn()

    def _turn(self) -> None:
        """Wait for news, then hear, bury, start and question every service once."""
        self._wait_for_news()
        for post in list(self._posts.values()):
            ended = post.has_ended()  # asked first, so that its very last line is heard
            self._hear(post, to_the_end=ended)
            if ended:
                self._bury(post)
        if self._stopping or self.stop_requests:
            return
        for post in list(self._posts.values()):
            if post.is_due and self._has_what_it_needs(post):
                post.start(self.held)
            if post.ask_if_ready() and post.falls:
                self.say(f"{post.service.name} is back")

    def _wait_for_news(self) -> None:
        outputs = [post.process.output for post in self._posts.values() if post.process]
        sources = [output for output in outputs if output is not None]
        restless = self._stopping or self.unready()
        patience = READINESS_PAUSE if restless else LONGEST_SLEEP
        select.select([self._nudged, *(source.fileno() for source in sources)], [], [], patience)
        read_now(self._nudged)

    def _has_what_it_needs(self, post: Post) -> bool:
        needed = (self._posts.get(name) for name in post.service.depends_on)
        return all(other is not None and other.is_ready for other in needed)

    def _hear(self, post: Post, *, to_the_end: bool) -> None:
        for line in post.new_lines(to_the_end=to_the_end):
            self._log(post.service.name, line)
            self.console.line(post.service.name, line)

    def _bury(self, post: Post) -> None:
        how = post.take_down()
        if post.lasting and not self._stopping and not self.stop_requests:
            pause = pause_before_restart(post.falls)
            self.say(f"{post.service.name} {how}; starting it again in {pause:.0f} s")

    def _log(self, name: str, line: str) -> None:
        if name not in self._files:
            self._files[name] = LogFile(self.logs / f"{name}.log")
        self._files[name].append(line)
