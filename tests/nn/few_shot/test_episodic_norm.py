import torch
from torch import nn

from protograph.nn.few_shot.episodic_norm import EpisodicNorm, replace_norms, set_reference


def norm() -> EpisodicNorm:
    usual = nn.BatchNorm2d(3).double()
    usual.weight.data, usual.bias.data = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([0.0, 1.0, -1.0]).double()
    return EpisodicNorm(usual)


def test_it_equals_pytorchs_batch_norm_in_training() -> None:
    episodic, inputs = norm(), torch.randn(4, 3, 5, 2).double()
    expected = nn.functional.batch_norm(inputs, None, None, episodic.weight, episodic.bias, training=True, eps=episodic.eps)
    torch.testing.assert_close(episodic(inputs), expected)


def test_with_a_reference_the_other_images_move_nothing() -> None:
    episodic, inputs = norm(), torch.randn(6, 3, 5, 2).double()
    set_reference(nn.Sequential(episodic), 4)
    alone = norm()
    torch.testing.assert_close(episodic(inputs)[:4], alone(inputs[:4]))
    changed = torch.cat([inputs[:5], 100 + inputs[5:]])
    assert torch.equal(episodic(changed)[:5], episodic(inputs)[:5])
    set_reference(nn.Sequential(episodic), None)
    torch.testing.assert_close(episodic(inputs), alone(inputs))


def test_replaced_norms_share_their_weights() -> None:
    inner = nn.BatchNorm2d(2)
    network = replace_norms(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sequential(inner, nn.ReLU())))
    assert [type(module) for module in network.modules() if "Norm" in type(module).__name__] == [EpisodicNorm]
    assert next(parameter is inner.weight for name, parameter in network.named_parameters() if name == "1.0.weight")
    assert network(torch.randn(3, 1, 2, 2)).isfinite().all()


def test_half_precision_keeps_statistics_in_float32() -> None:
    episodic = EpisodicNorm(nn.BatchNorm2d(3))
    inputs = 100 + torch.randn(64, 3, 8, 8)
    normed = episodic(inputs.bfloat16())
    assert normed.dtype == torch.bfloat16
    assert abs(normed.float().mean()) < 0.05
