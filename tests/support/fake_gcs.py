"""A small Google Cloud Storage that is right where it matters: preconditions on every kind of upload, paging, faults.

In a test: `with FakeGcs() as fake:`. As a process of its own: `python -m support.fake_gcs --bucket b`, which prints its
address and ends when its standard input does. `POST /fake/rates` sets fault rates, `GET /fake/report` counts.
"""

import argparse
import json
import re
import socket
import struct
import sys
import threading
import uuid
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.fake_gcs_bucket import Bucket, Conditions, Object, Problem, Resource
from support.fake_gcs_faults import Faults, Rates

PERMISSIONS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
Answer = tuple[int, dict[str, str], bytes]


class FakeGcs:
    """The service. Start it by `with`; `faults`, `permissions` and `buckets` may be changed while it runs."""

    def __init__(self, *buckets: str, port: int = 0, faults: Faults | None = None) -> None:
        self.buckets = {name: Bucket(name) for name in buckets or ("bucket",)}
        self.faults = faults or Faults()
        self.permissions = PERMISSIONS
        self.counts: Counter[str] = Counter()
        self.sessions: dict[str, Upload] = {}
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.fake = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> "FakeGcs":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __enter__(self) -> "FakeGcs":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def bucket(self, name: str) -> Bucket:
        if name not in self.buckets:
            raise Problem(404, "notFound", "The specified bucket does not exist.")
        return self.buckets[name]

    def report(self) -> dict[str, Any]:
        """Requests by kind, faults by kind, and names overwritten within a second."""
        return {"counts": dict(self.counts), "hasty": [n for b in self.buckets.values() for n in b.hasty]}


class Upload:
    """A resumable upload in progress. Its conditions are those of its start and are checked when it is whole."""

    def __init__(self, bucket: Bucket, name: str, given: Resource, conditions: Conditions) -> None:
        self.bucket, self.name, self.given, self.conditions = bucket, name, given, conditions
        self.data = b""

    def take(self, body: bytes, content_range: str) -> Resource | None:
        """Take in a chunk (`bytes a-b/n`, `bytes a-b/*`, `bytes */n`); the object once it is whole."""
        match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", content_range) if content_range else None
        if content_range and match is None:
            raise Problem(400, "invalid", f"Bad Content-Range: {content_range}")
        start, total = (match[1], match[2]) if match else ("0", str(len(body)))
        if start is not None and body:
            at = int(start)
            if at > len(self.data):
                raise Problem(400, "invalid", "a chunk is missing")
            self.data = self.data[:at] + body
        if total == "*" or len(self.data) < int(total):
            return None
        return self.bucket.insert(self.name, self.data, self.given, self.conditions)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    fake: FakeGcs

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        url = urlsplit(self.path)
        query = {k: v[-1] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        if url.path.startswith("/fake/"):
            return self._send(*self._control(url.path, body))
        fake = self.server.fake
        kind = fake.faults.strike(self.command)
        fake.counts[f"fault {kind}" if kind else "fault none"] += 1
        if kind == "cut":
            return self._hang_up()
        if kind.isdecimal():
            return self._send(*_problem(Problem(int(kind), "fault", f"injected {kind}")))
        answer = self._answer(url.path, query, body)
        if kind == "drop":
            self._hang_up()
        elif kind == "late503":
            self._send(*_problem(Problem(503, "backendError", "injected after the work was done")))
        else:
            self._send(*answer, short=kind == "short")

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        try:
            return self._route(path, query, body)
        except Problem as problem:
            return _problem(problem)

    def _route(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        fake, method = self.server.fake, self.command
        for pattern, wanted, handler in _ROUTES:
            match = re.fullmatch(pattern, path)
            if match and method in wanted:
                fake.counts[handler.__name__.lstrip("_")] += 1
                return handler(
                    self, fake.bucket(match[1]), *(unquote(part) for part in match.groups()[1:]), query, body
                )
        if (method, path) == ("POST", "/storage/v1/b"):
            name = json.loads(body)["name"]
            fake.buckets.setdefault(name, Bucket(name))
            return _json({"kind": "storage#bucket", "name": name})
        raise Problem(404, "notFound", f"no such call: {method} {path}")

    def _control(self, path: str, body: bytes) -> Answer:
        fake = self.server.fake
        if path == "/fake/rates":
            fake.faults.rates = Rates(**json.loads(body))
        return _json(fake.report())

    # -- calls ------------------------------------------------------------------------------------------------

    def _get_bucket(self, bucket: Bucket, query: dict[str, str], body: bytes) -> Answer:
        return _json({"kind": "storage#bucket", "name": bucket.name, "location": "US"})

    def _test_permissions(self, bucket: Bucket, query: dict[str, str], body: bytes) -> Answer:
        asked = parse_qs(urlsplit(self.path).query).get("permissions", [])
        return _json({"permissions": [p for p in asked if p in self.server.fake.permissions]})

    def _list(self, bucket: Bucket, query: dict[str, str], body: bytes) -> Answer:
        return _json(bucket.list(query))

    def _get(self, bucket: Bucket, name: str, query: dict[str, str], body: bytes) -> Answer:
        generation = int(query["generation"]) if "generation" in query else None
        found = bucket.get(name, Conditions.of(query), generation)
        return _media(found, self.headers.get("Range")) if query.get("alt") == "media" else _json(found.resource)

    def _delete(self, bucket: Bucket, name: str, query: dict[str, str], body: bytes) -> Answer:
        bucket.delete(name, Conditions.of(query))
        return 204, {}, b""

    def _insert(self, bucket: Bucket, query: dict[str, str], body: bytes) -> Answer:
        conditions, kind = Conditions.of(query), query.get("uploadType")
        type_ = self.headers.get("Content-Type", "")
        if kind == "media":
            return _json(bucket.insert(query.get("name", ""), body, {"contentType": type_}, conditions))
        if kind == "multipart":
            given, data = _parts(body, type_)
            return _json(bucket.insert(given.get("name") or query.get("name", ""), data, given, conditions))
        if kind == "resumable":
            given = json.loads(body or b"{}")
            ident = uuid.uuid4().hex
            upload = Upload(bucket, given.get("name") or query.get("name", ""), given, conditions)
            self.server.fake.sessions[ident] = upload
            where = f"{self.server.fake.url}/upload/storage/v1/b/{bucket.name}/o?uploadType=resumable&upload_id={ident}"
            return 200, {"Location": where, "X-GUploader-UploadID": ident}, b""
        raise Problem(400, "invalid", f"Invalid upload type: {kind}")

    def _chunk(self, bucket: Bucket, query: dict[str, str], body: bytes) -> Answer:
        upload = self.server.fake.sessions.get(query.get("upload_id", ""))
        if upload is None:
            raise Problem(404, "notFound", "no such upload")
        made = upload.take(body, self.headers.get("Content-Range", ""))
        if made is not None:
            return _json(made)
        return 308, {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}, b""

    # -- the wire ---------------------------------------------------------------------------------------------

    def _send(self, status: int, headers: dict[str, str], body: bytes, *, short: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if short else body)
        self.wfile.flush()
        if short:
            self._hang_up()

    def _hang_up(self) -> None:
        """Reset the connection."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Tests want no log."""


_B, _O = r"/storage/v1/b/([^/]+)", r"/o/([^/]+)"
_ROUTES: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    (f"/upload{_B}/o", ("POST",), _Handler._insert),
    (f"/upload{_B}/o", ("PUT",), _Handler._chunk),
    (f"(?:/download)?{_B}{_O}", ("GET",), _Handler._get),
    (f"{_B}{_O}", ("DELETE",), _Handler._delete),
    (f"{_B}/o", ("GET",), _Handler._list),
    (f"{_B}/iam/testPermissions", ("GET",), _Handler._test_permissions),
    (_B, ("GET",), _Handler._get_bucket),
)


def _json(value: Any) -> Answer:
    return 200, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(value).encode()


def _problem(problem: Problem) -> Answer:
    if problem.status == 304:
        return 304, {}, b""
    details = {"message": problem.message, "domain": "global", "reason": problem.reason}
    error = {"code": problem.status, "message": problem.message, "errors": [details]}
    return problem.status, *_json({"error": error})[1:]


def _media(found: Object, wanted: str | None) -> Answer:
    """The object's bytes, or the range `bytes=a-b` of them; 416 where it begins at or after the end."""
    resource, data, status = found.resource, found.data, 200
    headers = {
        "Content-Type": resource["contentType"],
        "X-Goog-Generation": resource["generation"],
        "X-Goog-Metageneration": resource["metageneration"],
        "X-Goog-Hash": f"crc32c={resource['crc32c']},md5={resource['md5Hash']}",
        "X-Goog-Stored-Content-Length": resource["size"],
        "ETag": resource["etag"],
    }
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted or "")
    if match:
        start, end = int(match[1]), int(match[2] or len(data) - 1)
        if start >= len(data):
            raise Problem(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        data, status = data[start : end + 1], 206
        headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{len(found.data)}"
    return status, headers, data


def _parts(body: bytes, type_: str) -> tuple[Resource, bytes]:
    """Metadata and content of a multipart/related body, whose lines end in CRLF or, from some clients, LF."""
    match = re.search(r"boundary=\"?([^\";]+)", type_)
    if match is None or not body.startswith(b"--" + (mark := match[1].encode())):
        raise Problem(400, "invalid", "Multipart body is malformed")
    end = b"\r\n" if body.startswith(b"--" + mark + b"\r\n") else b"\n"
    closing = body.rfind(end + b"--" + mark + b"--")
    first, separator, second = body[: max(closing, 0)].partition(end + b"--" + mark + end)
    if not separator:
        raise Problem(400, "invalid", "Multipart body is malformed")
    head, content = (part.partition(end * 2) for part in (first, second))
    given = json.loads(head[2])
    declared = re.search(rb"(?i)content-type: *([^\r\n]+)", content[0])
    return ({"contentType": declared[1].decode()} if declared else {}) | given, content[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bucket", action="append", default=[])
    parser.add_argument("--rates", default="{}", help="fault rates as JSON")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    faults = Faults(Rates(**json.loads(args.rates)), args.seed)
    with FakeGcs(*args.bucket, port=args.port, faults=faults) as fake:
        print(fake.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
