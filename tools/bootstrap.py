"""`make setup`: make `.venv` ready from the lock file, with the standard library only.

Works with nothing but Python 3.11: also where Debian's python3-venv (ensurepip) is missing, and
where pip is missing. It is quick and silent when nothing has changed since the last time.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
#: What builds the packages without a wheel is installed before them.
BUILD_LOCK = "requirements-build.lock"
LOCK_FILES = {
    "dev": ["requirements-dev.lock"],
    "spark": ["requirements-dev.lock", "requirements-spark.lock"],
}
MIN_PYTHON = (3, 11)
_WHEEL = re.compile(r"pip-(\d+(?:\.\d+)*)-py3-none-any\.whl")


class SetupError(Exception):
    """The environment cannot be made; the message says why and what helps."""


def main(arguments: list[str]) -> int:
    """Make the environment ready, with Spark if `spark` is given; return the exit code."""
    if sys.version_info < MIN_PYTHON:
        print_progress(
            f"jsplan needs Python {'.'.join(map(str, MIN_PYTHON))} or newer; {sys.executable} is {sys.version.split()[0]}."
        )
        return 1
    lock = "spark" if "spark" in arguments else "dev"
    try:
        prepare(lock)
    except SetupError as error:
        print_progress(f"Set-up failed: {error}")
        return 1
    return 0


def prepare(lock: str) -> None:
    """Bring `.venv` to what the lock file says, unless it is there already; raises SetupError."""
    stamp = VENV / ".ready"
    if (
        VENV_PYTHON.exists()
        and stamp.exists()
        and stamp.read_text(encoding="utf-8") in {fingerprint(lock), fingerprint("spark")}
    ):
        return
    print_progress("Setting up .venv; the first time this takes a minute or two.")
    stamp.unlink(missing_ok=True)
    if not is_usable(VENV_PYTHON):
        make_environment()
    if not has_pip():
        install_pip()
    run_pip("install", "--require-hashes", "-r", str(ROOT / BUILD_LOCK))
    files = [word for name in LOCK_FILES[lock] for word in ("-r", str(ROOT / name))]
    run_pip("install", "--require-hashes", "--no-build-isolation", *files)
    run_pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    stamp.write_text(fingerprint(lock), encoding="utf-8")
    print_progress("Ready.")


def fingerprint(lock: str) -> str:
    """Describe all that the environment depends on, as one line of text."""
    # The place counts too: a virtual environment that was copied or moved has scripts that point
    # elsewhere.
    digest = hashlib.sha256(f"{lock}\n{VENV}\n".encode())
    for name in ("pyproject.toml", BUILD_LOCK, *LOCK_FILES[lock], "tools/bootstrap.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_usable(python: Path) -> bool:
    """Check whether this interpreter runs and is new enough."""
    check = f"import sys; sys.exit(sys.version_info < {MIN_PYTHON})"
    try:
        return (
            subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def make_environment() -> None:
    """Make an empty `.venv` without pip; raises SetupError."""
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", VENV],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    uv = shutil.which("uv")
    if (
        uv is None
        or subprocess.run(
            [uv, "venv", "--quiet", "--python", sys.executable, VENV], check=False
        ).returncode
    ):
        raise SetupError(
            f"{sys.executable} -m venv says: {done.stderr.strip() or done.stdout.strip()}"
        )


def has_pip() -> bool:
    """Check whether the environment has a pip that works."""
    return (
        subprocess.run(
            [VENV_PYTHON, "-m", "pip", "--version"], capture_output=True, check=False
        ).returncode
        == 0
    )


def install_pip() -> None:
    """Install pip by the first method that works. Raises SetupError if none does."""
    failures = []
    for command in pip_install_commands():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and has_pip():
            return
        failures.append(
            f"  {' '.join(map(str, command))}: {(done.stderr.strip() or 'no pip afterwards').splitlines()[-1]}"
        )
    try:
        download_pip()
    except (OSError, ValueError) as error:
        failures.append(f"  download from {index_url(os.environ)}: {error}")
    if not has_pip():
        raise SetupError(
            "\n".join(
                [
                    "pip cannot be had. Tried:",
                    *failures,
                    "Install pip for this Python, or set PIP_INDEX_URL and PIP_CERT.",
                ]
            )
        )


def pip_install_commands() -> Iterator[list[str | Path]]:
    """Return commands that may install pip into the environment, the most ordinary first."""
    yield [VENV_PYTHON, "-m", "ensurepip", "--default-pip"]
    yield [sys.executable, "-m", "pip", "--python", VENV_PYTHON, "install", "--quiet", "pip"]
    for name in ("pip3", "pip"):
        found = shutil.which(name)
        if found:
            yield [found, "--python", VENV_PYTHON, "install", "--quiet", "pip"]
    uv = shutil.which("uv")
    if uv:
        yield [uv, "pip", "install", "--quiet", "--python", VENV_PYTHON, "pip"]


def download_pip() -> None:
    """Fetch pip's wheel from the index and let it install itself; raises OSError or ValueError."""
    page = urllib.parse.urljoin(index_url(os.environ).rstrip("/") + "/", "pip/")
    name, url = newest_wheel(fetch(page).decode(), page)
    data = fetch(url)
    algorithm, _, expected = urllib.parse.urlsplit(url).fragment.partition("=")
    if algorithm == "sha256" and hashlib.sha256(data).hexdigest() != expected:
        raise ValueError(f"{name} is damaged: its sha256 is not {expected}")
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, name)
        wheel.write_bytes(data)
        done = subprocess.run(
            [VENV_PYTHON, wheel / "pip", "install", "--quiet", "--no-index", wheel],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ValueError(done.stderr.strip())


def newest_wheel(page: str, base: str) -> tuple[str, str]:
    """Return file name and URL of the newest pip on a page of the index. Raises ValueError."""
    links = Links()
    links.feed(page)
    found = {}
    for link in links.found:
        match = _WHEEL.fullmatch(
            urllib.parse.unquote(urllib.parse.urlsplit(link).path).rsplit("/", 1)[-1]
        )
        if match:
            found[tuple(int(part) for part in match[1].split("."))] = (
                match[0],
                urllib.parse.urljoin(base, link),
            )
    if not found:
        raise ValueError(f"{base} lists no wheel of pip")
    return found[max(found)]


class Links(HTMLParser):
    """Collects the targets of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser for each tag."""
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def fetch(url: str) -> bytes:
    """Return the body, with the URL's credentials and pip's `cert`. Raises OSError."""
    parts = urllib.parse.urlsplit(url)
    request = urllib.request.Request(
        parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    )
    if parts.username:
        login = (
            f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        )
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    authorities = setting("cert", os.environ)
    context = (
        ssl.create_default_context(cafile=authorities)
        if authorities
        else ssl.create_default_context()
    )
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        body: bytes = answer.read()
        return body


def index_url(environment: Mapping[str, str]) -> str:
    """Return the package index that pip would use."""
    return setting("index-url", environment) or "https://pypi.org/simple"


def setting(name: str, environment: Mapping[str, str]) -> str | None:
    """Return a setting of pip, from `PIP_<NAME>` or the last configuration file, or None."""
    given = environment.get("PIP_" + name.upper().replace("-", "_"))
    if given:
        return given
    parser = configparser.RawConfigParser()
    parser.read(configuration_files(environment), encoding="utf-8")
    for section in ("install", "global"):
        if parser.has_option(section, name):
            return parser.get(section, name).strip()
    return None


def configuration_files(environment: Mapping[str, str]) -> list[str]:
    """Return the configuration files of pip, the most general first."""
    home = Path(environment.get("HOME", "/"))
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    named = environment.get("PIP_CONFIG_FILE")
    return [
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
        str(home / ".pip" / "pip.conf"),
        str(own / "pip" / "pip.conf"),
        *([named] if named else []),
    ]


def run_pip(*arguments: str) -> None:
    """Run the environment's pip; raises SetupError with its complaint."""
    command = [str(VENV_PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SetupError(f"pip {' '.join(arguments)} says:\n{done.stdout.strip()}")


def print_progress(text: str) -> None:
    """Print progress for the user who waits."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
