"""Creates the charts of a page as plotly figures: bars, histograms and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.tools.reports.sections import Chart
from litegpu.tools.reports.words import for_plotly

PALETTE = ("--gpu0", "--cpu", "--gpu1", "--gpu2", "--gpu3", "--gpu5", "--gpu4")
"""The colors of data series, which are distinguishable with color blindness."""

_CLEAR = "rgba(0,0,0,0)"
_ROW, _FRAME = 24, 90
"""The height of a bar with its gap, and the height of the parts around the bars."""
_NAME = 42
"""Maximum length of a bar's name in characters."""


def bars(
    title: str,
    names: Sequence[str],
    values: Sequence[float],
    unit: str,
    *,
    floors: Sequence[float | None] = (),
    hints: Sequence[str] = (),
    colours: Sequence[str] = (),
    note: str = "",
    half: bool = False,
    log: bool = False,
) -> Chart:
    """Return a chart of horizontal bars, with the first bar on top.

    Args:
        title: the heading of the chart.
        names: the names of the bars.
        values: the lengths of the bars, in `unit`.
        unit: the unit of the axis.
        floors: the lower bound of each value, drawn inside the bar.
        hints: the tooltips of the bars.
        colours: the colors of the bars; empty for the first color of the palette.
        note: the caption.
        half: whether the chart has half the width of a wide page.
        log: whether the axis is logarithmic.
    """
    # Names may be equal; the positions of bars must not.
    positions = list(range(len(names)))
    shown = [for_plotly(name if len(name) <= _NAME else name[: _NAME - 1] + "…") for name in names]
    texts = [for_plotly(hint) for hint in hints or names]
    bar = {
        "type": "bar",
        "orientation": "h",
        "y": positions,
        "hoverinfo": "text",
        "hovertext": texts,
    }
    data: list[dict[str, Any]] = [
        {
            **bar,
            "name": "time" if floors else unit,
            "x": list(values),
            "marker": {"color": list(colours) or PALETTE[0]},
        }
    ]
    if any(floor is not None for floor in floors):
        marker = {"color": "--floor"}
        data.append({**bar, "name": "floor", "x": list(floors), "width": 0.22, "marker": marker})
    layout = _layout(_FRAME + _ROW * len(names), unit, "", showlegend=len(data) > 1)
    layout |= {"barmode": "overlay", "bargap": 0.3}
    layout["yaxis"] |= {
        **{"tickmode": "array", "tickvals": positions, "ticktext": shown, "showgrid": False},
        **{"autorange": "reversed", "fixedrange": True, "automargin": True},
    }
    if log:
        layout["xaxis"] |= {"type": "log", "exponentformat": "power", "dtick": 1}
    return Chart(title, {"data": data, "layout": layout}, note, half)


def histogram(
    title: str,
    samples: Mapping[str, Sequence[float]],
    unit: str,
    marks: Mapping[str, float] | None = None,
    note: str = "",
) -> Chart:
    """Return a histogram of the values of one or more series, with `marks` as vertical lines."""
    several = len(samples) > 1
    data = [
        {
            **{"type": "histogram", "name": for_plotly(name), "x": list(values)},
            **{"nbinsx": 50, "bingroup": 1, "opacity": 0.75 if several else 1},
            **{"marker": {"color": colour}},
        }
        for (name, values), colour in zip(samples.items(), _colours(samples), strict=True)
    ]
    layout = _layout(320, unit, "runs", showlegend=several)
    layout |= {"barmode": "overlay", "bargap": 0.02}
    vertical = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    line = {"color": "--ink", "width": 1, "dash": "dot"}
    label = {"yref": "paper", "showarrow": False, "font": {"size": 11}, "xanchor": "left"}
    layout["shapes"] = [
        {**vertical, "x0": value, "x1": value, "line": line} for value in (marks or {}).values()
    ]
    layout["annotations"] = [
        {**label, "x": value, "y": 1 - 0.09 * index, "text": f" {for_plotly(name)}"}
        for index, (name, value) in enumerate((marks or {}).items())
    ]
    return Chart(title, {"data": data, "layout": layout}, note, half=True)


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float | None]]],
    x_title: str,
    y_title: str,
    *,
    note: str = "",
    half: bool = False,
    log: bool = False,
    points: bool = False,
    limit: float | None = None,
) -> Chart:
    """Return a line chart of series (x, y).

    `limit` is a horizontal line. A y of None is a gap in the line.
    """
    data = [
        {
            **{"type": "scatter", "mode": "lines+markers" if points else "lines"},
            **{"name": for_plotly(name), "x": [x for x, _ in each], "y": [y for _, y in each]},
            **{"line": {"color": colour, "width": 1.6}, "marker": {"size": 5}},
        }
        for (name, each), colour in zip(series.items(), _colours(series), strict=True)
    ]
    layout = _layout(320, x_title, y_title, showlegend=len(series) > 1)
    if log:
        layout["yaxis"] |= {"type": "log", "exponentformat": "power", "dtick": 1}
    else:
        layout["yaxis"]["rangemode"] = "tozero"
    xs = [x for each in series.values() for x, _ in each]
    if limit is not None and xs:
        across = {"type": "scatter", "mode": "lines", "name": "limit", "hoverinfo": "skip"}
        line = {"color": "--hot", "width": 1.5, "dash": "dash"}
        data.append({**across, "x": [min(xs), max(xs)], "y": [limit, limit], "line": line})
    return Chart(title, {"data": data, "layout": layout}, note, half)


def _colours(items: Mapping[str, object]) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(len(items))]


def _layout(height: int, x_title: str, y_title: str, showlegend: bool) -> dict[str, Any]:
    axis = {"gridcolor": "--line", "zerolinecolor": "--line", "linecolor": "--line"}
    return {
        "height": height,
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "font": {"color": "--ink", "size": 12},
        "margin": {"l": 60, "r": 16, "t": 28, "b": 46},
        # Room for one line of ticks and the title. Automatic margins of both axes can widen and
        # narrow each other without end.
        "xaxis": {**axis, "title": {"text": for_plotly(x_title)}, "tickangle": 0},
        "yaxis": {**axis, "title": {"text": for_plotly(y_title)}, "automargin": True},
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--line", "font": {"color": "--ink"}},
        "showlegend": showlegend,
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"},
        "modebar": {"bgcolor": _CLEAR, "color": "--edge", "remove": ["select2d", "lasso2d"]},
    }
