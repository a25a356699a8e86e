"""A tiny llama.cpp tree, sdists of it, and a package index over a folder."""

import gzip
import hashlib
import http.server
import io
import json
import re
import subprocess
import tarfile
import threading
from pathlib import Path

FATTN = "ggml/src/ggml-cuda/fattn.cu"


def files_in(path: Path) -> dict[str, str]:
    """The texts of a file by their names, which stand above them, each on a line between dashes."""
    _, *found = re.split(r"^-- (.+) --\n", path.read_text(), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


TREE = files_in(Path(__file__).with_name("tiny_tree.txt"))


def write_tree(folder: Path, files=TREE) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def make_sdist(path: Path, prefix="thirdparty/llama.cpp", files=TREE, extra=()) -> str:
    """Write an sdist of a tree and return its sha256; `extra` are (TarInfo, bytes) put before the tree."""
    members = [
        (tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{prefix}/{name}"), text) for name, text in files.items()
    ]
    with gzip.open(path, "wb") as raw, tarfile.open(fileobj=raw, mode="w") as tar:
        for info, content in [*extra, *[(info, text.encode()) for info, text in members]]:
            info.size = len(content) if info.isfile() else 0
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(folder: Path, *words) -> str:
    """What git says in a folder, to a user with a name."""
    settings = ("user.name=n", "user.email=e@e", "init.defaultBranch=master", "commit.gpgsign=false")
    command = ["git", *(word for setting in settings for word in ("-c", setting)), "-C", folder, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def tagged(folder, text, tag="b4242"):
    """A repository with a tagged commit, whose fattn.cu starts with `text`."""
    write_tree(folder)
    (folder / FATTN).write_text(f"{text}\n{TREE[FATTN]}")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"], ["tag", "-am", "release", tag]):
        git(folder, *words)
    return folder


class FakeIndex:
    """A simple index: `publish` adds a file; `requests` counts requests; `broken` downloads end half-way."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: dict = {}
        self.requests: list = []
        self.broken, self.as_json = 0, False
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"

    def publish(self, name: str, sha256: str | None = None, **options) -> str:
        """Put an sdist `name` on the index; `sha256` is the digest that the index reports, by default the true one."""
        digest = make_sdist(self.folder / name, **options)
        self.files[name] = digest if sha256 is None else sha256
        return digest

    def page(self) -> tuple[bytes, str]:
        if self.as_json:
            files = [
                {"filename": n, "url": f"/files/{n}", "hashes": {"sha256": d} if d else {}}
                for n, d in self.files.items()
            ]
            return json.dumps({"files": files}).encode(), "application/vnd.pypi.simple.v1+json"
        links = (
            f'<a href="../../files/{n}{"#sha256=" + d if d else ""}" data-yanked="x &gt; y">{n}</a>'
            for n, d in self.files.items()
        )
        return ("<html>" + "\n".join(links) + "</html>").encode(), "text/html"

    def handler(self):
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                index.requests.append(self.path)
                if self.path == "/simple/xllamacpp/":
                    self.answer(*index.page())
                elif self.path.startswith("/files/"):
                    self.answer((index.folder / self.path.removeprefix("/files/")).read_bytes(), "application/gzip")
                else:
                    self.send_error(404)

            def answer(self, body, kind):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if kind.endswith("gzip") and index.broken > 0:
                    index.broken -= 1
                    body = body[: len(body) // 2]
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        return Handler

    def downloads(self) -> int:
        return sum(path.startswith("/files/") for path in self.requests)
