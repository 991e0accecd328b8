"""Buckets of object stores as places of archives, through obstore."""

from __future__ import annotations

import contextlib
import errno
import io
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from msgspec import Struct

from jsplan.errors import NotAvailableError
from jsplan.extras import install_command

if TYPE_CHECKING:
    from jsplan.backfill.parquet.store import NewFile

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
