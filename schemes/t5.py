import math

import torch
import torch.nn.functional as F

from model import PositionScheme
from schemes import learned


class T5(PositionScheme, name="t5"):
    """Raffel et al. 2020 (arXiv 1910.10683): scores + b[bucket(i−j), h], with one learned table for all layers. Of the
    32 causal buckets, 16 hold a single distance each and 16 grow logarithmically up to 128. Distances beyond training
    share the last bucket that training reaches.

    Deviations: T5 omits 1/sqrt(D); here, scores are scaled as in all schemes. The table is multiplied by `size`,
    because a step of Adam moves a parameter by at most the learning rate, and biases reach several nats.
    """

    n_buckets = 32
    max_distance = 128
    options = {"size": 64.0}
    no_decay = ("table",)

    def __init__(self, config):
        super().__init__(config)
        self.table = learned(self.n_buckets, config.n_head)

    def start_from(self, config):
        last = self.bucket(torch.tensor(config.block_size - 1))  # that training reached
        self.table.data[last + 1 :] = self.table.data[last]

    def bucket(self, distance):
        """The buckets of these distances, int64."""
        exact = self.n_buckets // 2
        share = (distance.clamp(min=exact) / exact).log() / math.log(self.max_distance / exact)
        far = exact + (share * (self.n_buckets - exact)).long()
        return torch.where(distance < exact, distance, far.clamp(max=self.n_buckets - 1))

    def prepare(self, q_pos, k_pos):
        """The bias for the distances 0 … S−1 and for all that have buckets of their own: (≥ S, H)."""
        n = max(len(k_pos), self.max_distance)
        distance = torch.arange(n, device=k_pos.device)
        distance = distance.clamp(max=self.config.block_size - 1)  # no untrained bucket is ever used
        return self.config.options.size * F.embedding(self.bucket(distance), self.table)

    def bias(self, q, k, q_pos, k_pos, prepared, layer):
        distance = q_pos[:, None] - k_pos
        distance = distance.clamp(0, len(prepared) - 1)  # all that are farther share a bucket
        bias = F.embedding(distance, prepared)  # (queries, keys, H)
        return bias.permute(2, 0, 1)[None].contiguous()
