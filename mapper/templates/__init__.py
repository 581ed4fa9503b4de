"""Kernel templates, one file a family; a group goes to the first template that matches it."""

from collections.abc import Mapping

from mapper.errors import BadInputError
from mapper.records import GroupSpec
from mapper.templates import conv2d, convtranspose, depthwise, generic, matmul, rowwise
from mapper.templates.protocol import Template

ALL: tuple[Template, ...] = (
    conv2d.TEMPLATE,
    depthwise.TEMPLATE,
    convtranspose.TEMPLATE,
    matmul.TEMPLATE,
    rowwise.TEMPLATE,
    generic.TEMPLATE,
)
_BY_NAME: Mapping[str, Template] = {template.name: template for template in ALL}


def template_for(spec: GroupSpec) -> Template:
    """Return the first template that can implement `spec`; `generic` takes whatever the others leave."""
    return next(template for template in ALL if template.matches(spec))


def by_name(name: str) -> Template:
    """Return the template called `name`.

    Raises:
        BadInputError: no such template.
    """
    if name not in _BY_NAME:
        raise BadInputError(f"unknown template {name!r}: expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
