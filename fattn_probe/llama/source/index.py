"""Finds a release's sdist on a simple package index (PEP 503 HTML, PEP 691 JSON)."""

import difflib
import http.client
import json
import os
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.base.files import MIB
from fattn_probe.llama.source.spec import PypiSpec, normalise_name

DEFAULT_INDEX = "https://pypi.org/simple"
ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
TIMEOUT = 60.0
MOST_PAGE = 64 * MIB
SDIST_ENDING = ".tar.gz"


@dataclass(frozen=True)
class IndexFile:
    """A file on the index; `sha256` is the digest on the index, or None."""

    filename: str
    url: str
    sha256: str | None


class AnchorParser(HTMLParser):
    """Collects the `href` of every anchor on a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an anchor's target."""
        if tag == "a" and (href := dict(attrs).get("href")):
            self.links.append(href)


def index_url() -> str:
    """The package index: $FATTN_PROBE_INDEX, $PIP_INDEX_URL, or PyPI."""
    chosen = os.environ.get("FATTN_PROBE_INDEX") or os.environ.get("PIP_INDEX_URL") or DEFAULT_INDEX
    return chosen.rstrip("/")


def find_sdist(spec: PypiSpec) -> IndexFile:
    """The release's sdist; for an unknown release, InputError names the nearest versions."""
    page = f"{index_url()}/{spec.name}/"
    sdists = {version: file for file in list_files(page) if (version := sdist_version(spec.name, file.filename))}
    if spec.version in sdists:
        return sdists[spec.version]
    near = difflib.get_close_matches(spec.version, sdists, n=3, cutoff=0.5) or list(sdists)[-3:]
    known = f"it has {len(sdists)}, the nearest: {', '.join(near)}" if near else "it has none at all"
    raise InputError(f"{spec.name} has no sdist of version {spec.version} on {page}; {known}")


def releases(name: str) -> list[str]:
    """The versions of a project that have an sdist, oldest first."""
    found = {sdist_version(name, file.filename) for file in list_files(f"{index_url()}/{name}/")}
    return sorted(filter(None, found), key=lambda version: [int(word) for word in re.findall(r"\d+", version)])


def sdist_version(name: str, filename: str) -> str | None:
    """The version in the file name of a project's sdist; None for any other file."""
    if not filename.endswith(SDIST_ENDING):
        return None
    project, _, version = filename.removesuffix(SDIST_ENDING).rpartition("-")
    return version if normalise_name(project) == name else None


def list_files(page: str) -> list[IndexFile]:
    """Every file on a project's page, which may be HTML or JSON."""
    body, kind, final_url = fetch_page(page)
    try:
        if kind.endswith("json"):  # PEP 691
            listed = ((file["filename"], file["url"], file.get("hashes", {})) for file in json.loads(body)["files"])
            join = urllib.parse.urljoin
            return [IndexFile(name, join(final_url, url), sha.get("sha256")) for name, url, sha in listed]
        parser, files = AnchorParser(), []
        parser.feed(body)
        for link in parser.links:  # PEP 503: the digest is the link's fragment
            url, _, fragment = urllib.parse.urljoin(final_url, link).partition("#")
            filename = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
            files.append(IndexFile(filename, url, dict(urllib.parse.parse_qsl(fragment)).get("sha256")))
        return files
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LostError(f"the package index answered with a damaged page: {page} ({error!r})") from error


def fetch_page(page: str) -> tuple[str, str, str]:
    """A page's text, its media type, and its URL after redirects."""
    try:
        with open_url(page) as answer:
            body = answer.read(MOST_PAGE + 1)
            if len(body) > MOST_PAGE:
                raise LostError(f"the package index answered with more than {MOST_PAGE // MIB} MiB: {page}")
            return body.decode("utf-8", errors="replace"), answer.headers.get_content_type(), answer.url
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise InputError(f"the package index has no such project: {page} ({error})") from error
        raise LostError(f"the package index answered {error}: {page}") from error
    except (OSError, http.client.HTTPException) as error:
        raise LostError(f"the package index cannot be reached: {page} ({error})") from error


def open_url(url: str) -> "urllib.response.addinfourl":
    """Open a URL of an index; for a folder given as file://, open its index.html, as pip does."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "file" and Path(urllib.parse.unquote(parts.path)).is_dir():
            url = urllib.parse.urljoin(url, "index.html")
        request = urllib.request.Request(url, headers={"Accept": ACCEPT, "User-Agent": "fattn-probe"})
    except ValueError as error:
        raise InputError(f"{url!r} is not a URL (see $FATTN_PROBE_INDEX and $PIP_INDEX_URL): {error}") from error
    return urllib.request.urlopen(request, timeout=TIMEOUT)  # type: ignore[no-any-return]
