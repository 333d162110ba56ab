"""Applies the same adapters with PyTorch and ONNX Runtime, in turns with rehang, and prints a table.

Called by run.sh: rival.py BENCH_APPLY THREADS ROUNDS. Every contestant gets the same 16,384 old vectors a round, in
batches of the size that suited it best in a trial beforehand. Before anything is timed, the answers of all are
compared (1e-4 of the largest coordinate). Rates are medians over rounds. Beside wall-clock time stands processor time
(of all threads), which other work on the machine disturbs less.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy
import onnx
import onnxruntime
import torch
from safetensors.numpy import load_file

# torch.jit is deprecated, and still the fastest of PyTorch's ways on some machines.
warnings.filterwarnings("ignore", category=FutureWarning)

ROWS = 16384
BATCHES = [256, 1024, 4096, 16384]
# Rows whose answers the program writes.
CHECKED = 512


def bench_process(program):
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def request(line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    return request


def layer_names(tensors, part):
    count = len([name for name in tensors if name.startswith(part + ".") and name.endswith(".weight")])
    return [f"{part}.{index}" for index in range(count)]


class Block(torch.nn.Module):
    """Linear (no bias), BatchNorm, ReLU, as the adapter is trained; BatchNorm carries the bias."""

    def __init__(self, weight, bias):
        super().__init__()
        outputs, inputs = weight.shape
        self.linear = torch.nn.Linear(inputs, outputs, bias=False)
        self.norm = torch.nn.BatchNorm1d(outputs)
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(weight))
            self.norm.bias.copy_(torch.from_numpy(bias))
            # So that (x − 0) / sqrt(1 − eps + eps) is x.
            self.norm.running_var.fill_(1.0 - self.norm.eps)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


class Adapter(torch.nn.Module):
    """h(o) and σ²; `folded` has BatchNorm folded into the Linear layers."""

    def __init__(self, tensors, folded):
        super().__init__()

        def linear(weight, bias):
            layer = torch.nn.Linear(weight.shape[1], weight.shape[0])
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(weight))
                layer.bias.copy_(torch.from_numpy(bias))
            return layer

        def block(name):
            weight, bias = tensors[name + ".weight"], tensors[name + ".bias"]
            return torch.nn.Sequential(linear(weight, bias), torch.nn.ReLU()) if folded else Block(weight, bias)

        names = {part: layer_names(tensors, part) for part in ("branch", "second", "mixer")}
        self.branch = torch.nn.Sequential(*[block(name) for name in names["branch"]])
        self.second = torch.nn.Sequential(*[block(name) for name in names["second"]]) if names["second"] else None
        last = names["mixer"][-1]
        self.mixer = torch.nn.Sequential(
            *[block(name) for name in names["mixer"][:-1]], linear(tensors[last + ".weight"], tensors[last + ".bias"])
        )
        self.sigma = linear(tensors["uncertainty.weight"][None, :], tensors["uncertainty.bias"])

    def forward(self, old):
        joined = old if self.second is None else torch.cat([self.branch(old), self.second(old)], dim=1)
        raw = self.mixer(joined)
        return raw, torch.exp(self.sigma(raw))[:, 0]


def onnx_model(tensors):
    """The same network with BatchNorm folded, the form that ONNX Runtime fuses best: Gemm and Relu."""
    nodes, initializers = [], []

    def gemm(name, weight, bias, source, relu):
        initializers.append(onnx.numpy_helper.from_array(numpy.ascontiguousarray(weight.T), name + ".w"))
        initializers.append(onnx.numpy_helper.from_array(bias, name + ".b"))
        nodes.append(onnx.helper.make_node("Gemm", [source, name + ".w", name + ".b"], [name + ".y"]))
        if not relu:
            return name + ".y"
        nodes.append(onnx.helper.make_node("Relu", [name + ".y"], [name + ".r"]))
        return name + ".r"

    def chain(part, source, last_relu):
        names = layer_names(tensors, part)
        for index, name in enumerate(names):
            relu = last_relu or index + 1 < len(names)
            source = gemm(name, tensors[name + ".weight"], tensors[name + ".bias"], source, relu)
        return source

    joined = chain("branch", "old", True)
    if layer_names(tensors, "second"):
        nodes.append(onnx.helper.make_node("Concat", [joined, chain("second", "old", True)], ["joined"], axis=1))
        joined = "joined"
    raw = chain("mixer", joined, False)
    log = gemm("sigma", tensors["uncertainty.weight"][None, :], tensors["uncertainty.bias"], raw, False)
    nodes.append(onnx.helper.make_node("Exp", [log], ["variance"]))
    value = lambda name, width: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", width])
    width_in = tensors[nodes[0].input[1][:-2] + ".weight"].shape[1]
    graph = onnx.helper.make_graph(
        nodes, "adapter", [value("old", width_in)],
        [value(raw, tensors["uncertainty.weight"].shape[0]), value("variance", 1)], initializers,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def rivals(tensors, example, threads):
    """Functions from old vectors to (vectors, σ²), by name."""

    def torch_runner(module):
        def run(old):
            with torch.inference_mode():
                vectors, variance = module(torch.from_numpy(old))
                return vectors.numpy(), variance.numpy()

        return run

    eager = Adapter(tensors, folded=False).eval()
    folded = Adapter(tensors, folded=True).eval()
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(eager, torch.from_numpy(example)))
        frozen = torch.jit.optimize_for_inference(frozen)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that spin while waiting would take processor time from the program that is measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(onnx_model(tensors), options, providers=["CPUExecutionProvider"])

    def run_onnx(old):
        vectors, variance = session.run(None, {"old": old})
        return vectors, variance[:, 0]

    return {
        "PyTorch eager (Linear, BatchNorm, ReLU)": torch_runner(eager),
        "PyTorch eager, BatchNorm folded": torch_runner(folded),
        "PyTorch jit, frozen and optimised": torch_runner(frozen),
        "ONNX Runtime, BatchNorm folded": run_onnx,
    }


def timed(run, old, batch):
    wall, processor = time.perf_counter(), time.process_time()
    for first in range(0, len(old), batch):
        run(old[first : first + batch])
    return time.perf_counter() - wall, time.process_time() - processor


def check(name, answers, expected):
    for received, wanted in zip(answers, expected):
        error = numpy.abs(received - wanted).max() / numpy.abs(wanted).max()
        assert error < 1e-4, f"{name} differs by {error}"


def main():
    program, threads, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    request = bench_process(program)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        request(f"WRITE {folder}")
        for adapter in ("fct", "dmu"):
            tensors = load_file(folder / f"{adapter}.safetensors")
            read = lambda what: numpy.fromfile(folder / f"{adapter}.{what}.f32", dtype="<f4")
            checked = read("old").reshape(CHECKED, -1)
            expected = (read("vectors").reshape(CHECKED, -1), read("variance"))
            contestants = rivals(tensors, checked, threads)
            for name, run in contestants.items():
                check(name, run(checked), expected)
            old = numpy.random.default_rng(3).uniform(-1, 1, (ROWS, checked.shape[1])).astype(numpy.float32)

            def trial(run):
                # The smaller of two, since the first run of a size may still set something up.
                return min(BATCHES, key=lambda batch: min(timed(run, old, batch)[1] for _ in range(2)))

            batches = {name: trial(run) for name, run in contestants.items()}
            seconds = {name: [] for name in ["rehang", "sgemm", *contestants]}
            operations = {}
            for _ in range(rounds):
                for name, line in (("rehang", f"{adapter} {ROWS}"), ("sgemm", "sgemm 2")):
                    answer = request(line)
                    operations[name] = answer["operations"]
                    seconds[name].append((answer["wall"], answer["processor"]))
                for name, run in contestants.items():
                    operations[name] = operations["rehang"]
                    seconds[name].append(timed(run, old, batches[name]))

            rate = lambda name, clock: operations[name] / statistics.median(s[clock] for s in seconds[name]) / 1e9
            ratio = lambda name, clock: statistics.median(
                s[clock] / r[clock] for s, r in zip(seconds[name], seconds["rehang"])
            )
            print(f"\n### {adapter}, {threads} thread(s), {ROWS} vectors a round, {rounds} rounds\n")
            print("| | batch | vectors/s | GFLOP/s | GFLOP per processor second | rehang is faster by (wall) | (processor) |")
            print("|---|---|---|---|---|---|---|")
            for name in ["rehang", *contestants]:
                vectors = ROWS / statistics.median(s[0] for s in seconds[name])
                print(
                    f"| {name} | {batches.get(name, 'all')} | {vectors:,.0f} | {rate(name, 0):.0f} | {rate(name, 1):.0f} "
                    f"| {ratio(name, 0):.2f}x | {ratio(name, 1):.2f}x |"
                )
            share = [rate("rehang", clock) / rate("sgemm", clock) for clock in (0, 1)]
            print(
                f"| square sgemm by the gemm crate | – | – | {rate('sgemm', 0):.0f} | {rate('sgemm', 1):.0f} "
                f"| rehang reaches {share[0]:.0%} | {share[1]:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
