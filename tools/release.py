"""Build what a release consists of: sdist, wheel, `jsplan.pyz`, SBOM and checksums.

Two runs on one commit make the same bytes: times come from the commit, and everything that builds
is pinned in `requirements-release.lock`. Needs a package index.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements-release.lock"
BUILD_LOCK: Final = ROOT / "requirements-build.lock"
#: What `jsplan.pyz` runs on: each has wheels of its own in the file.
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
MACHINES: Final = ("x86_64", "aarch64")


class Build:
    """One run: a folder for what is built, and an environment with the pinned tools."""

    def __init__(self, output: Path, scratch: Path) -> None:
        self.output, self.wheels = output, scratch / "wheels"
        self._scratch = scratch
        self._pins = scratch / "pins.txt"
        self._python = scratch / "tools" / "bin" / "python"
        self._environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time()}

    def run(self, module: str, *arguments: str | Path) -> None:
        """Run a module of the pinned tools in the clone."""
        command = [self._python, "-m", module, *arguments]
        subprocess.run(command, cwd=ROOT, env=self._environment, check=True)

    def pip(self, *arguments: str | Path) -> None:
        """Run the pinned pip."""
        self.run("pip", "--quiet", "--disable-pip-version-check", *arguments)

    def install_tools(self) -> None:
        """Make the environment of the pinned tools."""
        subprocess.run([sys.executable, "-m", "venv", self._scratch / "tools"], check=True)
        self.pip("install", "--require-hashes", "--requirement", BUILD_LOCK)
        self.pip("install", "--require-hashes", "--no-build-isolation", "--requirement", LOCK)
        pins = re.findall(r"^[^#\s].*?(?= *\\?$)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
        self._pins.write_text("\n".join(pins), encoding="utf-8")  # pip takes no hash as constraint

    def build_packages(self) -> Path:
        """Build sdist and wheel; return the path of the wheel."""
        self.run("hatchling", "build", "--directory", self.output)
        (wheel,) = self.output.glob("jsplan-*.whl")
        return wheel

    def collect_wheels(self, wheel: Path) -> None:
        """Collect the wheels that jsplan needs on each Python and machine."""
        pure = self._scratch / "pure"
        # Some projects have no wheel on the index. Whatever is not pure is left out afterwards.
        # A wheel in the cache of pip has the times of when it was built, not of the commit.
        self.pip(
            *("wheel", "--no-cache-dir", "--no-build-isolation", "--wheel-dir", pure),
            *("--constraint", self._pins, wheel),
        )
        for built in pure.glob("*.whl"):
            if not built.name.endswith("-none-any.whl"):
                built.unlink()
        for python in PYTHONS:
            for machine in MACHINES:
                self.pip(
                    *("download", "--dest", self.wheels, "--find-links", pure),
                    *(
                        "--constraint",
                        self._pins,
                        "--only-binary",
                        ":all:",
                        "--python-version",
                        python,
                    ),
                    *(f"--platform=manylinux2014_{machine}", wheel),
                )
        self._require_known(built={wheel.name, *(path.name for path in pure.glob("*.whl"))})

    def _require_known(self, built: set[str]) -> None:
        """End the release if a downloaded wheel is none that the lock file knows by its hash."""
        known = LOCK.read_text(encoding="utf-8")
        for path in self.wheels.glob("*.whl"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if path.name not in built and digest not in known:
                sys.exit(f"{path.name} has the sha256 {digest}, which {LOCK.name} does not have.")

    def build_pyz(self) -> None:
        """Build the single file that runs on every Python of `PYTHONS`."""
        platforms = [
            f"--platform=manylinux2014_{machine}-cp-{python}-cp{python.replace('.', '')}"
            for python in PYTHONS
            for machine in MACHINES
        ]
        self.run(
            *("pex", "--pex-root", str(self._scratch / "pex"), *platforms),
            *("--pre-resolved-dists", self.wheels, "jsplan", "--console-script", "jsplan"),
            *("--venv", "--python-shebang", "/usr/bin/env python3"),
            *("--output-file", self.output / "jsplan.pyz"),
        )

    def write_sbom(self, wheel: Path) -> None:
        """Write the CycloneDX SBOM of jsplan without extras, which is what `jsplan.pyz` contains."""
        bare = self._scratch / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        python = bare / "bin" / "python"
        self.pip(
            *("--python", python, "install", "--no-index", "--find-links", self.wheels),
            *("--constraint", self._pins, "jsplan"),
        )
        version = wheel.name.split("-")[1]
        path = self.output / f"jsplan-{version}.cdx.json"
        self.run(
            *("cyclonedx_py", "environment", "--output-reproducible", "--output-format", "JSON"),
            *("--pyproject", ROOT / "pyproject.toml", "--mc-type", "application"),
            *("--output-file", path, python),
        )
        # It cannot read a version that the build backend finds.
        sbom = json.loads(path.read_text(encoding="utf-8"))
        sbom["metadata"]["component"]["version"] = version
        path.write_text(json.dumps(sbom, indent=2) + "\n", encoding="utf-8")


def commit_time() -> str:
    """Return the time of the last commit, or what SOURCE_DATE_EPOCH says."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, which `sha256sum --check` reads."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
    ]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def build_release(output: Path) -> None:
    """Build everything into an empty folder."""
    with tempfile.TemporaryDirectory() as scratch:
        build = Build(output, Path(scratch))
        build.install_tools()
        wheel = build.build_packages()
        build.collect_wheels(wheel)
        build.build_pyz()
        build.write_sbom(wheel)
    write_checksums(output)


def main(arguments: list[str]) -> int:
    """Build the release into the folder that is named; return the exit code."""
    output = Path(arguments[0]).resolve()
    if output.exists() and any(output.iterdir()):
        print(f"{output} is not empty. Remove it, then run make release again.", file=sys.stderr)
        return 1
    output.mkdir(parents=True, exist_ok=True)
    build_release(output)
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
