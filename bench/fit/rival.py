"""The same epochs in PyTorch on the CPU: `rival.py FILE THREADS EPOCHS {foreach|fused}`.

FILE comes from the bench's `write`: pairs, initial weights and the order of the first epoch.
Prints one JSON line like the bench's `run`.
"""

import json
import math
import os
import sys
import time

path, threads, epochs, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ["OMP_NUM_THREADS"] = str(threads)
import torch  # noqa: E402  (the number of threads must be set first)
from safetensors.torch import load_file  # noqa: E402

torch.set_num_threads(threads)
data = load_file(path)
d = 128
old, new = data["old"].reshape(-1, d), data["new"].reshape(-1, d)
order = data["order"].long()


def block(inputs, outputs):
    return [torch.nn.Linear(inputs, outputs, bias=False), torch.nn.BatchNorm1d(outputs), torch.nn.ReLU()]


class Adapter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = torch.nn.Sequential(*block(d, 2 * d), *block(2 * d, 2 * d))
        self.p2 = torch.nn.Sequential(*block(d, 2 * d), *block(2 * d, 2 * d))
        self.mixer = torch.nn.Sequential(*block(4 * d, 2048), *block(2048, 2048), torch.nn.Linear(2048, d))

    def forward(self, x):
        return self.mixer(torch.cat([self.p1(x), self.p2(x)], dim=1))


model = Adapter()
with torch.no_grad():
    begin = 0
    for parameter in model.parameters():
        parameter.copy_(data["parameters"][begin : begin + parameter.numel()].reshape(parameter.shape))
        begin += parameter.numel()
    assert begin == len(data["parameters"])
optimiser = torch.optim.Adam(model.parameters(), lr=5e-4, weight_decay=2.0**-15, **{kind: True})
criterion = torch.nn.MSELoss()


def rate(epoch):
    if epoch < 5:
        return 5e-4 * (epoch + 1) / 5
    return 5e-4 * 0.5 * (1 + math.cos(math.pi * (epoch - 5) / 75))


def run(epoch, order):
    for group in optimiser.param_groups:
        group["lr"] = rate(epoch)
    model.train()
    total = 0.0
    for indices in order.split(1024):
        loss = criterion(model(old[indices]), new[indices])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item() * len(indices)
    return total / len(order)


loss = run(0, order)
wall, cpu = [], []
for epoch in range(1, epochs + 1):
    order = torch.randperm(len(old))
    start, start_cpu = time.perf_counter(), time.process_time()
    run(epoch, order)
    wall.append(time.perf_counter() - start)
    cpu.append(time.process_time() - start_cpu)
print(json.dumps({"who": f"torch-{kind}", "threads": threads, "loss": loss, "wall": wall, "cpu": cpu}))
