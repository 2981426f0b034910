"""SOAP operator by operator, as nikhilvyas/SOAP a1e5535 (soap.py) has it, between two decompositions."""

import torch

LARGEST = 10_000


class SOAP(torch.optim.Optimizer):
    """The first step makes the states and bases and changes no weight."""

    def __init__(self, weights, rate=3e-3, betas=(0.95, 0.95), eps=1e-8, decay=0.01):
        super().__init__(weights, {"lr": rate, "betas": betas, "eps": eps, "decay": decay})

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        first, second = group["betas"]
        for weight in group["params"]:
            gradient, state = weight.grad, self.state[weight]
            if not state:
                state |= {"step": 0, "average": torch.zeros_like(gradient), "square": torch.zeros_like(gradient)}
                squared = gradient.ndim == 2
                state["grams"] = [
                    torch.zeros(side, side) if squared and side <= LARGEST else [] for side in gradient.shape
                ]
                state["bases"] = None
                self.update(gradient, state)
                continue
            seen = projected(gradient, state["bases"])
            average, square = state["average"], state["square"]
            state["step"] += 1
            average.mul_(first).add_(seen, alpha=1 - first)
            square.mul_(second).add_(seen.square(), alpha=1 - second)
            denominator = square.sqrt().add_(group["eps"])
            corrected = (1 - second ** state["step"]) ** 0.5 / (1 - first ** state["step"])
            update = projected(average / denominator, state["bases"], 1)
            weight.add_(update, alpha=-group["lr"] * corrected)
            weight.add_(weight, alpha=-group["lr"] * group["decay"])
            self.update(gradient, state)

    def update(self, gradient, state):
        if state["bases"] is not None:
            state["average"] = projected(state["average"], state["bases"], 1)
        for side, gram in enumerate(state["grams"]):
            if len(gram):
                product = torch.tensordot(gradient, gradient, dims=[[1 - side]] * 2)
                gram.lerp_(product, 1 - self.param_groups[0]["betas"][1])
        if state["bases"] is None:
            state["bases"] = [torch.eye(len(gram)) if len(gram) else [] for gram in state["grams"]]  # by eigh, there
        if state["step"] > 0:
            state["average"] = projected(state["average"], state["bases"])


def projected(matrix, bases, side=0):
    """A matrix in the bases of its sides; side 1: out of these."""
    for basis in bases:
        if len(basis):
            matrix = torch.tensordot(matrix, basis, dims=[[0], [side]])
        else:
            matrix = matrix.permute([*range(1, matrix.ndim), 0])
    return matrix
