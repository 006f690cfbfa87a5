"""The optimiser Muon: orthogonalised momentum for hidden matrices, Adam for all else. Knows nothing about fairseq.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) replaces the momentum of a weight matrix by the nearest
matrix whose singular values are all one, so that rare directions learn as fast as common ones. Embeddings, biases and norms
keep Adam. Both use one learning rate: Muon's updates are scaled to the size of typical Adam updates (Liu et al. 2025,
arXiv 2502.16982). ``torch.optim.Muon`` computes in bfloat16, which takes a CPU without bfloat16 products 27 times as long.
"""

import math
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
UPDATE_SIZE = 0.2  # root mean square of an update at learning rate 1; Liu et al. measured 0.2 to 0.4 in Adam's updates
WIDEST = 8  # a matrix with a larger ratio of rows and columns is taken for embeddings

# Coefficients of the quintic Newton-Schulz iteration (Jordan et al.): five steps bring singular values to 0.7 - 1.2.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5


def is_hidden(parameter: Tensor) -> bool:
    """Whether a parameter is a hidden layer's weight matrix, judging by its shape."""
    return parameter.dim() == 2 and max(parameter.shape) <= WIDEST * min(parameter.shape)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices ``hidden``, Adam for ``others``; weight decay is decoupled in both."""

    def __init__(
        self, hidden: list[Tensor], others: list[Tensor], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ):
        groups: list[dict[str, Any]] = [{"params": hidden, "muon": True}, {"params": others, "muon": False}]
        super().__init__([g for g in groups if g["params"]], {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Update every parameter that has a gradient; returns the loss of ``closure``, if given."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            gradients = {p: p.grad for p in group["params"] if p.grad is not None}
            for p in gradients:
                p.mul_(1 - group["lr"] * group["weight_decay"])
            if group["muon"]:
                self._step_muon(gradients, group["lr"])
            else:
                self._step_adam(gradients, group)
        return loss

    def _step_muon(self, gradients: dict[Tensor, Tensor], lr: float) -> None:
        for shape in dict.fromkeys(p.shape for p in gradients):  # one batched product per shape
            alike = [p for p in gradients if p.shape == shape]
            updates = []
            for p in alike:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"].lerp_(gradients[p], 1 - MOMENTUM)
                updates.append(gradients[p].lerp(momentum, MOMENTUM))  # Nesterov
            size = UPDATE_SIZE * math.sqrt(max(shape))  # an orthogonal matrix has root mean square 1 / sqrt(max(shape))
            for p, update in zip(alike, orthogonalise(torch.stack(updates)), strict=True):
                p.add_(update, alpha=-lr * size)

    def _step_adam(self, gradients: dict[Tensor, Tensor], group: dict[str, Any]) -> None:
        first, second = group["betas"]
        for p, gradient in gradients.items():
            state = self.state[p]
            if not state:
                state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            state["step"] += 1
            state["exp_avg"].lerp_(gradient, 1 - first)
            state["exp_avg_sq"].lerp_(gradient.square(), 1 - second)
            deviation = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
            p.addcdiv_(state["exp_avg"], deviation, value=-group["lr"] / (1 - first ** state["step"]))


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest matrices (N, rows, columns) whose singular values are about one, by Newton-Schulz iteration.

    In bfloat16 on CPUs that have it if PyTorch may compute float32 products so (precision "medium"), which is faster there than
    leaving it to PyTorch's batched products.
    """
    a, b, c = QUINTIC
    tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    may = x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "medium"
    if may and x.device.type == "cpu" and torch.cpu._is_avx512_bf16_supported():
        x = x.bfloat16()
    for _ in range(STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)
