"""What a kernel template is: pure knowledge about a family, plus two functions that reach into TVM lazily."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mapper.records import Choice, GroupSpec, MachineModel, Prediction

Convert = Callable[[Any, list[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How one weight is laid out for a kernel: the packed shape, and the numpy function that packs it."""

    shape: tuple[int, ...]
    pack: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


class Template(Protocol):
    """One kernel family. Everything but `convert` and `apply` is pure and runs in the parent."""

    @property
    def name(self) -> str:
        """The word that choices carry."""

    def matches(self, spec: GroupSpec) -> bool:
        """Say whether this template can implement the group."""

    def choices(self, spec: GroupSpec, machine: MachineModel, layouts: tuple[str, ...]) -> tuple[Choice, ...]:
        """Return the choices that fit the machine, in no particular order; none where these layouts have none."""

    def check(self, spec: GroupSpec, choice: Choice) -> None:
        """Raise BadInputError when the choice has an unknown field or an illegal tile for this group."""

    def cost(self, spec: GroupSpec, choice: Choice, machine: MachineModel) -> Prediction:
        """Predict time and traffic of one call."""

    def packings(self, spec: GroupSpec, choice: Choice) -> Mapping[str, Packing]:
        """Return how weights are packed, by local tensor name; weights that are not named stay as they are."""

    def converters(self, spec: GroupSpec, choice: Choice) -> Mapping[int, Convert]:
        """Return, by operator index, how to emit operators that do not go through TVM's importer.

        A converter takes the Relax block builder, the operator's Relax inputs (None where absent) and its
        attributes, and returns a Relax expression.
        """

    def apply(self, sch: Any, spec: GroupSpec, choice: Choice) -> None:
        """Schedule the group's fused PrimFunc, boundary layouts already in place."""
