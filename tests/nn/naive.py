"""What the tests of this folder share: exact comparison and seeded numbers, in float64."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor holds that anything made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        for tensor in answer if isinstance(answer, tuple | list) else [answer]:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self.numbers = max(self.numbers, tensor.numel())
        return answer
