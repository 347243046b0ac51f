"""The monitor over HTTP, for what needs no broker. Only the standard library, so that a command starts at once."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from elps.client.control import QueryRefused
from elps.contracts.errors import InvalidDocument, RetryLater
from elps.contracts.ids import parse_job_id

ANSWER_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class MonitorHttp:
    """Blocking queries to the monitor's `/api`; one connection each.

    Every method raises `RetryLater` when the monitor is not there, `QueryRefused` when it does not know the job.
    """

    def __init__(self, url: str, *, timeout_s: float = ANSWER_S, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._token = token
        # The monitor is on this host or in this cluster: a proxy for the internet is not asked.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def jobs(self) -> Any:
        """All jobs."""
        return self.get("/api/jobs")

    def job(self, job: str) -> Any:
        """One job."""
        return self.get(f"/api/jobs/{parse_job_id(job)}")

    def iterations(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        """Finished iterations of a job from number `since` on."""
        return self.get(f"/api/jobs/{parse_job_id(job)}/iterations", since=since, limit=limit)

    def logs(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        """What a job's trainers printed, from line `since` on."""
        return self.get(f"/api/jobs/{parse_job_id(job)}/logs", since=since, limit=limit)

    def workers(self) -> Any:
        """All worker agents."""
        return self.get("/api/workers")

    def shards(self) -> Any:
        """All shards."""
        return self.get("/api/shards")

    def health(self) -> tuple[dict[str, Any], str]:
        """The health report, of an unhealthy stack too, and the date on which the monitor says that it was made."""
        request = self._request("/healthz", {"Accept": "application/json"})
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                body, date = response.read(MAX_ANSWER_BYTES), response.headers.get("Date", "")
        except urllib.error.HTTPError as error:
            body, date = error.read(MAX_ANSWER_BYTES), error.headers.get("Date", "")
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise RetryLater(f"it did not answer ({why})") from None
        try:
            report = json.loads(body)
        except ValueError:
            report = None
        if not isinstance(report, dict) or "status" not in report:
            raise InvalidDocument("answer of the monitor", ["no health report: is it one of elps?"])
        return report, date

    def recent_events(self, job: str) -> list[Any]:
        """The events of a job that the monitor still holds, oldest first."""
        found: list[Any] = []
        asked: dict[str, int | str] = {"job": parse_job_id(job)}
        while True:
            answer = self.get("/api/events/recent", **asked)
            found += answer["events"]
            if not answer["more"]:
                return found
            asked["after"] = answer["next"]

    def get(self, path: str, **parameters: int | str) -> Any:
        """The JSON at `path`."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        request = self._request(path + query, {"Accept": "application/json"})
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                body = response.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            said = _reason(error.read(64 * 1024)) or f"{error.code} {error.reason}"
            if error.code >= 500:
                raise RetryLater(f"the monitor at {self._url} could not answer: {said}") from None
            raise QueryRefused(said) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise RetryLater(
                f"the monitor at {self._url} did not answer ({why}): is it running? try `make status`"
            ) from None
        if len(body) > MAX_ANSWER_BYTES:
            raise InvalidDocument(
                "answer of the monitor", [f"more than {MAX_ANSWER_BYTES >> 20} MiB; ask for less"]
            )
        try:
            return json.loads(body)
        except ValueError as error:
            raise InvalidDocument(
                "answer of the monitor", [f"{self._url}{path}: not JSON: {error}"]
            ) from None

    def _request(self, path: str, headers: dict[str, str]) -> urllib.request.Request:
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return urllib.request.Request(self._url + path, headers=headers)


def _reason(body: bytes) -> str:
    """What an error's JSON body says, or nothing."""
    try:
        said = json.loads(body)
    except ValueError:
        return ""
    if isinstance(said, dict):
        for key in ("reason", "detail", "error"):
            if isinstance(said.get(key), str):
                return str(said[key])
    return ""
