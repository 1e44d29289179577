"""The optimizer of a run and the schedule of its learning rates."""

import math
from collections import defaultdict

import torch


class Optimizer:
    """AdamW (Loshchilov & Hutter 2017, arXiv 1711.05101), or Muon for the layers' matrices and AdamW for the rest. One
    call steps both.

    Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) orthogonalises the momentum of a matrix before each
    step. Matrices and embeddings get weight decay; biases, norms and the scheme's `no_decay` do not."""

    def __init__(self, model, cfg):
        self.cfg = cfg
        self.names = {p: name for name, p in model.named_parameters()}
        exempt = {getattr(scheme, name) for scheme in model.schemes for name in scheme.no_decay}
        muon = defaultdict(list)  # the matrices of each shape
        decayed = []
        undecayed = []
        for p, name in self.names.items():
            if cfg.optimizer == "muon" and p.dim() == 2 and ".h." in name:
                muon[p.shape].append(p)
            elif p.dim() >= 2 and p not in exempt:
                decayed.append(p)
            else:
                undecayed.append(p)
        groups = [
            {"params": decayed, "weight_decay": cfg.weight_decay},
            {"params": undecayed, "weight_decay": 0.0},
        ]
        self.parts = {"adamw": torch.optim.AdamW(groups, cfg.learning_rate, (cfg.beta1, cfg.beta2), fused=True)}
        if muon:
            groups = [{"params": matrices} for matrices in muon.values()]
            self.parts["muon"] = Muon(groups, cfg.muon_lr, cfg.weight_decay)
        self.groups = [group for part in self.parts.values() for group in part.param_groups]
        for group in self.groups:
            group["initial_lr"] = group["lr"]

    def set_rates(self, step):
        """Sets the learning rates of a step. Returns their share of the peaks."""
        share = schedule(self.cfg, step)
        for group in self.groups:
            group["lr"] = share * group["initial_lr"]
        return share

    def step(self):
        for part in self.parts.values():
            part.step()

    def state_dict(self):
        """{"adamw" or "muon": {name of the parameter: its state}}."""
        states = {}
        for name, part in self.parts.items():
            states[name] = {self.names[p]: state for p, state in part.state.items()}
        return states

    def load_state_dict(self, states):
        """Loads the moments of a state_dict; rates, decay and betas remain those of this call."""
        for name, part in self.parts.items():
            for p in self.names:
                if self.names[p] in states[name]:
                    state = states[name][self.names[p]]
                    part.state[p] = {key: t.to(p) for key, t in state.items()}


class Muon(torch.optim.Muon):
    """torch's Muon with all matrices of a shape in one batch, because a GPU computes a few large products faster than
    hundreds of small ones. On a CPU with AVX512, the updates are the same, bit for bit."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:  # one for each shape
            params = group["params"]
            rows, columns = params[0].shape
            for p in params:
                if not self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            grads = [p.grad for p in params]
            averages = [self.state[p]["momentum_buffer"] for p in params]
            torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
            updates = torch.stack(torch._foreach_lerp(grads, averages, group["momentum"]))  # Nesterov's
            updates.copy_(orthogonalise(updates))
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, updates.unbind(), alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))


def orthogonalise(X):
    """Muon's five Newton-Schulz steps on the matrices X (n, rows, columns), in bfloat16."""
    if X.size(1) > X.size(2):
        return orthogonalise(X.mT).mT
    X = rounded(X)
    norms = rounded(X.norm(dim=(1, 2), keepdim=True))
    X = rounded(X / norms.clamp(min=1e-7))
    for _ in range(5):
        A = rounded(torch.bmm(X, X.mT))
        A = rounded(torch.baddbmm(A, A, A, beta=-4.7750, alpha=2.0315))
        X = rounded(torch.baddbmm(X, A, X, beta=3.4445))
    return X


def rounded(X):
    """X in bfloat16, but as float32 on a CPU without AVX512, which multiplies bfloat16 slowly."""
    X = X.bfloat16()
    slow = X.is_cpu and "AVX512" not in torch.backends.cpu.get_cpu_capability()
    return X.float() if slow else X


def clip(model, limit):
    """Scales the gradients so that their common norm is at most the limit. Returns the norm that they had. As torch's
    clip_grad_norm_, bit for bit, but without a call for each parameter."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(grads, scale)
    return norm


def schedule(cfg, step):
    """The share of the peak learning rates at a step: a linear warm-up, then a line or a cosine down to min_lr /
    learning_rate (at most 1) at max_iters."""
    if step < cfg.warmup_iters:
        return (step + 1) / (cfg.warmup_iters + 1)
    low = min(1.0, cfg.min_lr / max(cfg.learning_rate, 1e-12))
    left = 1 - (step - cfg.warmup_iters) / (cfg.max_iters - cfg.warmup_iters)
    if cfg.decay == "cosine":
        left = 0.5 * (1 - math.cos(math.pi * left))
    return low + (1 - low) * left
