"""Find a headless Chromium for the tests of reports, or install Debian's; print its path.

`JSPLAN_CHROMIUM` names one; else one on PATH is taken. It is 60 MB to fetch, so only what is marked
`download` asks for it.
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
    """There is none, and none can be installed; the message says what helps."""


def find_chromium() -> str | None:
    """The program, if there is one already."""
    named = os.environ.get(VARIABLE)
    return named or next((path for path in map(shutil.which, PROGRAM_NAMES) if path), None)


def ensure_chromium() -> str:
    """The program, installed if need be; raises NoChromium."""
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
    """Debian's package, as root or by sudo; raises NoChromium."""
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
    """Print the path; returns the exit code."""
    try:
        print(ensure_chromium())
    except ChromiumNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
