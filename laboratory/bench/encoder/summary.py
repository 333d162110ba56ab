"""Medians, ratios and the check that both sides computed the same: `summary.py raw.jsonl`."""

import json
import statistics
import sys

runs = [json.loads(line) for line in open(sys.argv[1])]
for encoder in ("cnn-small", "resnet18"):
    chosen = [run for run in runs if run["encoder"] == encoder]
    for number in ("vectors", "gradient", "first", "third"):
        values = [run[number] for run in chosen]
        assert max(values) - min(values) <= 1e-3 * min(values), f"{encoder}: {number} differs: {sorted(set(values))}"
    shown = ", ".join(f"{number} {chosen[0][number]:.6f}" for number in ("vectors", "gradient", "first", "third"))
    print(f"\n{encoder}: {shown} (equal to 1e-3)\n")
    print("| threads | who | images/s, median (best) | images per CPU s, median (best) |\n|---|---|---|---|")
    for threads in (1, 2):
        medians = {}
        for who in ("rehang", "torch-first", "torch-last"):
            same = [run for run in chosen if run["who"] == who and run["threads"] == threads]
            rates = [[run["rows"] / second for run in same for second in run[clock]] for clock in ("wall", "cpu")]
            medians[who] = [statistics.median(rate) for rate in rates]
            cells = " | ".join(f"{statistics.median(rate):.1f} ({max(rate):.1f})" for rate in rates)
            print(f"| {threads} | {who} | {cells} |")
        best = [max(medians["torch-first"][i], medians["torch-last"][i]) for i in (0, 1)]
        ratios = [medians["rehang"][i] / best[i] for i in (0, 1)]
        print(f"| {threads} | rehang ÷ PyTorch's better | **{ratios[0]:.2f}×** | {ratios[1]:.2f}× |")
