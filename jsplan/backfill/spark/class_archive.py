"""Start the JVM of local sessions from an archive of the classes of Spark.

A JVM without it takes about twice the CPU time until it copies. The first JVM of an environment
makes the archive when it ends, in the background; about 160 MiB in the cache of jsplan.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Seconds after which an archive is made again: the JVM that made it may have ended too early.
MAX_AGE: Final = 7 * 86_400
#: The JVM ignores an archive that does not fit. Its warnings are silenced, its errors are not.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
_USE, _MAKE = "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit"
#: Java's report of a crash, as with a truncated archive; else it is in the user's folder.
_REPORTS: Final = "hs_err_pid{}.log"
_JVM_VARIABLES: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


class ClassArchive(Struct, frozen=True):
    """An archive of the classes of one Spark for one Java."""

    path: Path

    @property
    def options(self) -> str:
        """Return the options of a JVM that uses it, or makes it if there is none."""
        report = self.path.with_name(_REPORTS.format("%p"))
        name = _USE if self.path.exists() else _MAKE
        return f'{_QUIET} "-XX:ErrorFile={report}" "{name}={self.path}"'

    def delete(self) -> None:
        """Delete it, if possible: a JVM does not start from a truncated file."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def find_archive(
    java: Path, spark: Path, folder: Path, environ: Mapping[str, str]
) -> ClassArchive | None:
    """Return the archive in `folder` for these programs, which may not exist yet.

    `java` is the program, `spark` the package of PySpark. None if the environment names an archive,
    and where `folder` cannot be used.
    """
    named = " ".join(environ.get(name, "") for name in _JVM_VARIABLES)
    if _USE in named or _MAKE in named or '"' in str(folder) or "\\" in str(folder):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _delete_old(folder)
        # an archive fits only one version of Java and of Spark
        versions = " ".join(f"{one.resolve()} {one.stat().st_mtime_ns}" for one in (java, spark))
        key = hashlib.sha256(versions.encode()).hexdigest()[:16]
        return ClassArchive(folder / f"classes-{key}.jsa")
    except OSError:
        return None


def _delete_old(folder: Path) -> None:
    for path in (*folder.glob("classes-*.jsa"), *folder.glob(_REPORTS.format("*"))):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > MAX_AGE:
                path.unlink()
