"""A pool as numbers, read off a group: windows over an image, or the whole image."""

from dataclasses import dataclass
from math import prod

from mapper.records import GroupSpec, Operator
from mapper.templates.rowwise import reduced_axes
from mapper.templates.tiles import sole_operator

WINDOWED = {"MaxPool": "max", "AveragePool": "mean"}
GLOBAL = {"GlobalMaxPool": "max", "GlobalAveragePool": "mean"}
REDUCING = {"ReduceMax": "max", "ReduceMean": "mean"}
KINDS = {**WINDOWED, **GLOBAL, **REDUCING}
MOST_TAPS = 64  # of a window that is written out


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """A pool of (n, c, ih, iw) to (n, c, oh, ow); `counts_pads` says that a mean divides by the whole window."""

    kind: str
    n: int
    c: int
    ih: int
    iw: int
    oh: int
    ow: int
    kh: int
    kw: int
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    counts_pads: bool

    @property
    def is_global(self) -> bool:
        """Whether one window is the whole image."""
        return (self.kh, self.kw) == (self.ih, self.iw) and self.oh == self.ow == 1 and not any(self.pads)

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return self.kh * self.kw

    def range_of(self, axis: int, tap: int) -> tuple[int, int]:
        """Return the lowest and highest input position that a tap reads along an axis (0 rows, 1 columns)."""
        first = tap * self.dilations[axis] - self.pads[axis]
        return first, first + ((self.oh, self.ow)[axis] - 1) * self.strides[axis]


def pool_operator(spec: GroupSpec) -> Operator | None:
    """Return the group's only pool, or reduction over the pixels of images; None when there is none."""
    pool = sole_operator(spec, frozenset(KINDS))
    if pool is None or len([name for name in pool.outputs if name]) != 1:
        return None
    x = spec.tensors[pool.inputs[0]]
    if x.dtype != "float32" or len(x.shape) != 4 or prod(x.shape) == 0:
        return None
    return pool


def pool_shape(spec: GroupSpec) -> PoolShape | None:
    """Read the pool of a group; None when it is one that is not written out here."""
    pool = pool_operator(spec)
    if pool is None:
        return None
    x, y = spec.tensors[pool.inputs[0]].shape, spec.tensors[pool.outputs[0]].shape
    if pool.op_type in WINDOWED:
        return _windowed(pool, x, y)
    if pool.op_type in REDUCING and reduced_axes(spec, pool) != (2, 3):
        return None
    return PoolShape(
        kind=KINDS[pool.op_type],
        n=x[0],
        c=x[1],
        ih=x[2],
        iw=x[3],
        oh=1,
        ow=1,
        kh=x[2],
        kw=x[3],
        strides=(1, 1),
        dilations=(1, 1),
        pads=(0, 0, 0, 0),
        counts_pads=False,
    )


def _windowed(pool: Operator, x: tuple[int, ...], y: tuple[int, ...]) -> PoolShape | None:
    if pool.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    kernel = _ints(pool, "kernel_shape", (1, 1))
    pads = _ints(pool, "pads", (0, 0, 0, 0))
    shape = PoolShape(
        kind=KINDS[pool.op_type],
        n=x[0],
        c=x[1],
        ih=x[2],
        iw=x[3],
        oh=y[2],
        ow=y[3],
        kh=kernel[0],
        kw=kernel[1],
        strides=(_ints(pool, "strides", (1, 1))[0], _ints(pool, "strides", (1, 1))[1]),
        dilations=(_ints(pool, "dilations", (1, 1))[0], _ints(pool, "dilations", (1, 1))[1]),
        pads=(pads[0], pads[1], pads[2], pads[3]),
        counts_pads=pool.attributes.get("count_include_pad", 0) == 1,
    )
    # What a mean divides by where a window leaves the padded image (ceil_mode) has changed between opsets.
    overhangs = any(
        shape.range_of(axis, taps - 1)[1] >= size + pad
        for axis, taps, size, pad in ((0, shape.kh, shape.ih, pads[2]), (1, shape.kw, shape.iw, pads[3]))
    )
    if shape.kind == "mean" and overhangs:
        return None
    return shape if shape.is_global or shape.taps <= MOST_TAPS else None


def _ints(operator: Operator, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = operator.attributes.get(name)
    return tuple(int(item) for item in value) if isinstance(value, list | tuple) else default
