"""Element types: the store's names for them (safetensors') beside torch's and numpy's.

What safetensors has no name for (complex numbers, rarer 8-bit floats) is kept as raw bytes: type U8, with the bytes of an
element as one more dimension, and the real type beside the tensor's place in the tree of values.
"""

import numpy

# By torch's name; numpy's is the same where it has the type (ml_dtypes brings bfloat16 and the 8-bit floats).
STORED = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
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

# Kept as raw bytes, with the bytes of one element.
RAW = {
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float8_e4m3": 1,
}


def stored(name, shape):
    """The store's type and shape of a tensor of this type, which is in STORED or RAW."""
    if name in STORED:
        return STORED[name], tuple(shape)
    return "U8", tuple(shape) if RAW[name] == 1 else (*shape, RAW[name])


def original(stored_type, stored_shape, raw):
    """The inverse: a type's name and the shape. `raw` is the type's name if it was kept as raw bytes, else None."""
    if raw is None:
        return NAMES[stored_type], tuple(stored_shape)
    size = RAW[raw]
    if stored_type != "U8" or (size > 1 and (not stored_shape or stored_shape[-1] != size)):
        raise ValueError(f"{raw} is not kept as {stored_type} of shape {list(stored_shape)}")
    return raw, tuple(stored_shape) if size == 1 else tuple(stored_shape[:-1])


def numpy_type(name):
    """numpy's type of this name; ml_dtypes' for those that numpy itself doesn't have.

    Raises ModuleNotFoundError if it takes ml_dtypes and that isn't installed, AttributeError for a type that neither has.
    """
    if name in ("bfloat16",) or name.startswith("float8"):
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)
