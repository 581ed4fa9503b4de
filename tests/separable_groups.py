"""Groups of a depthwise and a 1×1 convolution."""

from small_groups import case

HARD_SWISH = (("HardSwish", "d", "e", {}),)
GELU = (("Erf", "t", "g", {}), ("Mul", "t g", "y", {}))
RESIDUAL = (("Add", "t r", "u", {}), ("Relu", "u", "y", {}))


def separable(image, channels, kernel, *, bias=True, between=(), after=(), inputs=None, **attributes):
    """Return the group: `between` leads from `d` to `e`, `after` from `t` to `y`; `RESIDUAL` adds an image `r`."""
    c = image[1]
    depthwise = {"kernel_shape": [kernel, kernel], "group": c, **attributes}
    nodes = [
        ("Conv", "x w b" if bias else "x w", "d", depthwise),
        *between,
        ("Conv", f"{'e' if between else 'd'} {'u_w u_b' if bias else 'u_w'}", "t" if after else "y", {}),
        *after,
    ]
    held = [("w", (c, 1, kernel, kernel)), ("u_w", (channels, c, 1, 1))]
    held += [("b", (c,)), ("u_b", (channels,))] if bias else []
    taken = {"x": image}
    if after == RESIDUAL:
        taken["r"] = (image[0], channels, *image[2:])
    return case(nodes, {**taken, **(inputs or {})}, held)
