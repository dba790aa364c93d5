"""libnrt, the Neuron runtime's C library: where it is, and its functions with their prototypes.

Follows nrt.h, nrt_experimental.h and nrt_status.h of the AWS Neuron SDK (libnrt 2.0, SDK 2.32). Tested against a double; never run
against the real library.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from neuron_dynamo.errors import CompilerMissingError

LIBRARY_NAMES = ("libnrt.so.1", "libnrt.so")
LIBRARY_FOLDER = Path("/opt/aws/neuron/lib")

FRAMEWORK_PYTORCH = 3
PLACEMENT_DEVICE = 0
USAGE_INPUT, USAGE_OUTPUT = 0, 1

SUCCESS = 0
COMPLETED_WITH_NAN = 1003
"""NRT_EXEC_COMPLETED_WITH_NUM_ERR: the program ran to its end and produced a NaN; its outputs can be read."""

STATUS_NAMES = {
    0: "NRT_SUCCESS",
    1: "NRT_FAILURE",
    2: "NRT_INVALID",
    3: "NRT_INVALID_HANDLE",
    4: "NRT_RESOURCE",
    5: "NRT_TIMEOUT",
    6: "NRT_HW_ERROR",
    7: "NRT_QUEUE_FULL",
    9: "NRT_LOAD_NOT_ENOUGH_NC",
    10: "NRT_UNSUPPORTED_NEFF_VERSION",
    13: "NRT_UNINITIALIZED",
    14: "NRT_CLOSED",
    1002: "NRT_EXEC_BAD_INPUT",
    1003: "NRT_EXEC_COMPLETED_WITH_NUM_ERR",
    1004: "NRT_EXEC_COMPLETED_WITH_ERR",
    1005: "NRT_EXEC_NC_BUSY",
    1100: "NRT_COLL_PENDING",
}
"""For a library without nrt_get_status_as_str."""

DTYPE_NAMES = {
    1: "UINT64",
    2: "INT8",
    3: "UINT8",
    4: "INT16",
    5: "UINT16",
    6: "BFLOAT16",
    7: "FLOAT16",
    8: "INT32",
    9: "UINT32",
    0xA: "FLOAT32",
    0xB: "FP32R",
    0xC: "INT64",
    0xD: "FP8_E3",
    0xE: "FP8_E4",
    0xF: "FP8_E5",
}
"""nrt_dtype_t. There is no boolean, no 64-bit float and no complex number."""


class TensorInfo(ctypes.Structure):
    """nrt_tensor_info_t."""

    _fields_ = (
        ("name", c_char * 256),
        ("usage", c_int),
        ("size", c_size_t),
        ("dtype", c_int),
        ("shape", POINTER(c_uint32)),
        ("ndim", c_uint32),
    )


class TensorInfoArray(ctypes.Structure):
    """nrt_tensor_info_array_t: a count, then that many TensorInfo."""

    _fields_ = (("count", c_uint64), ("first", TensorInfo * 0))


class InstanceInfo(ctypes.Structure):
    """nrt_instance_info_t."""

    _fields_ = (("family", c_uint32), ("size", c_uint32), ("arch_name", c_char * 16), ("device_revision", c_char * 8))


PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "nrt_init": (c_int, (c_int, c_char_p, c_char_p)),
    "nrt_close": (None, ()),
    "nrt_load": (c_int, (c_char_p, c_size_t, c_int32, c_int32, POINTER(c_void_p))),
    "nrt_load_collectives": (c_int, (c_char_p, c_size_t, c_int32, c_int32, c_uint32, c_uint32, POINTER(c_void_p))),
    "nrt_unload": (c_int, (c_void_p,)),
    "nrt_get_model_tensor_info": (c_int, (c_void_p, POINTER(POINTER(TensorInfoArray)))),
    "nrt_free_model_tensor_info": (c_int, (POINTER(TensorInfoArray),)),
    "nrt_tensor_allocate": (c_int, (c_int, c_int, c_size_t, c_char_p, POINTER(c_void_p))),
    "nrt_tensor_free": (None, (POINTER(c_void_p),)),
    "nrt_tensor_write": (c_int, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "nrt_tensor_read": (c_int, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "nrt_allocate_tensor_set": (c_int, (POINTER(c_void_p),)),
    "nrt_destroy_tensor_set": (None, (POINTER(c_void_p),)),
    "nrt_add_tensor_to_tensor_set": (c_int, (c_void_p, c_char_p, c_void_p)),
    "nrt_execute": (c_int, (c_void_p, c_void_p, c_void_p)),
    "nrt_get_visible_vnc_count": (c_int, (POINTER(c_uint32),)),
    "nrt_get_total_vnc_count": (c_int, (POINTER(c_uint32),)),
    "nrt_get_instance_info": (c_int, (POINTER(InstanceInfo), c_size_t)),
}
"""(result, arguments) of each function that we call. Handles are pointers that nobody looks behind."""


class Nrt:
    """The functions of one libnrt, as attributes by their C names. Their status is the caller's to look at.

    Raises CompilerMissingError where `path` cannot be loaded or lacks a function that we need.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            raise CompilerMissingError(
                f"the Neuron runtime cannot be loaded: {error}", remedy="install aws-neuronx-runtime-lib, or set option 'libnrt'"
            ) from error
        for name, (result, arguments) in PROTOTYPES.items():
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise CompilerMissingError(f"{path} has no function {name}", remedy="install a libnrt of version 2") from error
            function.restype, function.argtypes = result, list(arguments)
            setattr(self, name, function)
        self._status_text = getattr(library, "nrt_get_status_as_str", None)
        if self._status_text is not None:
            self._status_text.restype, self._status_text.argtypes = c_char_p, [c_int]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"libnrt function {name} is not declared in PROTOTYPES")

    def status_text(self, status: int) -> str:
        """A status as people read it, e.g. 'NRT_RESOURCE (4)'."""
        text = self._status_text(status) if self._status_text is not None else None
        name = text.decode("utf-8", "replace") if text else STATUS_NAMES.get(status, "unknown status")
        return f"{name} ({status})"

    def count_vncs(self, visible: bool = True) -> int:
        """Logical cores that this process may use, or that the machine has; 0 where the library finds none. Needs no nrt_init."""
        count = c_uint32()
        ask = self.nrt_get_visible_vnc_count if visible else self.nrt_get_total_vnc_count
        return count.value if ask(byref(count)) == SUCCESS else 0

    def instance_info(self) -> InstanceInfo | None:
        """What kind of machine this is, None where the library cannot tell."""
        info = InstanceInfo()
        return info if self.nrt_get_instance_info(byref(info), ctypes.sizeof(info)) == SUCCESS else None


def find_library(given: str | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    """Path of libnrt: `given`, else the first in LD_LIBRARY_PATH, else where the SDK puts it; None if there is none."""
    if given is not None:
        return given if Path(given).exists() else None
    return next((str(path) for path in _candidates(os.environ if environ is None else environ) if path.exists()), None)


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    folders = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for folder in (*folders, LIBRARY_FOLDER):
        for name in LIBRARY_NAMES:
            yield folder / name


def tensor_infos(array: Any) -> list[TensorInfo]:
    """The entries behind a pointer to a TensorInfoArray; they live until nrt_free_model_tensor_info."""
    count = array.contents.count
    first = ctypes.addressof(array.contents) + TensorInfoArray.first.offset
    return [TensorInfo.from_address(first + i * ctypes.sizeof(TensorInfo)) for i in range(count)]
