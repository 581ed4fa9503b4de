"""Owns the text form of a mapping sheet on a terminal or in a pipe."""

from collections.abc import Iterable, Sequence

from rich.box import Box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from mapper.records import KernelRow, MappingSheet, RankedMapping, Reading, SearchSummary
from mapper.report.text import (
    LEGEND,
    Cells,
    error,
    glyphs_for,
    milliseconds,
    node_label,
    pairs,
    percent,
    quantity,
    shape,
    short,
    versions,
)

WIDE = 116  # columns from which one line holds a kernel's figures, class and schedule
_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_FAILURES_SHOWN = 3
_UNSEARCHED_SHOWN = 8
_CLASS_WIDTH = 25  # breaks `expected → observed` after the arrow
_NAME_LENGTH = 32
_UNBROKEN = ("[low-high]", "layout", "ok")
Column = tuple[str, JustifyMethod]


def render_sheet(sheet: MappingSheet, console: Console, top: int = 12) -> None:
    """Print `sheet`: ranked mappings, the `top` kernels by share of time, layer types, sums, warnings and notes."""
    _Terminal(sheet, console).render(top)


class _Terminal:
    def __init__(self, sheet: MappingSheet, console: Console) -> None:
        self.sheet = sheet
        self.console = console
        self.glyphs = glyphs_for(console.encoding)
        self.cells = Cells(glyphs=self.glyphs)

    def render(self, top: int) -> None:
        self._header()
        self._mappings()
        self._kernels(top)
        self._layer_types()
        self._sums()
        self._warnings()
        self._notes()

    def _header(self) -> None:
        model, machine, environment = self.sheet.model, self.sheet.machine, self.sheet.environment
        lines = [("model", f"{model.name}  ({model.path}, opset {model.opset}, sha256 {model.sha256[:12]})")]
        lines.append(("inputs", ", ".join(f"{t.name} {t.dtype} {shape(t.shape)}" for t in model.inputs)))
        if model.bound_dims:
            bound = (f"{d.input}[{d.axis}] {d.name or '?'}={d.value} ({d.source})" for d in model.bound_dims)
            lines.append(("bound", ", ".join(bound)))
        for device in machine.devices:
            isa = f", {'+'.join(device.isa)}" if device.isa else ""
            lines.append(("machine", f"{device.name}, {device.cores} cores{isa}"))
            if peaks := [peak for peak in device.peaks if peak.threads == machine.threads]:
                lines.append(("peaks", ", ".join(f"{p.name} {self._rate(p.reading, p.kind)}" for p in peaks)))
        lines.append(("threads", f"{machine.threads} ({machine.threads_because})"))
        lines.append(("versions", versions(environment.versions)))
        search = self.sheet.search
        lines.append(
            (
                "search",
                f"{search.strategy}, budget {search.budget}: {search.trials_measured} measured, {search.trials_failed} "
                f"failed, {search.trials_from_journal} from the journal, {search.explore_s:.0f} s ({search.stopped})",
            )
        )
        lines.append(("expected", self._predicted(search)))
        self._grid(lines)

    def _predicted(self, search: SearchSummary) -> str:
        """Say how far the cost model's predictions were from what was then measured."""
        error, order = search.prediction_error, search.prediction_rank
        if error.value is None or order.value is None:
            return self.cells.missing("prediction", error.reason or order.reason)
        return f"{error.n} kernels predicted to {error.value:.0%} on average, rank correlation {order.value:.2f}"

    def _rate(self, reading: Reading, kind: str) -> str:
        if reading.value is None:
            return self.cells.missing("peak", reading.reason)
        mark = "" if reading.grade == "measured" else "~"
        return mark + quantity(reading.value, "FLOP/s" if kind == "flops" else "B/s")

    def _mappings(self) -> None:
        columns: list[Column] = [
            ("#", "right"),
            ("plan", "left"),
            ("layout", "left"),
            ("kernels", "right"),
            ("ms", "right"),
            ("[low-high]", "left"),
            (f"{self.glyphs.times} ort", "right"),
            ("% peak", "right"),
            ("stall", "right"),
            ("energy", "right"),
            ("ok", "left"),
        ]
        rows = [self._mapping_cells(mapping) for mapping in self.sheet.mappings]
        if not rows:
            self._title("mappings: none")
            return
        self._title("mappings, fastest first")
        self._table(columns, rows)

    def _mapping_cells(self, mapping: RankedMapping) -> list[str]:
        cells = self.cells
        return [
            self.glyphs.none if mapping.rank is None else str(mapping.rank),
            mapping.fusion_plan,
            mapping.layout,
            str(mapping.kernel_count),
            cells.time("time", mapping.time_s),
            cells.interval(mapping.time_s),
            cells.number("ratio to onnxruntime", mapping.ratio_onnxruntime),
            cells.share("% of peak", mapping.flop_fraction),
            cells.share("stall", mapping.stall_share),
            cells.energy("energy", mapping.energy_j),
            cells.verified(mapping),
        ]

    def _kernels(self, top: int) -> None:
        ordered = sorted(self.sheet.kernels, key=lambda row: -(row.share_of_time.value or 0.0))
        shown = ordered[: max(top, 0)]
        if not shown:
            return
        count = f"{len(shown)} of {len(ordered)}" if len(shown) < len(ordered) else f"all {len(ordered)}"
        self._title(f"kernels of the best mapping by share of time ({count})")
        figures: list[Column] = [
            ("#", "right"),
            ("kernel", "left"),
            ("calls", "right"),
            ("share", "right"),
            ("ms/call", "right"),
            ("% peak", "right"),
            ("stall", "right"),
        ]
        reasons: list[Column] = [(f"expected {self.glyphs.arrow} observed", "left"), ("template and tile", "left")]
        left = [[str(number), *self._kernel_figures(row)] for number, row in enumerate(shown, 1)]
        right = [[self.cells.classes(row.bottleneck), self._schedule(row)] for row in shown]
        if self.console.width >= WIDE:
            self._table([*figures, *reasons], [[*a, *b] for a, b in zip(left, right, strict=True)])
        else:
            self._table(figures, left)
            self._table([("#", "right"), *reasons], [[str(number), *row] for number, row in enumerate(right, 1)])

    def _kernel_figures(self, row: KernelRow) -> list[str]:
        cells = self.cells
        return [
            short(row.name, _NAME_LENGTH) + ("" if row.verified.passed else f" {self.glyphs.no}"),
            str(row.calls),
            cells.share("share of time", row.share_of_time),
            cells.time("kernel time", row.time_isolated_s),
            cells.share("kernel % of peak", row.flop_fraction),
            cells.share("kernel stall", row.stall_share),
        ]

    def _schedule(self, row: KernelRow) -> str:
        return f"{row.template} {row.layout}" + (f" {pairs(row.tile)}" if row.tile else "")

    def _layer_types(self) -> None:
        if not self.sheet.layer_types:
            return
        self._title("layer types")
        columns: list[Column] = [
            ("type", "left"),
            ("kernels", "right"),
            ("FLOP", "right"),
            ("ms", "right"),
            ("share", "right"),
            ("% peak", "right"),
            ("stall", "right"),
            ("known", "right"),
            ("fused into", "left"),
        ]
        rows = [
            [
                layer.op_type,
                str(layer.kernels),
                quantity(layer.flops, "").strip() if layer.flops else "0",
                milliseconds(layer.time_s),
                percent(layer.share_of_time),
                self.cells.share("layer % of peak", layer.flop_fraction),
                self.cells.share("layer stall", layer.stall_share),
                percent(layer.coverage),
                ", ".join(f"{name} {self.glyphs.times}{count}" for name, count in layer.fused_into.items()),
            ]
            for layer in self.sheet.layer_types
        ]
        self._table(columns, rows)

    def _sums(self) -> None:
        sums, reference = self.sheet.reconciliation, self.sheet.reference
        lines = []
        if sums.kernels_sum_s is None or sums.end_to_end_s is None or sums.remainder_s is None:
            lines.append(("sum", "the model was not timed"))
        else:
            parts = ", ".join(f"{part.name} {milliseconds(part.time_s)}" for part in sums.parts)
            lines.append(
                (
                    "sum",
                    f"kernels {milliseconds(sums.kernels_sum_s)} + remainder {milliseconds(sums.remainder_s)} = "
                    f"end to end {milliseconds(sums.end_to_end_s)} ms" + (f" ({parts})" if parts else ""),
                )
            )
        errors = f"errors: absolute {error(reference.max_abs_err)}, relative {error(reference.max_rel_err)}"
        unstable = "; it disagrees with itself when optimised" if reference.stable is False else ""
        lines.append(
            (
                "reference",
                f"onnxruntime {reference.onnxruntime_version}, {reference.threads} threads: "
                f"{self.cells.time('onnxruntime time', reference.time_s)} ms "
                f"{self.cells.interval(reference.time_s)}; {errors} (tolerance "
                f"{reference.tolerance}); verification {reference.verification_strength}{unstable}",
            )
        )
        self.console.print()
        self._grid(lines)

    def _warnings(self) -> None:
        lines = [("warning", warning) for warning in self.sheet.warnings]
        if kept := self.sheet.search.not_searched:
            names = ", ".join(kept[:_UNSEARCHED_SHOWN]) + (", ..." if len(kept) > _UNSEARCHED_SHOWN else "")
            lines.append(("unsearched", f"constructed schedule kept without a search for {len(kept)}: {names}"))
        failures = self.sheet.failures
        if failures:
            lines.append(("failures", f"{len(failures)}, each listed in the sheet; the first:"))
        lines += [("", f"{f.subject}: {f.step}: {f.reason}") for f in failures[:_FAILURES_SHOWN]]
        gone = [node for node in self.sheet.nodes if not node.kernels and node.reason is None]
        if gone:
            lines.append(("lost nodes", ", ".join(node_label(node) for node in gone)))
        if lines:
            self.console.print()
            self._grid(lines, style="yellow")

    def _notes(self) -> None:
        self.console.print()
        methods = sorted({r.method for k in self.sheet.kernels if (r := k.stall_share).value is not None})
        lines = [("", line) for line in LEGEND]
        lines.append(("", f"{self.glyphs.times} ort: time as a multiple of onnxruntime's; below 1 is faster than it"))
        if methods:
            lines.append(("", f"stall by method {', '.join(methods)}; methods are never compared with each other"))
        lines += list(self.cells.notes.lines())
        self._grid(lines, style="dim")

    def _title(self, title: str) -> None:
        self.console.print()
        self.console.print(self._text(title, "bold"))

    def _grid(self, lines: Iterable[tuple[str, str]], style: str = "") -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in lines:
            grid.add_row(self._text(label, style or "bold"), self._text(text, style))
        self.console.print(grid)

    def _table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        gap = 1 if self.console.width >= WIDE else 0
        table = Table(box=_RULE, pad_edge=False, padding=(0, gap, 0, 0), show_edge=False, header_style="bold")
        for title, justify in columns:
            table.add_column(title, justify=justify, overflow="fold", no_wrap=title in _UNBROKEN or justify == "right")
            if title.startswith("expected"):
                table.columns[-1].max_width = _CLASS_WIDTH
        for row in rows:
            table.add_row(*(self._text(cell) for cell in row))
        self.console.print(table)

    def _text(self, text: str, style: str = "") -> Text:
        return Text(self.glyphs.fit(text), style=style, overflow="fold")
