"""Upgrades in a row on Omniglot: RACT's figure 7 (30, 60, 80, 100 % of the images of 160 characters), DMU's table 6 (25, 50, 75 % of them) and BCT's
table 4 (40, 80 and 160 characters). The 82 characters that no model sees are drawn from all alphabets.

    python3 laboratory/bench/compatible/sequence.py ract ../shared/data REHANG-LAB
    python3 laboratory/bench/compatible/sequence.py dmu ../shared/data REHANG-LAB
    python3 laboratory/bench/compatible/sequence.py bct ../shared/data REHANG-LAB

One encoder for all generations, as in the papers; the recipes are those of ract-expansion.toml, dmu.toml and bct.toml. Three seeds. Numbers of every
seed go to laboratory/bench/runs/compatible-sequence-METHOD/seeds.jsonl, the table to sequence.md beside it.
"""

import json
import subprocess
import sys
from pathlib import Path

from cells import cell, gamma, met

ROOT = Path(__file__).resolve().parents[3]
SEEDS = (0, 1, 2)
PARTS = (("test", "seen"), ("unseen", "unseen"))
SHARES = {"ract": (0.3, 0.6, 0.8, 1.0), "dmu": (0.25, 0.5, 0.75), "bct": (0.25, 0.5, 1.0)}
KINDS = {"ract": "expansion", "dmu": "expansion", "bct": "extended-class"}
RECIPES = {
    "ract": """[head]
form = "normalised-softmax"
scale = 16.0
[training]
epochs = 30
optimiser = { kind = "adam" }
rate = 0.01
schedule = { kind = "steps", at = [10, 20] }
views = 2
gradient_clip = 10.0
""",
    "dmu": """[head]
form = "arcface"
scale = 30.0
margin = 0.3
[training]
epochs = 30
rate = 0.1
views = 2
gradient_clip = 10.0
""",
    "bct": """[head]
form = "cosface"
scale = 30.0
margin = 0.35
[training]
epochs = 30
rate = 0.1
schedule = { kind = "steps", at = [15, 22, 26] }
gradient_clip = 10.0
""",
}
# What a line of the table is: its name, the method of rehang, and its options.
METHODS = {
    "ract": (("vanilla", "ract", 'form = "vanilla"'), ("ours", "ract", "")),
    "dmu": (("oracle", "plain", ""), ("BCT", "bct", ""), ("ours", "dmu", "adapter_batch = 128")),
    "bct": (("paragon", "plain", ""), ("BCT", "bct", "")),
}
# What the paper prints on GLDv2-test: M(n, n), M(n, o), gain up, gain down, of both generations (RACT's figure has no numbers).
THERE = {
    "oracle": ((22.39, None, None, None), (24.04, None, None, None)),
    "BCT": ((21.47, 18.88, 5.53, 4.11), (23.52, 19.82, 10.79, 2.16)),
    "ours": ((22.66, 19.84, 10.90, -1.21), (23.88, 21.16, 18.28, 0.67)),
}
HOT = (0, 25, 50, 75, 100)
# A line of BCT's table 4: query model and gallery model by generation from 0 on, and what the paper prints of IJB-C 1:N: search accuracy, Γ and
# gain. `*` is a paragon.
PAIRS = (
    ("(φ_1, φ_1)", "BCT", 0, 0, ("22.57", None, None)),
    ("(φ_2-β, φ_1)", "BCT", 1, 0, ("39.00", "44.68", "16.43")),
    ("(φ_3-β, φ_1)", "BCT", 2, 0, ("36.10", "36.80", "13.53")),
    ("(φ_2-β, φ_2-β)", "BCT", 1, 1, ("56.07", None, None)),
    ("(φ_3-β, φ_2-β)", "BCT", 2, 1, ("66.09", "48.15", "10.02")),
    ("(φ_3-β, φ_3-β)", "BCT", 2, 2, (None, None, None)),
    ("(φ_2*, φ_2*)", "paragon", 1, 1, ("59.34", None, None)),
    ("(φ_3*, φ_3*)", "paragon", 2, 2, ("76.88", None, None)),
)


def configuration(paper, data, step, seed, line, options, old):
    """A training; step 0 is the first model, which sees the first share."""
    shares = SHARES[paper]
    at = max(step, 1)
    text = f"""[data]
kind = "arrays"
images = "{data}/raw_u8_28.npy"
labels = "{data}/raw_label.npy"
[allocation]
file = "step{at}-{seed}.json"
kind = "{KINDS[paper]}"
share = {shares[at - 1]}
new_share = {shares[at]}
unseen = 0.34
test = 0.3
seed = {seed}
part = "{'old' if step == 0 else 'new'}"
[encoder]
kind = "cnn-small"
width = 32
outputs = 64
[augmentation]
crop_padding = 3
{RECIPES[paper]}seed = {10 * seed + step}
[output]
model = "{line}-{step}"
"""
    if old:
        text += f'[old]\nencoder = "{old}"\n'
    if options:
        text += f"[method]\n{options}\n"
    return text


class Run:
    def __init__(self, paper, data, rehang):
        self.paper, self.data, self.rehang = paper, data, rehang
        self.work = ROOT / "target" / f"compatible-sequence-{paper}"
        self.work.mkdir(parents=True, exist_ok=True)

    def call(self, *arguments):
        done = subprocess.run([self.rehang, *arguments], cwd=self.work, text=True, stdout=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(f"rehang-lab {' '.join(arguments)}: exit code {done.returncode}")
        return done.stdout

    def train(self, step, seed, line, method, options, old=None):
        name = f"{line}-{seed}-{step}"
        (self.work / f"{name}.toml").write_text(
            configuration(self.paper, self.data, step, seed, line, options, old)
        )
        extra = ["--adapter", f"{name}-psi.safetensors"] if method == "dmu" else []
        self.call("train", method, f"{name}.toml", "-o", f"{name}.safetensors", *extra)
        return f"{name}.safetensors"

    def embed(self, encoder, seed, part):
        out = f"{encoder.removesuffix('.safetensors')}-{part}.npy"
        last = f"{METHODS[self.paper][-1][0]}-{seed}-{len(SHARES[self.paper]) - 1}.toml"
        self.call("embed", encoder, last, "--part", part, "-o", out, "--labels", f"labels-{part}.npy")
        return out

    def evaluate(self, verb, models, part, *more):
        named = [f"phi{number}={path}" for number, path in models]
        common = ["--labels", f"labels-{part}.npy", "--distance", "cosine", "--json"]
        return json.loads(self.call("evaluate", verb, "--models", *named, *common, *more))

    def seed(self, seed):
        """Numbers of one seed: dictionaries of line, part, generation."""
        generations = range(1, len(SHARES[self.paper]))
        first = self.train(0, seed, "first", "plain", "")
        chains = {}
        for line, method, options in METHODS[self.paper]:
            chain = [first]
            for step in generations:
                old = None if method == "plain" else chain[-1]
                chain.append(self.train(step, seed, line, method, options, old))
            chains[line] = chain
        for part, name in PARTS:
            for line, chain in chains.items():
                vectors = [(number, self.embed(encoder, seed, part)) for number, encoder in enumerate(chain)]
                if self.paper == "bct":
                    metrics = self.evaluate("cross", vectors, part)["metrics"]
                    matrices = {metric: metrics[metric]["matrix"] for metric in ("map", "top1")}
                    yield {"seed": seed, "part": name, "line": line, **matrices}
                    continue
                psi = []
                if line == "ours" and self.paper == "dmu":
                    own = [f"phi{step}=ours-{seed}-{step}-psi.safetensors" for step in generations]
                    psi = ["--adapters", *own]
                steps = self.evaluate("sequence", vectors, part, *psi)["steps"]
                for step in generations:
                    number = {"seed": seed, "part": name, "line": line, "generation": step}
                    number["first"] = steps[0]["full"]["map"]
                    number["own"] = steps[step]["full"]["map"]
                    number["no_refresh"] = steps[step]["no_refresh"]["map"]
                    if self.paper == "ract":
                        both = vectors[step - 1 : step + 1]
                        hot = self.evaluate("refresh", both, part, "--grid", "101", "--seed", str(seed))
                        metrics = hot["orders"][0]["metrics"]
                        number["hot"] = metrics["map"]["values"]
                        number["negative_flips"] = metrics["nfr1"]["area"]
                    yield number


def table_of_pairs(numbers):
    """BCT's table 4. Γ of φ_3 in φ_1's gallery is held against φ_2*, as the paper's is, and against φ_3* in the last column."""
    heads = ["Classes", "Comparison pair", "Search acc. (mAP)", "compatible?", "Γ, %", "gain", "top-1", "compatible?", "Γ of mAP against φ_3*, %"]
    text = [row(heads), row(["---"] * 2 + ["--:"] * (len(heads) - 2))]
    for _, part in PARTS:
        here = {(one["line"], one["seed"]): one for one in numbers if one["part"] == part}

        def column(metric, line, query, gallery):
            return [here[line, seed][metric][query][gallery] for seed in SEEDS]

        for label, line, query, gallery, paper in PAIRS:
            across = column("map", line, query, gallery)
            cells = [part, label, cell(across, paper[0])]
            if query == gallery:
                cells += ["–"] * 3 + [cell(column("top1", line, query, gallery)), "–", "–"]
                text.append(row(cells))
                continue
            own = column("map", line, gallery, gallery)
            best = [column("map", "paragon", generation, generation) for generation in (gallery + 1, 2)]
            cells += [met(across, own), gamma(across, own, best[0], paper[1])]
            cells.append(cell([new - old for new, old in zip(across, own)], paper[2]))
            both = [column("top1", line, query, gallery), column("top1", line, gallery, gallery)]
            cells += [cell(both[0]), met(*both), gamma(across, own, best[1])]
            text.append(row(cells))
    return "\n".join(text) + "\n"


def row(cells):
    return f"| {' | '.join(cells)} |"


def table(paper, numbers):
    if paper == "bct":
        return table_of_pairs(numbers)

    def of(part, line, step):
        return [one for one in numbers if (one["part"], one["line"], one["generation"]) == (part, line, step)]

    def column(name, part, line, step):
        return [one[name] for one in of(part, line, step)]

    generations = range(1, len(SHARES[paper]))
    text = []
    for _, part in PARTS:
        if paper == "ract":
            heads = ["Classes", "Generation", "Model", "first model", "no refresh"]
            heads += [f"hot, {at} %" for at in HOT] + ["hot, lowest", "NFR@1, mean"]
            if not text:
                text += [row(heads), row(["---"] * 3 + ["--:"] * (len(heads) - 3))]
            for step in generations:
                for line, _, _ in METHODS[paper]:
                    hot = column("hot", part, line, step)
                    text.append(row(
                        [part, str(step), line]
                        + [cell(column(name, part, line, step)) for name in ("first", "no_refresh")]
                        + [cell([curve[at] for curve in hot]) for at in HOT]
                        + [cell([min(curve) for curve in hot]), cell(column("negative_flips", part, line, step))]
                    ))
            continue
        heads = ["Classes", "Method", "φ_o"]
        for ordinal in ("1st", "2nd"):
            heads += [f"{ordinal}: M(φ_n, φ_n)", "M(φ_n, φ_o)", "Δ↑", "Δ↓"]
        if not text:
            text += [row(heads), row(["---"] * 2 + ["--:"] * (len(heads) - 2))]
        for line, _, _ in METHODS[paper]:
            cells = [part, line, cell(column("first", part, line, 1))]
            for step in generations:
                own, across = (column(name, part, line, step) for name in ("own", "no_refresh"))
                first, best = column("first", part, line, step), column("own", part, "oracle", step)
                there = THERE[line][step - 1] if part == "seen" else (None,) * 4
                up = [100 * (new / old - 1) for new, old in zip(across, first)]
                down = [100 * (1 - new / oracle) for new, oracle in zip(own, best)]
                cells.append(cell(own, there[0]))
                if line == "oracle":
                    cells += ["–"] * 3
                else:
                    cells += [cell(across, there[1]), cell(up, there[2]), cell(down, there[3])]
            text.append(row(cells))
    return "\n".join(text) + "\n"


def main(paper, data, rehang):
    run = Run(paper, Path(data).resolve() / "img_omniglot", str(Path(rehang).resolve()))
    record = ROOT / "laboratory" / "bench" / "runs" / f"compatible-sequence-{paper}"
    record.mkdir(parents=True, exist_ok=True)
    numbers = []
    with open(record / "seeds.jsonl", "w", encoding="utf-8") as lines:
        for seed in SEEDS:
            for number in run.seed(seed):
                numbers.append(number)
                lines.write(json.dumps(number) + "\n")
    text = table(paper, numbers)
    (record / "sequence.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
