"""A stand-in for the Hugging Face Hub on 127.0.0.1: the part of its HTTP interface that downloads use."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def blob(path: Path) -> str:
    """The id of a file as git has it."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub(ThreadingHTTPServer):
    """Repositories by name: branches and tags to commits, commits to folders. ``asked`` has the files that clients fetched."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, tuple[dict[str, str], dict[str, Path]]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def publish(self, name: str, folder: Path, reference: str = "main") -> str:
        """Make a folder the content of a branch or tag. Returns the commit."""
        references, commits = self.repositories.setdefault(name, ({}, {}))
        commit = hashlib.sha1(f"{name} {reference} {folder}".encode()).hexdigest()
        references[reference], commits[commit] = commit, folder
        return commit


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?/?", path):
            name, what, revision = match[1], match[2], match[3] or "main"
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            name, what, revision = match[1], "resolve", match[2]
        else:
            return self.fails(404, "EntryNotFound")
        if name in self.server.gated:
            return self.fails(403, "GatedRepo")
        if name not in self.server.repositories:
            return self.fails(401, "RepoNotFound")
        references, commits = self.server.repositories[name]
        commit = references.get(revision, revision)
        if commit not in commits:
            return self.fails(404, "RevisionNotFound")
        folder = commits[commit]
        files = sorted(each for each in folder.rglob("*") if each.is_file())
        if what == "resolve":
            return self.sends(folder / match[3], commit, body)
        if what == "tree":
            tree = [
                {"type": "file", "path": str(each.relative_to(folder)), "size": each.stat().st_size, "oid": blob(each)}
                for each in files
            ]
            return self.answers(json.dumps(tree))
        siblings = [{"rfilename": str(each.relative_to(folder))} for each in files]
        facts = {"_id": "1", "id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": []}
        return self.answers(json.dumps(facts))

    def sends(self, path: Path, commit: str, body: bool) -> None:
        if not path.is_file():
            return self.fails(404, "EntryNotFound", commit)
        if body:
            self.server.asked.append(path.name)
        data = path.read_bytes()
        self.send_response(200)
        for name, value in (
            ("ETag", f'"{blob(path)}"'),
            ("X-Repo-Commit", commit),
            ("Content-Length", len(data)),
            ("Accept-Ranges", "bytes"),
        ):
            self.send_header(name, str(value))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def answers(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fails(self, status: int, code: str, commit: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
