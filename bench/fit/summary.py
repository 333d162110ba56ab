"""Medians, ratios and the check that both sides computed the same: `summary.py raw.jsonl`."""

import json
import statistics
import sys

runs = [json.loads(line) for line in open(sys.argv[1])]
losses = [run["loss"] for run in runs]
assert max(losses) - min(losses) <= 1e-3 * min(losses), f"the losses of the first epoch differ: {sorted(set(losses))}"
print(f"loss of the first epoch: {min(losses):.6f} to {max(losses):.6f} (equal to 1e-3)")
print("| threads | who | wall s, median (min) | CPU s, median |\n|---|---|---|---|")
for threads in (1, 2):
    medians = {}
    for who in ("rehang", "torch-foreach", "torch-fused"):
        chosen = [run for run in runs if run["who"] == who and run["threads"] == threads]
        wall = [second for run in chosen for second in run["wall"]]
        cpu = [second for run in chosen for second in run["cpu"]]
        medians[who] = statistics.median(wall), statistics.median(cpu)
        print(f"| {threads} | {who} | {medians[who][0]:.3f} ({min(wall):.3f}) | {medians[who][1]:.3f} |")
    best = [min(medians["torch-foreach"][i], medians["torch-fused"][i]) for i in (0, 1)]
    print(f"| {threads} | PyTorch ÷ rehang | **{best[0] / medians['rehang'][0]:.2f}×** | {best[1] / medians['rehang'][1]:.2f}× |")
