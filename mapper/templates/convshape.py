"""A convolution as numbers, read off a group: what the convolution templates share."""

from collections.abc import Mapping
from dataclasses import dataclass

from mapper.records import GroupSpec, Operator
from mapper.templates.tiles import anchor_of, ceil_div

CONV = frozenset({"Conv"})
STAGE_NONE, STAGE_TASK, STAGE_ROOT = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvShape:
    """A convolution as numbers; one spatial axis counts as height 1."""

    n: int
    ci: int
    co: int
    ih: int
    iw: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_top: int
    pad_left: int
    pad_bottom: int
    pad_right: int
    groups: int
    rank: int

    @property
    def ci_group(self) -> int:
        """Input channels of one group."""
        return self.ci // self.groups

    @property
    def co_group(self) -> int:
        """Output channels of one group."""
        return self.co // self.groups

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel reads one unpadded input pixel."""
        pads = self.pad_top + self.pad_left + self.pad_bottom + self.pad_right
        return self.kh == self.kw == 1 and pads == 0


def conv_shape(spec: GroupSpec) -> ConvShape:
    """Read the shape of the group's anchor convolution."""
    anchor = anchor_of(spec, CONV)
    x, w, y = (spec.tensors[name].shape for name in (anchor.inputs[0], anchor.inputs[1], anchor.outputs[0]))
    spatial = len(x) - 2
    ints = {name: _ints(anchor, name, default, spatial) for name, default in (("strides", 1), ("dilations", 1))}
    pads = _ints(anchor, "pads", 0, 2 * spatial)
    lead = (0,) * (2 - spatial)
    one = (1,) * (2 - spatial)
    begins, ends = lead + pads[:spatial], lead + pads[spatial:]
    strides, dilations = one + ints["strides"], one + ints["dilations"]
    (ih, iw), (oh, ow), (kh, kw) = one + x[2:], one + y[2:], one + w[2:]
    return ConvShape(
        n=x[0],
        ci=x[1],
        co=y[1],
        ih=ih,
        iw=iw,
        oh=oh,
        ow=ow,
        kh=kh,
        kw=kw,
        stride_h=strides[0],
        stride_w=strides[1],
        dilation_h=dilations[0],
        dilation_w=dilations[1],
        pad_top=begins[0],
        pad_left=begins[1],
        pad_bottom=ends[0],
        pad_right=ends[1],
        groups=_int(anchor, "group", 1),
        rank=len(x),
    )


def _ints(operator: Operator, name: str, default: int, count: int) -> tuple[int, ...]:
    value = operator.attributes.get(name)
    return tuple(int(item) for item in value) if isinstance(value, list | tuple) else (default,) * count


def _int(operator: Operator, name: str, default: int) -> int:
    value = operator.attributes.get(name, default)
    return value if isinstance(value, int) else default


def is_depthwise(shape: ConvShape) -> bool:
    """Say whether each input channel has an output channel of its own."""
    return shape.groups > 1 and shape.ci_group == 1 and shape.co_group == 1


def channel_blocks(shape: ConvShape, vb: int) -> int:
    """Return the channel blocks of all groups; each group fills up its own last block."""
    return shape.groups * ceil_div(shape.co_group, vb)


def is_aligned(shape: ConvShape, vb: int) -> bool:
    """Say whether output channel c simply lies at block c // vb, lane c % vb."""
    return shape.groups == 1 or shape.co_group % vb == 0


def is_exact(shape: ConvShape, t: Mapping[str, int]) -> bool:
    """Say whether the register tile divides the image."""
    return shape.oh % t["rh"] == 0 and shape.ow % t["rw"] == 0


def is_unpadded(shape: ConvShape) -> bool:
    """Say whether nothing is padded."""
    return shape.pad_top + shape.pad_left + shape.pad_bottom + shape.pad_right == 0
