"""Normalising a bound model to the canonical graph: static, folded, rewritten, every original node accounted for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from mapper.errors import BadInputError
from mapper.ingress.affine import merge_affine
from mapper.ingress.checks import check_sizes, one_line
from mapper.ingress.draft import Draft, close_draft, drop_unused, elide_identities, keep_constant_outputs, open_draft
from mapper.ingress.model import LoadedModel
from mapper.ingress.provenance import trace
from mapper.ingress.rewrites import apply_rules, fold_constants
from mapper.ingress.statics import analyse, shell_of
from mapper.ingress.wiring import DEFAULT_DOMAINS, is_onnx, label, reads, writes
from mapper.records import NodeRef

_MAX_PASSES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalized:
    """The canonical graph, one `NodeRef` for every node of the original file, and notes on what was done."""

    proto: onnx.ModelProto
    nodes: tuple[NodeRef, ...]
    steps: tuple[str, ...]


def normalize(model: LoadedModel, optimise: Callable[[Path, Path], None], workdir: Path) -> Normalized:
    """Rewrite a bound model to its canonical form.

    Args:
        model: The bound model; it is not changed.
        optimise: Reads the ONNX file at its first argument and writes its folded form to the second: an onnxruntime
            session at ORT_ENABLE_BASIC with `optimized_model_filepath`, in a process of its own.
        workdir: Where the two files are put.

    Returns:
        The canonical graph: executable order, unique node names, static types on every tensor, no shape arithmetic,
        no Constant nodes, explicit pads, literal Reshapes. It keeps the model's opset, and names, order, shapes and
        dtypes of inputs and outputs.

    Raises:
        BadInputError: when a shape cannot be made static, or what came out does not match what the model declares.
    """
    where = model.source.path
    folded, note = _folded(model, optimise, workdir)
    try:
        draft = open_draft(folded, model.source.opset)
    except onnx.shape_inference.InferenceError as error:
        raise BadInputError(f"{where}: the folded model's shapes contradict each other: {one_line(error)}") from error
    _require_static(where, draft)
    check_sizes(where, draft.types)
    steps = [note, *_rewrite(draft)]
    proto = close_draft(draft)
    _check_types(where, model, draft, proto)
    return Normalized(proto=proto, nodes=trace(model, proto), steps=tuple(steps))


def _folded(model: LoadedModel, optimise: Callable[[Path, Path], None], workdir: Path) -> tuple[onnx.ModelProto, str]:
    """Return the model as onnxruntime's basic optimisations leave it; as it is when those leave ai.onnx."""
    workdir.mkdir(parents=True, exist_ok=True)
    source, target = workdir / "bound.onnx", workdir / "folded.onnx"
    target.unlink(missing_ok=True)
    onnx.save(model.proto, source)
    optimise(source, target)
    try:
        folded = onnx.load(target)
    except (OSError, DecodeError) as error:
        raise BadInputError(
            f"{model.source.path}: onnxruntime gave no optimised model: {one_line(error)}: check that it runs the model"
        ) from error
    foreign = sorted({f"{node.domain}.{node.op_type}" for node in folded.graph.node if not is_onnx(node)})
    opsets = [entry.version for entry in folded.opset_import if entry.domain in DEFAULT_DOMAINS]
    if foreign or opsets != [model.source.opset]:
        return model.proto, f"onnxruntime's folding left ai.onnx ({', '.join(foreign) or 'opset changed'}): not used"
    before, after = len(model.proto.graph.node), len(folded.graph.node)
    return folded, f"onnxruntime basic optimisations: {before} to {after} nodes"


def _rewrite(draft: Draft) -> list[str]:
    """Apply folding, the rules and elision until nothing changes; say what was done."""
    totals: dict[str, int] = {}
    for _ in range(_MAX_PASSES):
        drop_unused(draft)
        counts = {"folded": fold_constants(draft)} | apply_rules(draft)
        counts["merged into one Mul and Add"] = merge_affine(draft)
        counts["elided"] = elide_identities(draft)
        for what, count in counts.items():
            totals[what] = totals.get(what, 0) + count
        if not any(counts.values()):
            break
    drop_unused(draft)
    keep_constant_outputs(draft)
    return [f"{what}: {count}" for what, count in totals.items() if count]


def _require_static(where: str, draft: Draft) -> None:
    read = draft.read_names()
    for index, node in enumerate(draft.nodes):
        for name in writes(node):
            if name in read and name not in draft.types:
                raise BadInputError(
                    f"{where}: node {label(node, index)}: the shape of its output '{name}' cannot be made static: "
                    "expected it to follow from the input shapes; cut the model before this node"
                )


def _check_types(where: str, model: LoadedModel, draft: Draft, proto: onnx.ModelProto) -> None:
    """Compare what was declared with what was obtained, inferring the canonical graph's types afresh."""
    for kind, declared, obtained in (
        ("input", model.source.inputs, draft.inputs),
        ("output", model.source.outputs, draft.outputs),
    ):
        if declared != obtained:
            raise BadInputError(
                f"{where}: graph {kind}s changed in normalising: declared {declared}, obtained {obtained}"
            )
    bare = onnx.ModelProto()
    bare.CopyFrom(shell_of(proto))
    del bare.graph.value_info[:]
    try:
        onnx.checker.check_model(bare)
        inferred = analyse(bare).types
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise BadInputError(f"{where}: the canonical graph is not valid ONNX: {one_line(error)}") from error
    produced = {name for node in proto.graph.node for name in (*writes(node), *reads(node))}
    for name in sorted(produced):
        known, fresh = draft.types.get(name), inferred.get(name)
        if known is not None and fresh is not None and (known.shape, known.dtype) != (fresh.shape, fresh.dtype):
            was, became = (f"{spec.dtype}{list(spec.shape)}" for spec in (known, fresh))
            raise BadInputError(
                f"{where}: tensor '{name}' was {was} and is {became} after normalising: please report this model"
            )
