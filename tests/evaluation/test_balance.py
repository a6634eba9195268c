import pytest
import torch

from protograph.evaluation.balance import Margins, join
from protograph.evaluation.metrics import episode_measures


def make_logits() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 8, (30, 12), generator=generator)
    targets[:, 0], targets[:, 1] = 0, 7
    logits = torch.randn(30, 12, 8, generator=generator) + 2 * torch.nn.functional.one_hot(targets, 8)
    logits[..., :5] += 1.5
    return logits, targets


def test_margins_tell_what_a_bias_does_to_the_measures() -> None:
    logits, targets = make_logits()
    margins = join([Margins.of(logits[:10], targets[:10], 5), Margins.of(logits[10:], targets[10:], 5)])
    for bias in (-2.0, 0.0, 0.7, 3.0):
        moved = logits.clone()
        moved[..., 5:] += bias
        assert margins.h_mean(bias) == pytest.approx(episode_measures(moved, targets, 5)["h_mean"].mean().item(), abs=1e-6)


def test_the_best_bias_is_as_good_as_any_of_a_fine_grid() -> None:
    margins = Margins.of(*make_logits(), 5)
    found = margins.best_bias()
    assert margins.h_mean(found) >= max(margins.h_mean(place / 50) for place in range(-300, 300)) - 0.003
    assert margins.h_mean(found) > margins.h_mean(0.0) + 0.02
    assert found == pytest.approx(1.5, abs=0.7), "what made seen classes too likely is taken back"


def test_without_need_there_is_no_bias() -> None:
    targets = torch.tensor([[0, 1, 2, 3]])
    logits = 9.0 * torch.nn.functional.one_hot(targets, 4).float()
    assert Margins.of(logits, targets, 2).best_bias() == 0.0


@pytest.mark.gpu
def test_margins_on_a_gpu_have_the_bias_of_those_on_the_cpu() -> None:
    logits, targets = make_logits()
    on_gpu = Margins.of(logits.cuda(), targets.cuda(), 5)
    assert on_gpu.margin.is_cuda
    assert on_gpu.best_bias() == pytest.approx(Margins.of(logits, targets, 5).best_bias(), abs=1e-6)
