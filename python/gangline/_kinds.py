"""Access to each kind of tensor (torch's, numpy's, JAX's): reading its type, shape and bytes, and making a
new one.

A kind is an object with `name`, `has_type(type)` (whether values of that Python type are of this kind),
`type_of(value)` (the name of the element type), `shape_of(value)`,
`bytes_of(value)` (its elements as a flat uint8 array, without a copy where it is contiguous in host memory),
`view_of(value)` (the same, or None if that would be a copy for sure),
`identity(value)` (equal for values that are the same memory, else None), `new(type, shape)`, `room_in(value)`
(its memory to read into, or None if it has to be copied into), `copy_into(target, source)` and
`finish(value)`. Elements are little-endian and in row-major order.
"""

import functools
import sys

import numpy

from ._types import numpy_type
from .errors import Refused

EMPTY = numpy.empty(0, numpy.uint8)


class NumpyKind:
    """numpy arrays."""

    name = "numpy"

    @staticmethod
    def has_type(of):
        return of in (numpy.ndarray, numpy.memmap)

    @staticmethod
    def refusal(value):
        """Returns the reason why it can't be saved, or None."""
        return None

    @staticmethod
    def type_of(value):
        return _name_of(value.dtype)

    @staticmethod
    def shape_of(value):
        return value.shape

    @staticmethod
    def bytes_of(value):
        return _flat(_little_endian(value))

    @classmethod
    def view_of(cls, value):
        return cls.bytes_of(value)

    @staticmethod
    def identity(value):
        address = value.__array_interface__["data"][0]
        return (address, value.dtype.str, value.shape, value.strides) if value.size else None

    @staticmethod
    def new(type_name, shape):
        return numpy.empty(shape, numpy_type(type_name))

    @staticmethod
    def room_in(value):
        is_plain = value.flags.c_contiguous and value.flags.writeable and value.dtype.isnative
        return _flat(value) if is_plain else None

    @staticmethod
    def copy_into(target, source):
        """Replaces the content of `target`, and returns the value to keep."""
        if not target.flags.writeable:
            return source
        target[...] = source
        return target

    @staticmethod
    def finish(value):
        """Converts a new value once it has been read."""
        return value


class JaxKind(NumpyKind):
    """JAX arrays, which are immutable: loading makes new ones, on the default device."""

    name = "jax"

    @staticmethod
    def has_type(of):
        jax = sys.modules.get("jax")
        return jax is not None and issubclass(of, jax.Array)

    @staticmethod
    def refusal(value):
        if not value.is_fully_addressable:
            return "it is spread over processes, and each sees only its part"
        jax = sys.modules["jax"]
        return "it is a key of random numbers: save jax.random.key_data(it)" if jax.dtypes.issubdtype(
            value.dtype, jax.dtypes.prng_key
        ) else None

    @staticmethod
    def bytes_of(value):
        return _flat(numpy.asarray(value))

    @staticmethod
    def identity(value):
        return ("jax", id(value))

    @staticmethod
    def room_in(value):
        return NumpyKind.room_in(value) if NumpyKind.has_type(type(value)) else None  # a new one, before `finish`

    @staticmethod
    def copy_into(target, source):
        made = JaxKind.finish(source)
        return made if made.dtype == target.dtype else made.astype(target.dtype)

    @staticmethod
    def finish(value):
        import jax.numpy

        return jax.numpy.asarray(value)


class TorchKind:
    """torch tensors and parameters, on any device. The callers split DTensors, since they know the ranks."""

    name = "torch"

    @staticmethod
    def has_type(of):
        torch = sys.modules.get("torch")
        return torch is not None and issubclass(of, torch.Tensor)

    @staticmethod
    def refusal(value):
        torch = sys.modules["torch"]
        if value.layout is not torch.strided:
            return f"it is sparse ({value.layout}): save its indices and values"
        if value.is_quantized:
            return "it is quantised: save its int_repr(), scale and zero point"
        if not value.dim() and value.dtype is getattr(torch, "float4_e2m1fn_x2", None):
            return "it is a pair of 4-bit floats without dimensions: save it with the shape [1]"
        if value.is_meta:
            return "it is on the meta device and holds no data"
        if value.is_nested:
            return "it is a nested tensor: save its parts"
        if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return f"it is a {type(value).__qualname__}, whose inside the store doesn't know"
        return None

    @staticmethod
    def type_of(value):
        return _torch_name_of(value.dtype)

    @staticmethod
    def shape_of(value):
        return tuple(value.shape)

    @staticmethod
    def bytes_of(value):
        room = TorchKind.room_in(value)
        if room is not None:
            return room
        return TorchKind.room_in(value.detach().resolve_conj().resolve_neg().cpu().contiguous())

    @staticmethod
    def view_of(value):
        return TorchKind.room_in(value)

    @staticmethod
    def identity(value):
        if not value.numel():
            return None
        return (
            value.device, value.data_ptr(), value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg()
        )  # fmt: skip

    @staticmethod
    def new(type_name, shape):
        import torch

        return torch.empty(shape, dtype=getattr(torch, type_name))

    @staticmethod
    def room_in(value):
        torch = sys.modules["torch"]
        if value.device.type != "cpu" or not value.is_contiguous() or value.is_conj() or value.is_neg():
            return None
        flat = value.detach().reshape(-1)
        return flat.view(torch.uint8).numpy() if value.numel() else EMPTY

    @staticmethod
    def copy_into(target, source):
        import torch

        with torch.no_grad():
            target.copy_(source)
        return target

    @staticmethod
    def finish(value):
        return value


KINDS = (TorchKind, NumpyKind, JaxKind)
BY_NAME = {kind.name: kind for kind in KINDS}


def kind_of(value):
    """Returns the kind of tensor that `value` is, or None."""
    return _kind_of_type(type(value))


@functools.lru_cache(256)
def _kind_of_type(of):
    """Caches the kind of a Python type: with many small tensors, looking for it took longer than reading them."""
    return next((kind for kind in KINDS if kind.has_type(of)), None)


@functools.lru_cache(256)
def _name_of(dtype):
    """Caches a type's name: numpy computes it on each access, which took a third of a save of many small
    arrays."""
    return dtype.name


@functools.lru_cache(256)
def _torch_name_of(dtype):
    return str(dtype).removeprefix("torch.")


def _little_endian(array):
    order = array.dtype.byteorder
    is_big = order == ">" or (order == "=" and sys.byteorder == "big")
    return array.astype(array.dtype.newbyteorder("<")) if is_big else array


def _flat(array):
    """Returns the bytes of an array in row-major order, without a copy if they are already."""
    if array.dtype.hasobject:
        raise Refused("an array of Python objects has no safe encoding")
    array = numpy.ascontiguousarray(array)
    return array.reshape(-1).view(numpy.uint8) if array.size else EMPTY
