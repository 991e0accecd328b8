"""Places of archives: what each must offer, folders, and buckets of object stores."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, cast

from msgspec import Struct

from jsplan.disk import open_regular, read_regular
from jsplan.documents.types import resolve_inside
from jsplan.errors import JsplanError, NotAvailableError
from jsplan.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Minimum bytes of a request that reads a part of a file.
_READ_BYTES: Final = 1 << 20
#: Bytes of a part of an upload, and the number of parts that are uploaded at the same time.
_PART_BYTES, _PARALLEL_PARTS = 8 << 20, 4
#: Maximum bytes of an object that gets a second name, as stores accept it in one request.
_MAX_COPIED: Final = 5 << 30
_VARIABLES: Final = {
    "s3": "AWS_ENDPOINT_URL, AWS_REGION and AWS_ACCESS_KEY_ID",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_DENIED: Final = re.compile(r"\b(401 Unauthorized|403 Forbidden)\b")
_UNREACHABLE: Final = re.compile(
    r"(https?://[^/\s?]+)\S* .*(error sending request|error trying to)"
)
_PLAIN_HTTP: Final = re.compile(r"(http://[^/\s?]+)\S* .*HTTP error: builder error")
_METADATA: Final = re.compile(r"169\.254\.|metadata\.google|instance ?metadata|InstanceCredential")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_BODY: Final = re.compile(r"(status code: \d+[\w ]*).*")
_URL_REST: Final = re.compile(r"(https?://[^/\s?]+)\S*")


class ArchiveError(JsplanError):
    """Error for a place that is not an archive, or does not match its manifest."""


class NewFile(Protocol):
    """File that is being written. `closed` is as in files of Python."""

    @property
    def closed(self) -> bool:
        """True after `close`."""

    def write(self, data: bytes) -> object:
        """Write data. Raises OSError."""

    def close(self) -> None:
        """Make the file durable and visible. Raises OSError."""


class ArchiveStore(Protocol):
    """Place with files. Their names are relative to it, with `/` between folders.

    Tasks take it along to workers, which open it themselves. So it can be pickled, and has no
    connection and no secret. Its methods raise OSError with a plain `strerror`: FileNotFoundError
    only for a missing file, FileExistsError only for a name that is taken; and ArchiveError for a
    name that leads out of the place.
    """

    @property
    def hint(self) -> str:
        """Correction when it cannot be read or written."""

    @property
    def link_hint(self) -> str:
        """Correction when `link` fails."""

    def locate(self, name: str) -> str:
        """Return the path or URL of a file, for messages."""

    def is_empty(self) -> bool:
        """Return True if it has no file, or does not exist."""

    def list(self) -> Mapping[str, int]:
        """Return all files, also those in folders, with their sizes."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file of at most so many bytes."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""

    def open_new(self, name: str) -> NewFile:
        """Open a new file for writing. No other writer may use its name."""

    def begin(self, name: str, data: bytes) -> None:
        """Make the place and its folder, with a file. Its name must be of this writer alone.

        Raises OSError where `link` would not be exclusive, as far as that can be found out.
        """

    def link(self, name: str, new: str) -> None:
        """Give a file a second name. Of several writers, only one gets the name.

        The content must be of this writer alone. Raises FileExistsError for all others.
        """

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""


class LocalFolder(Struct, frozen=True):
    """Folder of a file system."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def hint(self) -> str:
        """Correction when it cannot be read or written."""
        return "Use a folder that this machine and every worker of a cluster can read and write."

    @property
    def link_hint(self) -> str:
        """Correction when `link` fails."""
        return "Use a file system with hard links. A mounted object store has none."

    def locate(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.root / name)

    def is_empty(self) -> bool:
        """Return True if it has no file, or does not exist."""
        folder = self._path()
        has_files = any(names for _, _, names in os.walk(folder))
        return not has_files and (folder.is_dir() or not folder.exists())

    def list(self) -> dict[str, int]:
        """Return all files with their sizes. Symbolic links are skipped."""
        found, folder = {}, self._path()
        for place, _, names in os.walk(folder):
            for name in names:
                path = Path(place, name)
                if not path.is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # another process moved it
                        found[path.relative_to(folder).as_posix()] = path.stat().st_size
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a whole file."""
        return read_regular(self._path(name), max_bytes)

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return open_regular(self._path(name))

    def open_new(self, name: str) -> NewFile:
        """Open a new file for writing, in this folder or one below it."""
        path = self._path(name)
        path.parent.mkdir(exist_ok=True)
        return _NewFile(path.open("xb"))

    def begin(self, name: str, data: bytes) -> None:
        """Make the folder of a file, with that file."""
        self._path(name).parent.mkdir(parents=True, exist_ok=True)
        file = self.open_new(name)
        file.write(data)
        file.close()

    def link(self, name: str, new: str) -> None:
        """Give a file a second name, which fails where there is one: a rename would replace it."""
        path = self._path(new)
        os.link(self._path(name), path)
        _sync_folder(path.parent)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str = "") -> Path:
        try:
            return resolve_inside(self.root, *([name] if name else []))
        except ValueError as error:
            raise ArchiveError(
                f"{error}, which an archive may not have",
                hint="Nothing was written there.",
            ) from None


class _NewFile(Struct, frozen=True):
    """File of a file system that is being written."""

    file: BinaryIO

    @property
    def closed(self) -> bool:
        return self.file.closed

    def write(self, data: bytes) -> object:
        return self.file.write(data)

    def close(self) -> None:
        if not self.closed:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class ObjectFolder(Struct, frozen=True):
    """Objects of a bucket, such as `s3://bucket`, whose names begin with a prefix and `/`.

    Where the store is, and who may use it, is in the environment of each process (`AWS_…`,
    `GOOGLE_…`, `AZURE_…`) or comes from its machine.
    """

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.bucket}/{self.prefix}"

    @property
    def hint(self) -> str:
        """Correction when it cannot be read or written."""
        variables = _VARIABLES[self.bucket.partition(":")[0]]
        return (
            "Check the URL, and on this machine and every worker the variables of the object "
            f"store, such as {variables}. See docs/how-to/archives.md."
        )

    @property
    def link_hint(self) -> str:
        """Correction when `link` fails."""
        return f"Use an object store with conditional writes (If-None-Match). {self.hint}"

    def locate(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.bucket}/{self._key(name)}"

    def is_empty(self) -> bool:
        """Return True if there is no object."""
        with self._client() as (obstore, client):
            return not any(obstore.list(client, self.prefix, chunk_size=1))

    def list(self) -> dict[str, int]:
        """Return all objects with their sizes."""
        with self._client() as (obstore, client):
            return {
                found["path"].removeprefix(f"{self.prefix}/"): found["size"]
                for chunk in obstore.list(client, self.prefix)
                for found in chunk
            }

    def read(self, name: str, max_bytes: int) -> bytes:
        """Read a whole object."""
        with self._client() as (obstore, client):
            found = obstore.get(client, self._key(name))
            size = found.meta["size"]
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MiB")
            return bytes(found.bytes())

    def open(self, name: str) -> BinaryIO:
        """Open an object for reading."""
        with self._client() as (obstore, client):
            size = obstore.head(client, self._key(name))["size"]
        return cast("BinaryIO", io.BufferedReader(_ObjectReader(self, name, size), _READ_BYTES))

    def open_new(self, name: str) -> NewFile:
        """Open a new object for writing. It is uploaded in parts, and there once it is closed."""
        with self._client() as (obstore, client):
            writer = obstore.open_writer(
                client, self._key(name), buffer_size=_PART_BYTES, max_concurrency=_PARALLEL_PARTS
            )
            return _NewObject(writer)

    def begin(self, name: str, data: bytes) -> None:
        """Write the first object, twice: raises OSError if the second one was not refused.

        Then the object store ignores `If-None-Match`, and two writers could both get a name.
        """
        self._create(name, data)
        try:
            self._put_new(name, data)
        except FileExistsError:
            return
        raise OSError(
            errno.ENOTSUP,
            "the object store lets two writers create the same object: it ignores If-None-Match",
        )

    def link(self, name: str, new: str) -> None:
        """Copy an object to a name that no object has (`If-None-Match: *`)."""
        self._create(new, self.read(name, _MAX_COPIED))

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._client() as (obstore, client):
            obstore.delete(client, self._key(name))

    def _create(self, name: str, data: bytes) -> None:
        """Create an object, or find out that this writer has created it.

        The answer to a request may be lost, and the client may have sent it again.
        """
        try:
            self._put_new(name, data)
        except OSError:
            try:
                found = self.read(name, _MAX_COPIED)
            except FileNotFoundError:
                found = None
            if found is None:
                raise
            if found != data:
                raise _object_exists() from None

    def _put_new(self, name: str, data: bytes) -> None:
        with self._client() as (obstore, client):
            obstore.put(client, self._key(name), data, mode="create", use_multipart=False)

    def read_range(self, name: str, start: int, end: int) -> memoryview:
        """Read a part of an object."""
        with self._client() as (obstore, client):
            return memoryview(obstore.get_range(client, self._key(name), start=start, end=end))

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    @contextlib.contextmanager
    def _client(self) -> Iterator[tuple[Any, Any]]:
        """Yield obstore and the client of this place, and translate errors."""
        with explain_errors():
            obstore, client = open_client(self.bucket)
            yield obstore, client


@lru_cache(maxsize=64)
def open_client(bucket: str) -> tuple[Any, Any]:
    """Return obstore and a client of a bucket, as the environment of this process says."""
    try:
        import obstore  # noqa: PLC0415 - of the extra `spark`, and only for object stores
        import obstore.store  # noqa: PLC0415 - as above
    except ImportError:
        raise NotAvailableError(
            "archives in object stores need obstore, which is not installed",
            hint=f"Install it: {install_command('spark')}",
        ) from None
    return obstore, obstore.store.from_url(bucket)


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Translate the errors of obstore to OSError, in plain words and without secrets."""
    try:
        yield
    except (OSError, NotAvailableError) as error:
        if isinstance(error, OSError) and error.errno is None:
            raise _translate(error) from None
        raise
    except Exception as error:
        if not type(error).__module__.startswith("obstore") and not isinstance(error, ValueError):
            raise
        raise _translate(error) from None


def _translate(error: Exception) -> OSError:
    """Translate an error of obstore. Its text may have a signature, so only parts are shown."""
    text, kind = str(error).partition("\n\nDebug")[0], type(error).__name__
    code = f" ({found[1]})" if (found := _CODE.search(text)) else ""
    if _NO_BUCKET.search(text):
        return OSError(errno.EIO, f"there is no such bucket{code}")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object")
    if kind == "AlreadyExistsError":
        return _object_exists()
    if _METADATA.search(text):
        return PermissionError(errno.EACCES, "there are no credentials for the object store")
    if kind in {"PermissionDeniedError", "UnauthenticatedError"} or _DENIED.search(text):
        return PermissionError(errno.EACCES, f"the object store denies access{code}")
    if found := _PLAIN_HTTP.search(text):
        problem = f"{found[1]} is not encrypted, so AWS_ALLOW_HTTP=true must allow it"
        return OSError(errno.EPROTO, problem)
    if found := _UNREACHABLE.search(text):
        return OSError(errno.EHOSTUNREACH, f"{found[1]} cannot be reached")
    first = _BODY.sub(r"\1", _URL_REST.sub(r"\1", text.partition("\n")[0]))[:200]
    return OSError(errno.EIO, f"the object store failed{code}: {first}")


def _object_exists() -> FileExistsError:
    return FileExistsError(errno.EEXIST, "the object exists")


class _ObjectReader(io.RawIOBase):
    """Content of an object, read in ranges."""

    def __init__(self, place: ObjectFolder, name: str, size: int) -> None:
        self._place, self._name, self._size, self._position = place, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._size, self._position + len(buffer))
        if end <= self._position:
            return 0
        data = self._place.read_range(self._name, self._position, end)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _NewObject(Struct):
    """Object that is being uploaded."""

    writer: Any
    closed: bool = False

    def write(self, data: bytes) -> object:
        with explain_errors():
            return self.writer.write(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with explain_errors():
                self.writer.close()
