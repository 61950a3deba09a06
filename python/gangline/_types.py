"""Element types: the store's names for them (safetensors') with torch's and numpy's.

Types that safetensors doesn't know (complex32, complex128, rarer 8-bit floats) are stored as raw bytes: type
U8, with the bytes of an element as one more dimension, and the real type with the tensor's place in the tree
of values.

Elements smaller than a byte are packed: torch counts a pair of 4-bit floats as one element
(float4_e2m1fn_x2), and safetensors counts them one by one. 6-bit floats, for which torch has no type, are
read as the bytes that hold them.
"""

import math

import numpy

# By torch's name; numpy's is the same where it has the type (ml_dtypes adds bfloat16 and the 8-bit floats).
STORED = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float4_e2m1fn_x2": "F4",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
NAMES = {stored: name for name, stored in STORED.items()}

# Stored as raw bytes, with the bytes of one element.
RAW = {"complex32": 4, "complex128": 16, "float8_e4m3": 1}
# Also those in checkpoints from before the store had names for all of these.
EVER_RAW = {**RAW, "complex64": 8, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}

# Of packed types: the elements in the smallest whole group, and its bytes.
PACKED = {"F4": (2, 1), "F6_E2M3": (4, 3), "F6_E3M2": (4, 3)}


def stored(name, shape):
    """Returns the store's type and shape of a tensor of this type, which is in STORED or RAW."""
    if name in STORED:
        return STORED[name], _unpacked(STORED[name], shape)
    return "U8", tuple(shape) if RAW[name] == 1 else (*shape, RAW[name])


def stored_box(stored_type, raw, offsets, lengths):
    """Converts a box of a tensor to the store's offsets and lengths. `raw` is as for `original`."""
    if raw is not None and EVER_RAW[raw] > 1:
        return (*offsets, 0), (*lengths, EVER_RAW[raw])
    return _unpacked(stored_type, offsets), _unpacked(stored_type, lengths)


def _unpacked(stored_type, numbers):
    """Converts numbers of elements in each dimension to unpacked elements."""
    together, size = PACKED.get(stored_type, (1, 1))
    return (*numbers[:-1], numbers[-1] * together // size) if together > 1 and len(numbers) else tuple(numbers)


def original(stored_type, stored_shape, raw):
    """Inverts `stored`: returns a type's name and the shape. `raw` is the type's name if it was stored as
    raw bytes, else None."""
    if raw is None:
        return _packed(stored_type, stored_shape) if stored_type in PACKED else (NAMES[stored_type], tuple(stored_shape))
    size = EVER_RAW[raw]
    if stored_type != "U8" or (size > 1 and (not stored_shape or stored_shape[-1] != size)):
        raise ValueError(f"{raw} is not kept as {stored_type} of shape {list(stored_shape)}")
    return raw, tuple(stored_shape) if size == 1 else tuple(stored_shape[:-1])


def _packed(stored_type, stored_shape):
    """Returns, for a packed type, the type and shape by which its bytes are accessed."""
    together, size = PACKED[stored_type]
    if not stored_shape or stored_shape[-1] % together:
        return "uint8", (math.prod(stored_shape) * size // together,)
    return NAMES.get(stored_type, "uint8"), (*stored_shape[:-1], stored_shape[-1] // together * size)


def numpy_type(name):
    """Returns numpy's type of this name; ml_dtypes' for types that numpy itself lacks, and bytes for pairs of
    4-bit floats.

    Raises ModuleNotFoundError if ml_dtypes is needed and isn't installed, AttributeError for a type that
    neither has.
    """
    if name == "float4_e2m1fn_x2":
        return numpy.dtype(numpy.uint8)
    if name in ("bfloat16",) or name.startswith("float8"):
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)
