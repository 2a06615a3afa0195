"""Draws what compare.py has measured: a picture for each collective and number of ranks.

    chart.py PARTS.json FILE.svg

Needs matplotlib. The curves are the times of the candidates over that of this library with ordinary buffers:
what is above 1 is slower. Candidates that were too slow for a size have a gap there.
"""

import argparse
import json
import math

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

import tables
from candidates import LIMITS, OURS, REGISTERED

# What people look for first is drawn heavier.
STYLES = {
    OURS: {"color": "tab:red", "linewidth": 2.5, "zorder": 3},
    REGISTERED: {"color": "tab:red", "linewidth": 2.5, "linestyle": "--", "zorder": 3},
    LIMITS[OURS]: {"color": "black", "linewidth": 1, "linestyle": "-.", "marker": ""},
    LIMITS[REGISTERED]: {"color": "black", "linewidth": 1, "linestyle": ":", "marker": ""},
}
COLORS = {"Open MPI": "tab:blue", "MPICH": "tab:cyan", "Intel MPI": "tab:green", "oneCCL": "tab:olive",
          "Gloo": "tab:purple", "r2ccl in C": "tab:orange"}


def draw(axis, part):
    """The curves of one part."""
    for name in part["samples"]:
        points = [(size, tables.median(part, name, index) / tables.median(part, OURS, index))
                  for index, size in enumerate(part["sizes"])
                  if name not in LIMITS.values() or size >= tables.SHOWN_FROM]
        points = [point if math.isfinite(point[1]) else (point[0], math.nan) for point in points]
        if points:
            style = {"marker": "o", "markersize": 3, "linewidth": 1.2, "color": COLORS.get(name)}
            axis.plot(*zip(*points), label=name, **(style | STYLES.get(name, {})))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(part["sizes"], [tables.size_name(size) for size in part["sizes"]],
                    rotation=60, fontsize="x-small")
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.set_title(f"{part['operation']}, {part['ranks']} ranks", fontsize="small")


def main():
    """A row for each collective, a column for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", metavar="PARTS.json", help="what compare.py --json writes")
    parser.add_argument("picture", metavar="FILE.svg")
    options = parser.parse_args()
    with open(options.parts, encoding="utf-8") as file:
        parts = json.load(file)
    operations = list(dict.fromkeys(part["operation"] for part in parts))
    ranks = sorted({part["ranks"] for part in parts})
    matplotlib.rcParams["svg.hashsalt"] = "r2ccl"
    figure, axes = pyplot.subplots(len(operations), len(ranks), squeeze=False,
                                   figsize=(4.2 * len(ranks), 3.4 * len(operations)))
    for axis in axes.flat:
        axis.set_visible(False)
    for part in parts:
        axis = axes[operations.index(part["operation"])][ranks.index(part["ranks"])]
        axis.set_visible(True)
        draw(axis, part)
    for line in axes:
        line[0].set_ylabel(f"time / time of {OURS}")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels())}
    columns = min(len(handles), 3 * len(ranks))
    height = 0.2 * (1 + -(-len(handles) // columns))
    figure.tight_layout(rect=(0, 0, 1, 1 - height / (3.4 * len(operations))))
    figure.legend(handles.values(), handles.keys(), ncols=columns, loc="upper center", fontsize="x-small",
                  frameon=False)
    figure.savefig(options.picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
