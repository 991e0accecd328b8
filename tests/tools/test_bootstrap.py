from __future__ import annotations

import base64
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tools import bootstrap

if TYPE_CHECKING:
    from pathlib import Path


def test_the_newest_released_pip_is_chosen() -> None:
    """The newest released wheel is taken: no betas, sdists or other packages.

    Versions count as numbers, and links may be relative.
    """
    page = """
        <a href="../../files/pip-9.0.3-py3-none-any.whl#sha256=aa">x</a>
        <a href="../../files/pip-26.1-py3-none-any.whl#sha256=bb" data-requires-python="&gt;=3.9">x</a>
        <a href="../../files/pip-26.2b1-py3-none-any.whl">x</a><a href="pip-27.0.tar.gz">x</a>
        <a href="https://elsewhere/pip_tools-99.0-py3-none-any.whl">x</a>
    """

    assert bootstrap.newest_wheel(page, "https://index/simple/pip/") == (
        "pip-26.1-py3-none-any.whl",
        "https://index/files/pip-26.1-py3-none-any.whl#sha256=bb",
    )


def test_an_index_without_pip_is_reported() -> None:
    """A page that lists no wheel is an error that names the page."""
    with pytest.raises(ValueError, match="https://index/simple/pip/ lists no wheel of pip"):
        bootstrap.newest_wheel("<html>", "https://index/simple/pip/")


def test_settings_come_from_the_environment_before_the_files(tmp_path: Path) -> None:
    """PIP_INDEX_URL wins; then the file that PIP_CONFIG_FILE names, then the user's own."""
    own, named = tmp_path / "pip" / "pip.conf", tmp_path / "named.conf"
    own.parent.mkdir()
    own.write_text("[global]\nindex-url = https://own/simple\n", encoding="utf-8")
    named.write_text("[global]\nindex-url = https://named/simple\n", encoding="utf-8")
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}

    assert bootstrap.index_url(environment) == "https://own/simple"
    assert (
        bootstrap.index_url(environment | {"PIP_CONFIG_FILE": str(named)}) == "https://named/simple"
    )
    assert (
        bootstrap.index_url(environment | {"PIP_INDEX_URL": "https://given/simple"})
        == "https://given/simple"
    )


def test_the_fingerprint_depends_on_the_lock() -> None:
    """The fingerprint changes with the lock file."""
    assert (
        bootstrap.fingerprint("dev")
        == bootstrap.fingerprint("dev")
        != bootstrap.fingerprint("spark")
    )


def test_an_interpreter_that_does_not_run_is_not_usable(tmp_path: Path) -> None:
    """A dangling link to a removed Python in `.venv` counts as no environment."""
    link = tmp_path / "python"
    link.symlink_to(tmp_path / "gone")

    assert not bootstrap.is_usable(link)


def test_a_damaged_download_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The login of the index URL is sent, and a damaged wheel is refused."""
    offered = f"pip-1.0-py3-none-any.whl#sha256={hashlib.sha256(b'whole').hexdigest()}"

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = (
                self.headers["Authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
            )
            body = f'<a href="{offered}">'.encode() if self.path.endswith("/pip/") else b"damaged"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://me:p%40ss@127.0.0.1:{server.server_port}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(ValueError, match=r"pip-1\.0-py3-none-any\.whl is damaged"):
            bootstrap.download_pip()
        server.shutdown()
