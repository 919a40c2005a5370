"""Optimizers that factorise: Shampoo (Gupta, Koren, Singer, 2018) takes eigenvalues on the device."""

from __future__ import annotations

import pytest

SHAMPOO = """
import sys, torch

class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr, every):
        super().__init__(params, dict(lr=lr, every=every))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                self.update(param, group["lr"], group["every"])

    def update(self, param, lr, every):
        state, grad = self.state[param], param.grad
        if not state:
            state["step"] = 0
            state["factors"] = [torch.eye(size, device=param.device) for size in grad.shape]
            state["roots"] = [None, None]
        for factor, product in zip(state["factors"], (grad @ grad.T, grad.T @ grad)):
            factor += product
        if state["step"] % every == 0:
            state["roots"] = [self.root(factor) for factor in state["factors"]]
        left, right = state["roots"]
        param -= lr * (left @ grad @ right)
        state["step"] += 1

    def root(self, factor):
        values, vectors = torch.linalg.eigh(factor)
        return vectors * values.clamp(min=1e-6) ** -0.25 @ vectors.T

linear = lambda *sizes: torch.nn.Linear(*sizes, bias=False)
model = torch.nn.Sequential(linear(256, 768), torch.nn.GELU(), linear(768, 256)).cuda()
optimizer = Shampoo(model.parameters(), 0.1, int(sys.argv[1]))
x = torch.randn(512, 256, device="cuda")
for _ in range(40):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_shampoo_takes_the_time_of_its_eigenvalues(predict, script):
    prediction = predict(["--no-cache", "--cluster", "dgx-h100"], script(SHAMPOO), "1")
    assert prediction["verdict"] == "FITS"
    assert prediction["unsupported"] == []
    # Two matrices of 256 columns by Jacobi's method, two of 768 by a tridiagonal form.
    assert prediction["iteration_time_s"] == pytest.approx(2 * (15 * 256 * 1.2e-6 + 768 * 16e-6), rel=0.3)
    assert prediction["critical_path_s"]["lapack"] > 0.9 * prediction["iteration_time_s"]
    assert prediction["provenance"]["roofline"] > 0.9
    assert any("syevd, syevj" in note and "published" in note for note in prediction["notes"])


def test_what_is_factorised_every_so_many_steps_is_told_to_be_missing(predict, script):
    prediction = predict(["--no-cache", "--cluster", "dgx-h100"], script(SHAMPOO), "20")
    assert prediction["verdict"] == "FITS"
    assert any(note.startswith("syevd, syevj: only before") for note in prediction["notes"])


def test_what_is_factorised_every_so_many_steps_counts_where_twice_as_many_are_asked_for(predict, script):
    options, path = ["--no-cache", "--cluster", "dgx-h100"], script(SHAMPOO)
    tenth = predict([*options, "--iterations", "20"], path, "10")
    assert any("the mean of 10" in note for note in tenth["notes"])
    each = predict(options, path, "1")
    assert tenth["critical_path_s"]["lapack"] == pytest.approx(
        each["critical_path_s"]["lapack"] / 10, rel=0.1
    )


MUON = """\
import sys
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)]).cuda()
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=0.01)
def closure():
    optimizer.zero_grad()
    loss = model(torch.randn(256, 512, device="cuda")).square().mean()
    loss.backward()
    return loss
for _ in range(20):
    if len(sys.argv) > 2:
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
"""


def test_what_an_optimizer_computes_is_not_the_models_and_its_closure_is(predict, script):
    path = script(MUON)
    hardware, model = {}, {}
    for arguments in ("SGD", "Muon", "SGD closure", "Muon closure"):
        prediction = predict([], path, *arguments.split())
        of_peak = prediction["iteration_time_s"]  # times a share of the peak: seconds at the peak
        hardware[arguments] = of_peak * prediction["hardware_flops_utilization"]
        model[arguments] = of_peak * prediction["model_flops_utilization"]
    assert hardware["Muon"] > 1.5 * hardware["SGD"]
    assert model == pytest.approx(dict.fromkeys(model, model["SGD"]))
