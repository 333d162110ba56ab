"""DMU's figure 4: the entropy of what the heads say of every item of the gallery, before and after ψ, from the kept encoders of dmu.toml.

    PYTHON laboratory/bench/compatible/entropies.py REHANG-LAB

Λ_old is by φ_old and ω_old, Λ_FA by ψ(φ_old) and ω_new; logits are cosines times the head's scale. Items are in tenths by Λ_old. Beside DMU
stands the same without selection, λ all alike: what of the figure is the selection's work. Means over three seeds.
"""

import json
import sys

import numpy as np

from kept import ROOT, Kept, unit

MODELS = (("DMU", "dmu"), ("without selection", "dmu--no-selection"))
SEEDS = (0, 1, 2)
PARTS = (("test", "seen"), ("unseen", "unseen"))
TENTHS = 10


def entropy(vectors, head):
    weight, scale = head
    logits = scale * unit(vectors.astype(np.float64)) @ weight.T
    logits -= logits.max(axis=1, keepdims=True)
    share = np.exp(logits)
    share /= share.sum(axis=1, keepdims=True)
    return -(share * np.log(np.maximum(share, 1e-300))).sum(axis=1)


def main(rehang):
    kept = Kept("dmu", rehang)
    record = ROOT / "laboratory" / "bench" / "runs" / "compatible-dmu-entropies"
    record.mkdir(parents=True, exist_ok=True)
    points, text = [], []
    text.append("| Classes | Model | " + " | ".join(f"{10 * tenth + 10} %" for tenth in range(TENTHS)) + " | items whose Λ falls, % | correlation of Λ_old with the fall |")
    text.append("|---|---|" + "--:|" * (TENTHS + 2))
    for part, name in PARTS:
        for label, model in MODELS:
            before, after, falls, correlations = [], [], [], []
            for seed in SEEDS:
                old = kept.vectors(f"old-{seed}", part)
                moved = old.with_name("moved.npy")
                kept.call("transform", f"{model}-{seed}-psi.safetensors", old, "-o", moved)
                first = entropy(np.load(old), kept.head(f"old-{seed}"))
                second = entropy(np.load(moved), kept.head(f"{model}-{seed}"))
                tenths = np.array_split(np.argsort(first, kind="stable"), TENTHS)
                before.append([first[tenth].mean() for tenth in tenths])
                after.append([second[tenth].mean() for tenth in tenths])
                falls.append(100 * np.mean(second < first))
                correlations.append(np.corrcoef(first, first - second)[0, 1])
            before, after = np.mean(before, axis=0), np.mean(after, axis=0)
            points.append({"part": name, "model": label, "before": before.round(4).tolist(), "after": after.round(4).tolist()})
            cells = [f"{old:.2f} → {new:.2f}" for old, new in zip(before, after)]
            cells += [f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}" for values, digits in ((falls, 1), (correlations, 2))]
            text.append(f"| {name} | {label} | " + " | ".join(cells) + " |")
    (record / "entropies.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points), encoding="utf-8")
    (record / "entropies.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main(*sys.argv[1:])
