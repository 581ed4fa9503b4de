"""Owns `sheet.md`: the mapping sheet as Markdown for a reviewer, with the whole of every kernel."""

from collections.abc import Iterator, Sequence

from mapper.records import KernelRow, MappingSheet, NodeRef, RankedMapping
from mapper.report.gfm import bullet, details, escape, fenced, table
from mapper.report.text import (
    LEGEND,
    Cells,
    Glyphs,
    binary_size,
    error,
    milliseconds,
    node_label,
    pairs,
    percent,
    quantity,
    shape,
    short,
    versions,
)

_TEXT = Glyphs(encoding="utf-8")
_NODES_SHOWN = 40
_NAME_LENGTH = 80


def render_markdown(sheet: MappingSheet) -> str:
    """Return `sheet` as GitHub-flavoured Markdown; names from the model are shown as text, never as markup."""
    return "\n".join(_Markdown(sheet).lines()).rstrip("\n") + "\n"


class _Markdown:
    def __init__(self, sheet: MappingSheet) -> None:
        self.sheet = sheet
        self.cells = Cells(glyphs=_TEXT)
        self.nodes = {node.index: node for node in sheet.nodes}

    def lines(self) -> Iterator[str]:
        yield f"# Mapping of {escape(self.sheet.model.name)}"
        yield ""
        for part in (
            self._facts(),
            self._mappings(),
            self._kernel_table(),
            self._layer_types(),
            self._sums(),
            self._troubles(),
            self._kerneldetails(),
            self._candidates(),
            self._provenance(),
            self._notes(),
        ):
            yield from part
            yield ""

    def _facts(self) -> Iterator[str]:
        model, machine, environment = self.sheet.model, self.sheet.machine, self.sheet.environment
        search = self.sheet.search
        yield from bullet("Model", f"{model.path}, opset {model.opset}, sha256 {model.sha256}, by {model.producer}")
        for role, tensors in (("Input", model.inputs), ("Output", model.outputs)):
            for tensor in tensors:
                yield from bullet(role, f"{tensor.name}: {tensor.dtype} {shape(tensor.shape)}")
        for dim in model.bound_dims:
            yield from bullet("Bound", f"{dim.input}, axis {dim.axis} ({dim.name or '?'}) = {dim.value}, {dim.source}")
        for device in machine.devices:
            caches = ", ".join(f"L{cache.level} {binary_size(cache.size_b)}" for cache in device.caches)
            yield from bullet("Machine", f"{device.name}, {device.cores} cores, {' '.join(device.isa)}; {caches}")
            for peak in device.peaks:
                if peak.reading.value is not None:
                    rate = quantity(peak.reading.value, "FLOP/s" if peak.kind == "flops" else "B/s")
                    yield from bullet(
                        "Peak",
                        f"{peak.name}, {peak.threads} threads: {rate} ({peak.reading.grade}: {peak.reading.method})",
                    )
        yield from bullet("Threads", f"{machine.threads} ({machine.threads_because}), machine id {machine.id}")
        yield from bullet("Versions", f"mapper {self.sheet.mapper_version}, {versions(environment.versions)}")
        yield from bullet("Run", f"{environment.time_utc}, {environment.os}, seed {environment.seed}")
        yield from bullet("Command", environment.command)
        yield from bullet(
            "Search",
            f"{search.strategy}, budget {search.budget}: {search.trials_measured} measured, "
            f"{search.trials_failed} failed, {search.trials_from_journal} from the journal; "
            f"{search.explore_s:.0f} s, of it lowering {search.lowering_s:.0f} s; stopped: {search.stopped}",
        )
        error, order = search.prediction_error, search.prediction_rank
        if error.value is not None and order.value is not None:
            figures = f"mean absolute error {error.value:.0%}, rank correlation {order.value:.2f}"
            yield from bullet("Predicted against measured", f"{error.n} kernels: {figures}")
        for note in environment.notes:
            yield from bullet("Note", note)

    def _mappings(self) -> Iterator[str]:
        yield "## Mappings"
        yield ""
        titles: tuple[str, ...] = (
            "rank",
            "fusion plan",
            "layout",
            "kernels",
            "ms",
            "interval",
            "n",
            "× onnxruntime",
            "% of peak",
        )
        titles += ("executed", "stall", "energy", "weights", "workspace", "code", "verified")
        yield from table(titles, (self._mapping_cells(mapping) for mapping in self.sheet.mappings))

    def _mapping_cells(self, mapping: RankedMapping) -> list[str]:
        cells = self.cells
        return [
            _TEXT.none if mapping.rank is None else str(mapping.rank),
            mapping.fusion_plan,
            mapping.layout,
            str(mapping.kernel_count),
            cells.time("time", mapping.time_s),
            cells.interval(mapping.time_s),
            str(mapping.time_s.n),
            cells.number("ratio to onnxruntime", mapping.ratio_onnxruntime),
            cells.share("% of peak", mapping.flop_fraction),
            cells.share("executed fraction", mapping.executed_fraction),
            cells.share("stall", mapping.stall_share),
            cells.energy("energy", mapping.energy_j),
            quantity(mapping.memory.weights_b, "B"),
            quantity(mapping.memory.workspace_b, "B"),
            quantity(mapping.memory.code_b, "B"),
            cells.verified(mapping),
        ]

    def _kernel_table(self) -> Iterator[str]:
        yield "## Kernels of the best mapping"
        yield ""
        titles: tuple[str, ...] = (
            "kernel",
            "calls",
            "share",
            "ms/call alone",
            "ms/call in the model",
            "predicted ms",
            "% of peak",
        )
        titles += ("stall", "energy", "expected → observed", "template", "layout", "tile", "verified")
        yield from table(titles, (self._kernel_cells(row) for row in self.sheet.kernels))

    def _kernel_cells(self, row: KernelRow) -> list[str]:
        cells = self.cells
        return [
            short(row.name, _NAME_LENGTH),
            str(row.calls),
            cells.share("share of time", row.share_of_time),
            f"{cells.time('kernel time', row.time_isolated_s)} {cells.interval(row.time_isolated_s)}".rstrip(),
            cells.time("kernel time in the model", row.time_in_situ_s),
            _TEXT.none if row.predicted_s is None else f"~{milliseconds(row.predicted_s)}",
            cells.share("kernel % of peak", row.flop_fraction),
            cells.share("kernel stall", row.stall_share),
            cells.energy("kernel energy", row.energy_j),
            cells.classes(row.bottleneck),
            row.template,
            row.layout,
            pairs(row.tile),
            _TEXT.yes if row.verified.passed else _TEXT.no,
        ]

    def _layer_types(self) -> Iterator[str]:
        yield "## Layer types"
        yield ""
        titles = ("type", "kernels", "FLOP", "ms", "share", "% of peak", "stall", "stall known for", "fused into")
        yield from table(
            titles,
            (
                [
                    layer.op_type,
                    str(layer.kernels),
                    f"{layer.flops:,}",
                    milliseconds(layer.time_s),
                    percent(layer.share_of_time),
                    self.cells.share("layer % of peak", layer.flop_fraction),
                    self.cells.share("layer stall", layer.stall_share),
                    percent(layer.coverage),
                    ", ".join(f"{name} ×{count}" for name, count in layer.fused_into.items()),
                ]
                for layer in self.sheet.layer_types
            ),
        )

    def _sums(self) -> Iterator[str]:
        sums, reference = self.sheet.reconciliation, self.sheet.reference
        yield "## Sums and reference"
        yield ""
        rows = [("kernels", sums.kernels_sum_s, ""), ("remainder", sums.remainder_s, "")]
        rows += [(f"of it: {part.name}", part.time_s, part.how) for part in sums.parts]
        rows.append(("end to end", sums.end_to_end_s, ""))
        yield from table(
            ("part", "ms", "how"),
            ([name, _TEXT.none if value is None else milliseconds(value), how] for name, value, how in rows),
        )
        yield ""
        yield from bullet(
            f"onnxruntime {reference.onnxruntime_version}",
            f"{self.cells.time('onnxruntime time', reference.time_s)} ms {self.cells.interval(reference.time_s)}, "
            f"{reference.threads} threads",
        )
        yield from bullet("Compared", ", ".join(reference.tensors) or "nothing")
        yield from bullet(
            "Errors",
            f"absolute {error(reference.max_abs_err)}, relative {error(reference.max_rel_err)}; tolerance "
            f"{reference.tolerance}; verification {reference.verification_strength}",
        )
        agrees = {True: "yes", False: "no: the reference is unstable", None: "not checked"}[reference.stable]
        yield from bullet("onnxruntime agrees with itself, optimised and not", agrees)

    def _troubles(self) -> Iterator[str]:
        yield "## Warnings and failures"
        yield ""
        lines = [("Warning", text) for text in self.sheet.warnings]
        lines += [("Not searched", name) for name in self.sheet.search.not_searched]
        lines += [(f"Failed in {f.step}", f"{f.subject}: {f.reason}") for f in self.sheet.failures]
        for label, text in lines:
            yield from bullet(label, text)
        if not lines:
            yield "None."

    def _kerneldetails(self) -> Iterator[str]:
        yield "## Kernel by kernel"
        for row in self.sheet.kernels:
            yield ""
            yield f"### {escape(short(row.name, _NAME_LENGTH))}"
            yield ""
            yield from bullet(
                "Keys", f"kernel {row.key}, group {row.group_key}, choice {row.choice_key}, IR {row.ir_hash}"
            )
            yield from bullet("Nodes", self._node_list(row.nodes))
            yield from bullet(
                "Work",
                f"{row.calls} calls of {row.flops_per_call:,} FLOP and {row.bytes_per_call:,} B; "
                f"code {row.code_b:,} B, workspace {row.workspace_b:,} B",
            )
            yield from bullet("Schedule", f"{row.template}, {row.layout}, {pairs(row.tile) or 'no tile'}")
            yield from bullet("Search", row.searched)
            secondary = f"; also {', '.join(row.bottleneck.secondary)}" if row.bottleneck.secondary else ""
            yield from bullet("Bottleneck", f"{self.cells.classes(row.bottleneck)} ({row.bottleneck.grade}){secondary}")
            for evidence in row.bottleneck.evidence:
                yield from bullet("Evidence", evidence)
            if row.next_step:
                yield from bullet("Next step", row.next_step)
            yield from fenced(row.loop_nest)

    def _node_list(self, indices: Sequence[int]) -> str:
        names = [self._node_name(index) for index in indices[:_NODES_SHOWN]]
        more = len(indices) - len(names)
        return ", ".join(names) + (f" and {more} more (see the nodes below)" if more else "")

    def _node_name(self, index: int) -> str:
        node = self.nodes.get(index)
        return f"node {index}" if node is None else short(node_label(node), _NAME_LENGTH)

    def _candidates(self) -> Iterator[str]:
        yield "## Candidates"
        for group in self.sheet.candidates:
            yield ""
            summary = (
                f"{group.name}: {group.measured} measured, {group.failed} failed, {group.predicted_only} predicted only"
            )
            rows = (
                [
                    candidate.choice_key,
                    candidate.choice.template,
                    " ".join(candidate.choice.layouts),
                    pairs(candidate.choice.tile),
                    _TEXT.none if candidate.predicted_s is None else f"~{milliseconds(candidate.predicted_s)}",
                    _TEXT.none if candidate.time_s is None else milliseconds(candidate.time_s),
                    candidate.source
                    if candidate.failure is None
                    else f"{candidate.failure.step}: {candidate.failure.reason}",
                ]
                for candidate in group.best
            )
            titles = ("choice", "template", "layouts", "tile", "predicted ms", "ms", "outcome")
            yield from details(summary, table(titles, rows))

    def _provenance(self) -> Iterator[str]:
        yield "## Provenance"
        yield ""
        summary = f"{len(self.sheet.nodes)} original nodes and the kernels that compute them"
        titles = ("node", "name", "type", "kernels", "why in no kernel")
        yield from details(summary, table(titles, (_node_cells(node) for node in self.sheet.nodes)))

    def _notes(self) -> Iterator[str]:
        yield "## Notes"
        yield ""
        for line in LEGEND:
            yield f"- {escape(line)}"
        yield "- Times are medians; ranks come from a final round taken after the choice."
        methods = sorted({r.method for row in self.sheet.kernels if (r := row.stall_share).value is not None})
        if methods:
            yield f"- Stall by method {escape(', '.join(methods))}; methods are never compared with each other."
        for letter, text in self.cells.notes.lines():
            yield f"- **{letter}**: {escape(text)}"


def _node_cells(node: NodeRef) -> list[str]:
    kind = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    why = "" if node.reason is None else f"{node.reason}: {node.evidence}"
    lost = not node.kernels and node.reason is None
    return [
        str(node.index),
        short(node_label(node), _NAME_LENGTH),
        kind,
        ", ".join(node.kernels),
        "NOT ACCOUNTED FOR" if lost else why,
    ]
