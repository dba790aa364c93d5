"""RemoteStore: entries behind a URL of fsspec's (`s3://`, `gs://`, `file://`, `memory://` ...). Knows bytes and objects, no policy.

<url>/objects/<first 2 hex>/<sha256>             files of entries by their contents, so that two who upload one entry cannot mix theirs
<url>/v<format>/<first 2 hex>/<digest>.json      manifests, each written after its objects: an entry is there when its manifest is

Credentials, endpoints and proxies are fsspec's and its drivers' own matter: `AWS_*`, `FSSPEC_S3_ENDPOINT_URL`, ~/.config/fsspec.
Whoever may write behind the URL decides what code its readers run: checksums find damage, they do not know a friend.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from neuron_dynamo.cache.entry import MANIFEST, MAX_MANIFEST, Artifact, BadEntry, decode_entry, decode_manifest, encode_entry
from neuron_dynamo.cache.key import FORMAT, CacheKey

CHUNK = 32 * 2**20
"""Bytes asked for at once, so that a long download that goes on is no silence."""

SLOWEST = 2**18
"""Bytes a second: an upload may take its size over this on top of the timeout."""

_WHOLE_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})
"""Protocols that publish an object at once; elsewhere it is written under another name and renamed."""

_CHECKSUM = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")


class RemoteError(Exception):
    """The remote failed or gave no answer in time; the text says how.

    `missing` is the pip requirement that is not installed, if it is that; `denied`: it answered, and refused.
    """

    def __init__(self, text: str, *, missing: str = "", denied: bool = False) -> None:
        self.missing, self.denied = missing, denied
        super().__init__(text)


class RemoteStore:
    """Entries below `url`. `timeout` is the seconds of silence after which the remote counts as failed; `storage` goes to fsspec.

    Methods raise RemoteError. Thread-safe; a child made by fork connects anew.
    """

    def __init__(self, url: str, timeout: float, storage: Mapping[str, Any] | None = None) -> None:
        self.url, self._timeout, self._storage = url, timeout, dict(storage or {})
        self._lock = threading.Lock()
        self._connection: tuple[int, Any, str] | None = None

    def read(self, key: CacheKey) -> Artifact | None:
        """The verified artifact of `key`, or None if there is none. Raises BadEntry if what lies there cannot be used."""
        manifest = self._fetch(_manifest_path(key), MAX_MANIFEST + 1)
        if manifest is None:
            return None
        if len(manifest) > MAX_MANIFEST:
            raise BadEntry("its manifest is too long")
        files = _files(decode_manifest(manifest))

        def read(name: str, limit: int) -> bytes:
            if name == MANIFEST:
                return manifest
            data = self._fetch(_object_path(files[name]), limit)
            if data is None:
                raise BadEntry(f"{name} is missing")
            return data

        return decode_entry(key, read)

    def has(self, key: CacheKey) -> bool:
        """Whether there is a manifest for `key`, whatever its state."""
        filesystem, root = self._connect()
        return bool(self._bounded(lambda: filesystem.exists(f"{root}/{_manifest_path(key)}")))

    def write(self, key: CacheKey, artifact: Artifact, *, replace: bool = False) -> bool:
        """Publish the entry of `key`; where one is there already, that one stays, unless `replace`. Whether it was written."""
        if not replace and self.has(key):
            return False
        contents = encode_entry(key, artifact)
        manifest = contents.pop(MANIFEST)
        for data in contents.values():
            self._put(_object_path(hashlib.sha256(data).hexdigest()), data)
        self._put(_manifest_path(key), manifest)
        return True

    def _fetch(self, path: str, limit: int) -> bytes | None:
        """The first `limit` bytes of a file, or None if it is not there."""
        filesystem, root = self._connect()
        found = bytearray()
        while len(found) < limit:
            start, end = len(found), min(len(found) + CHUNK, limit)
            try:
                chunk = self._bounded(partial(_read, filesystem, f"{root}/{path}", start, end))
            except FileNotFoundError:
                return None
            found += chunk
            if len(chunk) < end - start:
                break
        return bytes(found)

    def _put(self, path: str, data: bytes) -> None:
        filesystem, root = self._connect()
        target = f"{root}/{path}"

        def put() -> None:
            if _WHOLE_OBJECTS.intersection(_protocols(filesystem)):
                filesystem.pipe_file(target, data)
                return
            filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
            draft = f"{target}.{uuid.uuid4().hex[:12]}.draft"
            try:
                filesystem.pipe_file(draft, data)
                filesystem.mv(draft, target)
            except BaseException:
                with contextlib.suppress(Exception):
                    filesystem.rm_file(draft)
                raise

        try:
            self._bounded(put, self._timeout + len(data) / SLOWEST)
        except FileNotFoundError as error:
            raise RemoteError(str(error)) from error

    def _connect(self) -> tuple[Any, str]:
        with self._lock:
            if self._connection is None or self._connection[0] != os.getpid():
                self._connection = (os.getpid(), *self._bounded(self._open))
            return self._connection[1:]

    def _open(self) -> tuple[Any, str]:
        try:
            fsspec: Any = importlib.import_module("fsspec")
        except ImportError as error:
            raise RemoteError(str(error), missing="fsspec") from error
        try:
            # A listing that the driver remembers would hide what others have uploaded since.
            filesystem, root = fsspec.core.url_to_fs(
                self.url, **{"use_listings_cache": False, "skip_instance_cache": True, **self._storage}
            )
        except ImportError as error:
            raise RemoteError(str(error), missing="s3fs" if "s3fs" in str(error) else str(error)) from error
        return filesystem, root.rstrip("/")

    def _bounded(self, call: Callable[[], T], timeout: float | None = None) -> T:
        """The result of `call`, waited for no longer than the timeout. FileNotFoundError and BadEntry pass, all else is a RemoteError."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)

        # fsspec's drivers have timeouts of their own or none; a thread that never comes back does not keep the process.
        threading.Thread(target=run, name="neuron_dynamo-remote", daemon=True).start()
        seconds = self._timeout if timeout is None else timeout
        try:
            return result.result(seconds)
        except (RemoteError, BadEntry):
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in f"{error!r} {error.__cause__!r}":
                raise RemoteError(f"there is no such bucket: {error}") from error
            raise
        except TimeoutError as error:
            if not result.done():
                raise RemoteError(f"no answer for {seconds:.0f} s") from error
            raise RemoteError(_describe(error)) from error
        except Exception as error:
            raise RemoteError(_describe(error), denied=isinstance(error, PermissionError)) from error


def _read(filesystem: Any, path: str, start: int, end: int) -> bytes:
    if "file" in _protocols(filesystem):
        information = filesystem.info(path)
        if information["type"] != "file" or information.get("islink"):
            raise BadEntry(f"{path} is not a plain file")
    try:
        data: bytes = filesystem.cat_file(path, start=start, end=end)
    except IsADirectoryError as error:
        raise BadEntry(f"{path} is not a plain file") from error
    except Exception as error:
        if "InvalidRange" in f"{error!r} {error.__cause__!r}":
            return b""  # there is nothing from `start` on
        raise
    return data


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _manifest_path(key: CacheKey) -> str:
    return f"v{FORMAT}/{key.digest[:2]}/{key.digest}.json"


def _object_path(checksum: str) -> str:
    return f"objects/{checksum[:2]}/{checksum}"


def _files(manifest: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 by file name. Raises BadEntry unless each is one."""
    try:
        files = {name: description["sha256"] for name, description in manifest["files"].items()}
        if all(_CHECKSUM.fullmatch(checksum) for checksum in files.values()):
            return files
    except (LookupError, TypeError, AttributeError) as error:
        raise BadEntry("its list of files is wrong") from error
    raise BadEntry("its list of files is wrong")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
