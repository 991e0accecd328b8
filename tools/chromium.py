"""Find a headless Chromium for the tests of reports, or install Debian's; print its path.

`JSPLAN_CHROMIUM` names one; else one on PATH is taken. It is 60 MB to fetch, so only tests marked
`download` ask for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

VARIABLE = "JSPLAN_CHROMIUM"
PROGRAM_NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
PACKAGE = "chromium-headless-shell"


class ChromiumNotFoundError(Exception):
    """No Chromium can be found or installed; the message says what helps."""


def find_chromium() -> str | None:
    """Return the program, if there is one already."""
    named = os.environ.get(VARIABLE)
    return named or next((path for path in map(shutil.which, PROGRAM_NAMES) if path), None)


def ensure_chromium() -> str:
    """Return the program, installed if need be; raises ChromiumNotFoundError."""
    found = find_chromium()
    if found is None:
        install_chromium()
        found = find_chromium()
    if found is None:
        raise ChromiumNotFoundError(
            f"{PACKAGE} was installed and is not on PATH; name the program with {VARIABLE}=/path/to/it"
        )
    return found


def install_chromium() -> None:
    """Install Debian's package, as root or with sudo; raises ChromiumNotFoundError."""
    apt = shutil.which("apt-get")
    rights = [] if os.geteuid() == 0 else [path, "-n"] if (path := shutil.which("sudo")) else None
    if apt is None or rights is None:
        raise ChromiumNotFoundError(
            f"there is no Chromium on PATH; install one, or name it with {VARIABLE}=/path/to/chromium"
        )
    for words in (["update"], ["install", "--yes", "--no-install-recommends", PACKAGE]):
        done = subprocess.run(
            [*rights, apt, "--quiet", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ChromiumNotFoundError(f"apt-get {words[0]} failed: {done.stderr.strip()}")


def main() -> int:
    """Print the path; return the exit code."""
    try:
        print(ensure_chromium())
    except ChromiumNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
