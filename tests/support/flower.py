"""Flower as an operator's browser meets it."""

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

SIGN_IN = "operator:not-a-secret"


@dataclass(frozen=True)
class Flower:
    """Flower as an operator's browser meets it."""

    port: int

    def status(self, path: str, *, method: str = "GET", sign_in: str | None = SIGN_IN) -> int:
        """Return how a request is answered."""
        try:
            with urllib.request.urlopen(self._request(path, method, sign_in), timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def get(self, path: str) -> Any:
        """Return an answer's JSON."""
        with urllib.request.urlopen(self._request(path, "GET", SIGN_IN), timeout=10) as answer:
            return json.load(answer)

    def is_up(self) -> bool:
        """Tell whether it answers at all."""
        try:
            return self.status("/healthcheck") == 200
        except urllib.error.URLError:
            return False

    def _request(self, path: str, method: str, sign_in: str | None) -> urllib.request.Request:
        word = (
            {"Authorization": f"Basic {base64.b64encode(sign_in.encode()).decode()}"}
            if sign_in
            else {}
        )
        return urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers=word, method=method
        )
