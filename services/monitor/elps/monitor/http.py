"""The HTTP side: routes, types, authority and errors. The answers come from the desk."""

from __future__ import annotations

import hmac
import ipaddress
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import structlog
from fastapi import Depends, FastAPI, Header, Path, Request, Response
from fastapi import Query as Parameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, StreamingResponse
from fastapi.routing import APIRouter
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from elps.contracts import answers, state, telemetry
from elps.contracts.codec import encode
from elps.contracts.errors import ElpsError, InvalidDocument, RetryLater
from elps.contracts.ids import ID_PATTERN
from elps.contracts.requests import Query
from elps.contracts.schema import component_schemas
from elps.monitor.core.intake import MAX_EVENT_ID, MAX_ITERATION, MAX_LIMIT, check_query
from elps.monitor.desk import Desk
from elps.monitor.health import health
from elps.monitor.metrics import CONTENT_TYPE, Metrics
from elps.monitor.queries import UnknownJob
from elps.monitor.settings import Settings
from elps.monitor.streaming import Readers

log = structlog.get_logger(__name__)

# The pattern is for the description alone: what is wrong with an id is told by `check_query`, in words.
_ID: dict[str, Any] = {"pattern": f"^{ID_PATTERN}$"}
JobPath = Annotated[str, Path(description="Id of the job", json_schema_extra=_ID)]
Since = Annotated[
    int, Parameter(ge=0, le=MAX_ITERATION, description="Number of the first one to return")
]
Limit = Annotated[
    int, Parameter(ge=1, le=MAX_LIMIT, description="How many at most; an answer may hold fewer")
]
JobFilter = Annotated[
    str | None, Parameter(description="Only events of this job", json_schema_extra=_ID)
]
After = Annotated[
    str, Parameter(max_length=MAX_EVENT_ID, description="Go on after the event with this id")
]
LastEvent = Annotated[
    str | None, Header(max_length=MAX_EVENT_ID, description="Go on after the event with this id")
]
Shown = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]

CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_FRESH = {"Cache-Control": "no-store"}
Answers = dict[int | str, dict[str, Any]]


def _answers(status: int, kind: type[msgspec.Struct], about: str = "") -> Answers:
    """What the description says of a route's answers with this status."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    described = {"description": about} if about else {}
    return {status: {"content": {"application/json": {"schema": schema}}} | described}


_DENIED = _answers(401, answers.Problem, "The token is missing or wrong")
_BAD = _answers(422, answers.Problem, "A parameter is out of range")
_ELSEWHERE = _answers(403, answers.Problem, "Asked under a name that is not this machine's")
_NO_JOB = _answers(404, answers.Problem, "There is no such job") | _answers(
    503, answers.Problem, "The store or the scheduler must be asked and does not answer"
)


class Described(FastAPI):
    """Knows the types of the answers, which FastAPI does not."""

    def openapi(self) -> dict[str, Any]:
        """The description of all routes."""
        found = super().openapi()
        kinds = [kind for kind in vars(answers).values() if isinstance(kind, type(msgspec.Struct))]
        schemas = component_schemas(kinds, (answers, state, telemetry))
        for schema in schemas.values():  # here nothing is left out
            if "properties" in schema:
                schema["required"] = list(schema["properties"])
        found.setdefault("components", {})["schemas"] = schemas
        return found


class Authority:
    """Knows the token, if there is one. Without one nothing is asked for, and the description says nothing of it."""

    def __init__(self, settings: Settings) -> None:
        self._token = settings.token.reveal().encode() if settings.token is not None else None
        self.asks = self._token is not None
        self.dependencies = [Depends(self.require if self.asks else self.require_local)]
        self.responses = _BAD | (_DENIED if self.asks else _ELSEWHERE)

    def accepts(self, shown: HTTPAuthorizationCredentials | None) -> bool:
        """Whether what was shown is enough."""
        if self._token is None:
            return True
        credentials = shown.credentials if shown is not None else ""
        return hmac.compare_digest(credentials.encode(errors="replace"), self._token)

    def require(self, shown: Shown) -> None:
        """A dependency of routes: 401 when it is not."""
        if not self.accepts(shown):
            reason = "this monitor wants a token: Authorization: Bearer <ELPS_TOKEN>"
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})

    @staticmethod
    def require_local(request: Request) -> None:
        """A dependency of routes without a token: 403 for a page of another site whose name was made to lead here."""
        if not _is_address(request.headers.get("host", "")):
            reason = (
                "without a token this monitor answers by its address alone: ask it as 127.0.0.1 or localhost, or "
                "start it with ELPS_TOKEN"
            )
            raise HTTPException(403, reason)


def _is_address(host: str) -> bool:
    """Whether a Host header names this machine, or an address: these are nobody else's to give."""
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def build(desk: Desk, settings: Settings, readers: Readers) -> FastAPI:
    """The application; `desk` answers, `readers` stream events."""
    app = Described(
        title="elps monitor",
        version=desk.version,
        description="Jobs, iterations, workers, shards and health of one elps stack. Read only.",
        docs_url=None,  # it would load its scripts from another host
        redoc_url=None,
    )
    authority = Authority(settings)
    api = APIRouter(dependencies=authority.dependencies, responses=authority.responses)
    _questions(api, desk)
    _flows(api, desk, readers)
    app.include_router(api)
    _open_to_all(app, desk, authority)
    _explain_errors(app)
    return app


def _questions(api: APIRouter, desk: Desk) -> None:
    """The questions that the broker's side answers too."""

    async def answer(query: Query) -> Response:
        check_query(query)
        return _json(await desk.answer(query))

    @api.get("/api/jobs", responses=_answers(200, answers.Jobs))
    async def jobs(limit: Limit = 1000) -> Response:
        """All jobs that are not ended, and the newest that are, in the order of their arrival."""
        return await answer(Query(what="jobs", limit=limit))

    @api.get("/api/jobs/{job}", responses=_answers(200, answers.JobDetail) | _NO_JOB)
    async def job(job: JobPath) -> Response:
        """One job, with its document."""
        return await answer(Query(what="job", job=job))

    @api.get("/api/jobs/{job}/explain", responses=_answers(200, answers.Explanation) | _NO_JOB)
    async def explain(job: JobPath) -> Response:
        """Why a job has what it has, and what would bring it more; the scheduler is asked."""
        return await answer(Query(what="explain", job=job))

    @api.get("/api/jobs/{job}/iterations", responses=_answers(200, answers.Iterations) | _NO_JOB)
    async def iterations(job: JobPath, since: Since = 0, limit: Limit = 1000) -> Response:
        """Finished iterations with each worker's times; go on with `since` = `next`."""
        return await answer(Query(what="iterations", job=job, since=since, limit=limit))

    @api.get("/api/jobs/{job}/logs", responses=_answers(200, answers.Output) | _NO_JOB)
    async def logs(job: JobPath, since: Since = 0, limit: Limit = 1000) -> Response:
        """What the job's trainers printed; go on with `since` = `next`."""
        return await answer(Query(what="logs", job=job, since=since, limit=limit))

    @api.get("/api/workers", responses=_answers(200, answers.Workers))
    async def workers() -> Response:
        """All worker agents with their trainers."""
        return await answer(Query(what="workers"))

    @api.get("/api/shards", responses=_answers(200, answers.Shards))
    async def shards() -> Response:
        """All shards with the jobs that they take part in."""
        return await answer(Query(what="shards"))


def _flows(api: APIRouter, desk: Desk, readers: Readers) -> None:
    """What is no question: events as they come, and the scrape."""
    stream: Answers = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
    stream |= _answers(503, answers.Problem, "Too many readers, or the store takes long")
    late = _answers(503, answers.Problem, "The store takes long")

    @api.get("/api/events", response_class=StreamingResponse, responses=stream)
    async def events(job: JobFilter = None, last_event_id: LastEvent = None) -> Response:
        """What happens to jobs, as server-sent events from now on, or from after `Last-Event-ID` on.

        The event's name is its `what`; ``missed`` tells that some were lost, so that the reader should ask anew.
        """
        check_query(Query(what="events", job=job))
        await desk.read_events()
        events = readers.open(last_event_id, job)
        return StreamingResponse(events, headers=_FRESH, media_type="text/event-stream")

    @api.get("/api/events/recent", responses=_answers(200, answers.Events) | late)
    async def recent(job: JobFilter = None, after: After = "", limit: Limit = 1000) -> Response:
        """Events that the monitor holds, from the oldest or from after one that was seen on.

        Go on with `after` = `next`.
        """
        query = Query(what="events", job=job, after=after, limit=limit)
        check_query(query)
        return _json(await desk.answer(query))

    metrics_of = Metrics(desk)

    @api.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Everything for Prometheus. Series of a job end with the job."""
        return Response(metrics_of.text(), media_type=CONTENT_TYPE)


def _open_to_all(app: FastAPI, desk: Desk, authority: Authority) -> None:
    """What needs no token: a bare health status, and the page, which holds no data."""
    described = _answers(200, answers.Health)
    described |= _answers(503, answers.Health, "A part of the stack is missing")

    def told(whole: bool) -> Response:
        report = health(desk.state, desk.clock.monotonic(), desk.around)
        if not whole:
            report = msgspec.structs.replace(report, parts={})
        return _json(encode(report), 200 if report.status == "ok" else 503)

    if authority.asks:
        extra: dict[str, Any] = {"security": [{}]}  # beside the token: without it less is told

        @app.get("/healthz", responses=described, openapi_extra=extra)
        async def healthz(shown: Shown) -> Response:
            """Whether the whole stack is there: 200 or 503. Without the token only that is told."""
            return told(authority.accepts(shown))

    else:

        @app.get("/healthz", responses=described)
        async def bare_healthz() -> Response:
            """Whether the whole stack is there: 200 or 503."""
            return told(True)

    page = files("elps.monitor").joinpath("page.html").read_text("utf-8")

    @app.get("/", response_class=HTMLResponse)
    async def dashboard() -> Response:
        """The dashboard: one page that asks the API; it holds no data itself."""
        headers = {"Content-Security-Policy": CSP, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(page, headers=headers)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, _FRESH, "application/json")


def _problem(status: int, reason: str, headers: Any = None) -> Response:
    return Response(encode(answers.Problem(reason=reason)), status, headers, "application/json")


def _explain_errors(app: FastAPI) -> None:
    """Every error has a JSON body with its reason."""

    @app.exception_handler(ElpsError)
    async def ours(_request: Request, error: ElpsError) -> Response:
        match error:
            case UnknownJob():
                return _problem(404, str(error))
            case InvalidDocument():
                return _problem(422, "; ".join(error.problems))
            case RetryLater():
                return _problem(503, str(error), {"Retry-After": "1"})
        log.error("request_failed", error=str(error), exc_info=error)
        return _problem(500, str(error))

    @app.exception_handler(RequestValidationError)
    async def parameters(_request: Request, error: RequestValidationError) -> Response:
        told = (f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg'].lower()}" for e in error.errors())
        return _problem(422, "; ".join(told))

    @app.exception_handler(HTTPException)
    async def plain(_request: Request, error: HTTPException) -> Response:
        return _problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> Response:
        log.error("request_failed", error=repr(error), exc_info=error)
        return _problem(500, "the monitor failed to answer; its log says why")
