"""Kernel templates, one file a family; a group's search space is the choices of every template that matches it."""

from collections.abc import Mapping

from mapper.errors import BadInputError
from mapper.records import Choice, GroupSpec, MachineModel
from mapper.templates import (
    attention,
    conv2d,
    convtranspose,
    depthwise,
    generic,
    matmul,
    metaschedule,
    pooling,
    rowwise,
    separable,
    winograd,
)
from mapper.templates.protocol import Template

ALL: tuple[Template, ...] = (
    conv2d.TEMPLATE,
    winograd.TEMPLATE,
    depthwise.TEMPLATE,
    convtranspose.TEMPLATE,
    matmul.TEMPLATE,
    attention.TEMPLATE,
    rowwise.TEMPLATE,
    pooling.TEMPLATE,
    separable.TEMPLATE,
    generic.TEMPLATE,
)
_BY_NAME: Mapping[str, Template] = {template.name: template for template in (*ALL, metaschedule.TEMPLATE)}


def template_for(spec: GroupSpec) -> Template:
    """Return the first template that can implement `spec`, the most specific one; `generic` takes what others leave."""
    return next(template for template in ALL if template.matches(spec))


def implementing(spec: GroupSpec) -> tuple[Template, ...]:
    """Return the templates whose choices make up the search space of `spec`: all that match.

    `generic` is among them only where no family is: it runs a convolution as it lies, hundreds of times slower.
    """
    found = tuple(template for template in ALL if template.matches(spec))
    return found[:-1] or found


def choices(spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> list[Choice]:
    """Return every choice for a group under boundary layouts; those of `generic` where no family offers any."""
    found = [choice for one in implementing(spec) for choice in one.choices(spec, machine, layouts)]
    return found or list(generic.TEMPLATE.choices(spec, machine, layouts))


def by_name(name: str) -> Template:
    """Return the template called `name`.

    Raises:
        BadInputError: no such template.
    """
    if name not in _BY_NAME:
        raise BadInputError(f"unknown template {name!r}: expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]
