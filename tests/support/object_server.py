"""An S3 server on this machine, as much of it as Arrow's client uses: objects in memory, no permissions.

Arrow, its AWS client, signatures and requests are those of production; only the store behind them is small.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = "2026-01-01T00:00:00.000Z"


class ObjectServer(ThreadingHTTPServer):
    """Buckets and objects by the paths `bucket/key`; a request that contains a text of `failing` is refused."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.failing: tuple[str, str] | None = None
        self.requests: list[str] = []
        # Whether lists of objects go on without end.
        self.endless = False
        # The part of an upload that is stored in half, while the rest of it is lost with an error.
        self.broken_part: int | None = None

    @property
    def options(self) -> str:
        """What an address needs to reach this server."""
        return f"?scheme=http&endpoint_override=127.0.0.1:{self.server_address[1]}&region=us-east-1"


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """A running server."""
    server = ObjectServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _joined(stream: Any) -> bytes:
    """The data of chunks, each with its length before it."""
    found = b""
    while length := int(stream.readline().split(b";")[0], 16):
        found += stream.read(length)
        stream.readline()
    return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ObjectServer

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _body(self) -> bytes:
        """The body, which a client may send in chunks with checksums between them."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = _joined(self.rfile)
            self.rfile.readline()  # the end of the last chunk
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return _joined(BytesIO(data)) if self.headers.get("Content-Encoding") == "aws-chunked" else data

    def _handle(self) -> None:
        address = urlsplit(self.path)
        path, query = unquote(address.path).lstrip("/"), parse_qs(address.query, keep_blank_values=True)
        body = self._body()
        self.server.requests.append(f"{self.command} {path}")
        failing = self.server.failing
        if failing is not None and self.command == failing[0] and path.endswith(failing[1]):
            return self._error(403, "AccessDenied")
        bucket, _, key = path.partition("/")
        if not key and not any(name.startswith(f"{bucket}/") for name in self.server.objects):
            return self._error(404, "NoSuchBucket")
        if not key:
            return self._answer(200) if self.command == "HEAD" else self._list(bucket, query)
        if self.command in ("GET", "HEAD"):
            return self._send_object(path)
        if self.command == "PUT":
            return self._store(path, query, body)
        return self._post(path, query) if self.command == "POST" else self._delete(path, query)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix, mark = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        keys = sorted(name.partition("/")[2] for name in self.server.objects if name.startswith(f"{bucket}/"))
        found, folders = [], []
        for key in (key for key in keys if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if mark and mark in rest:
                folders.append(prefix + rest.partition(mark)[0] + mark)
            else:
                found.append(key)
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[f'{bucket}/{key}'])}</Size>"
            f"<LastModified>{_DATE}</LastModified></Contents>"
            for key in found
        ]
        rows += [
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in dict.fromkeys(folders)
        ]
        more = "<IsTruncated>false</IsTruncated>"
        if self.server.endless:
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{len(self.server.requests)}"
            more += "</NextContinuationToken>"
        head = f"<KeyCount>{len(rows)}</KeyCount>{more}"
        self._answer(200, f"<ListBucketResult>{head}{''.join(rows)}</ListBucketResult>".encode())

    def _send_object(self, path: str) -> None:
        data, date = self.server.objects.get(path), "Thu, 01 Jan 2026 00:00:00 GMT"
        if data is None:
            return self._answer(404) if self.command == "HEAD" else self._error(404, "NoSuchKey")
        if self.command == "HEAD":
            return self._answer(200, Content_Length=str(len(data)), Last_Modified=date)
        wanted = self.headers.get("Range")
        if wanted is None:
            return self._answer(200, data, Last_Modified=date)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        return self._answer(206, part, Content_Range=f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")

    def _store(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if self.server.broken_part is not None and query.get("partNumber") == [str(self.server.broken_part)]:
            self.server.objects[path] = body[: len(body) // 2]
            self._error(403, "AccessDenied")
            return
        if "partNumber" in query:
            self.server.parts[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            self.server.objects[path] = body
        self._answer(200, ETag='"0"')

    def _post(self, path: str, query: dict[str, list[str]]) -> None:
        if "uploads" in query:
            upload = f"upload{len(self.server.parts)}"
            self.server.parts[upload] = {}
            name = "InitiateMultipartUploadResult"
            return self._answer(200, f"<{name}><UploadId>{upload}</UploadId></{name}>".encode())
        if "uploadId" in query:
            parts = self.server.parts.pop(query["uploadId"][0])
            self.server.objects[path] = b"".join(parts[number] for number in sorted(parts))
            name = "CompleteMultipartUploadResult"
            return self._answer(200, f"<{name}><ETag>0</ETag></{name}>".encode())
        return self._error(400, "InvalidRequest")

    def _delete(self, path: str, query: dict[str, list[str]]) -> None:
        if "uploadId" in query:
            self.server.parts.pop(query["uploadId"][0], None)
        else:
            self.server.objects.pop(path, None)
        self._answer(204)
