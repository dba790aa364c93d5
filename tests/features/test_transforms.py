"""torch.func transforms and forward-mode autograd inside compiled functions: as in eager, natively."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import neuron_dynamo
from tests.features.native import check_native, compiled


def curve(x: Tensor) -> Tensor:
    return torch.tanh(x) * x.cumsum(0)


def energy(x: Tensor) -> Tensor:
    return (x.sin() * x).sum() + x.prod()


X, T = torch.linspace(-1.5, 2, 4), torch.linspace(1, -0.5, 4)


ONE_INPUT: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: grad(energy)(x),
    "grad_and_value": lambda x: grad_and_value(energy)(x),
    "third derivative": lambda x: grad(grad(grad(lambda v: (v * v).sin())))(x.sum()),
    "jacfwd": lambda x: jacfwd(curve)(x),
    "jacrev": lambda x: jacrev(curve)(x),
    "jacrev in chunks": lambda x: jacrev(curve, chunk_size=2)(x),
    "hessian": lambda x: hessian(energy)(x),
    "hessian, reverse over reverse": lambda x: jacrev(jacrev(energy))(x),
    # A small argument: 1 - tanh^2 of a large one is a difference of near equals, and magnifies the last places of tanh.
    "hessian of a product": lambda x: hessian(lambda w: torch.tanh(torch.outer(w, w) @ w / 8).pow(2).sum())(x),
    "batched jacobian": lambda x: vmap(jacrev(lambda v: v.softmax(0)))(torch.stack([x, 2 * x])),
    "jacobian of two arguments": lambda x: jacrev(lambda a, b: a * b.sum(), argnums=(0, 1))(x, x.cos()),
    "auxiliary result": lambda x: grad(lambda v: (energy(v), v + 1), has_aux=True)(x),
}


def test_derivatives() -> None:
    """In one function, as one compile costs less than twelve."""
    check_native(lambda x: {name: fn(x) for name, fn in ONE_INPUT.items()}, X)


WITH_TANGENT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "jvp": lambda x, t: jvp(curve, (x,), (t,)),
    "jvp with auxiliary result": lambda x, t: jvp(lambda v: (curve(v), v + 1), (x,), (t,), has_aux=True),
    "vjp": lambda x, t: (lambda out, pull: (out, pull(t)))(*vjp(curve, x)),
    "Hessian times vector, forward over reverse": lambda x, t: jvp(grad(energy), (x,), (t,))[1],
    "Hessian times vector, reverse over reverse": lambda x, t: vjp(grad(energy), x)[1](t)[0],
    "Gauss-Newton times vector": lambda x, t: vjp(curve, x)[1](jvp(curve, (x,), (t,))[1])[0],
    "jvp of layer_norm": lambda x, t: jvp(lambda v: F.layer_norm(v, (4,)), (x,), (t,)),
    "jvp of sort and gather": lambda x, t: jvp(lambda v: v.sort().values * v[torch.tensor([0, 0, 3, 1])], (x,), (t,)),
}


def test_products_with_a_tangent() -> None:
    check_native(lambda x, t: {name: fn(x, t) for name, fn in WITH_TANGENT.items()}, X, T)


def test_jvp_of_convolution_and_attention() -> None:
    image = torch.randn(2, 2, 5, 5)
    weight = torch.randn(3, 2, 3, 3)
    check_native(lambda x, t: jvp(lambda v: F.batch_norm(F.conv2d(v, weight), None, None, training=True), (x,), (t,)), image, image.cos())
    torch._dynamo.reset()
    query = torch.randn(1, 2, 4, 8)
    with sdpa_kernel(SDPBackend.MATH):  # eager has no forward mode for the CPU's fused kernel
        check_native(lambda x, t: jvp(lambda q: F.scaled_dot_product_attention(q, q, q), (x,), (t,)), query, query.cos())


def test_dual_numbers() -> None:
    def fn(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        with forward_ad.dual_level():
            primal, tangent = forward_ad.unpack_dual(curve(forward_ad.make_dual(x, t)))
            return primal, tangent

    actual = check_native(fn, X, T)
    torch.testing.assert_close(actual, jvp(curve, (X,), (T,)))


VMAPS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "plain": lambda a, b: vmap(torch.dot)(a, b),
    "in_dims and out_dims": lambda a, b: vmap(lambda u, v: u * v.sum(), in_dims=(1, None), out_dims=1)(a, b),
    "nested": lambda a, b: vmap(vmap(lambda u, v: (u * v).sum(), (0, None)), (None, 0))(a, b),
    "in chunks": lambda a, b: vmap(torch.dot, chunk_size=2)(a, b),
    "over a dict": lambda a, b: vmap(lambda d: d["a"] @ d["b"])({"a": a, "b": b}),
    "indexing": lambda a, b: vmap(lambda u, v: u[v.argmax()])(a, b),
    "convolution with a weight each": lambda a, b: vmap(F.conv1d)(a[:, None, None], b[:, None, None, :3]),
    "a matrix inverse": lambda a, b: vmap(lambda u, v: torch.linalg.inv(torch.outer(u, v) + torch.eye(5)))(a / 9, b),
}


def test_vmap() -> None:
    check_native(lambda a, b: {name: fn(a, b) for name, fn in VMAPS.items()}, torch.randn(3, 5), torch.randn(3, 5))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_randomness(randomness: str) -> None:
    """With rng="eager" the very numbers of eager; by default others, but alike (or not) over the batch as asked."""
    draws = [lambda x: x + torch.randn(6), lambda x: F.dropout(x, 0.5), lambda x: x + torch.rand_like(x)]

    def fn(x: Tensor) -> list[Tensor]:
        return [vmap(draw, randomness=randomness)(x) for draw in draws]

    x = torch.ones(3, 6)
    torch.manual_seed(3)
    expected = fn(x)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(fn, rng="eager")(x), expected)
    torch._dynamo.reset()
    for drawn in compiled(lambda x: fn(x))(x):
        assert (torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])) == (randomness == "same")


def classifier() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))


def test_functional_call_and_per_sample_gradients() -> None:
    model = classifier()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    check_native(lambda p, x: functional_call(model, p, (x,)), parameters, x)
    torch._dynamo.reset()

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, p, (x[None],)), y[None])

    def per_sample(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Any:
        return vmap(grad(loss), in_dims=(None, 0, 0))(p, x, y)

    each = check_native(per_sample, parameters, x, y)
    whole = torch.autograd.grad(F.cross_entropy(model(x), y), model.parameters())
    torch.testing.assert_close([g.mean(0) for g in each.values()], list(whole))


def test_forward_mode_over_parameters() -> None:
    model = classifier()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    tangents = {name: torch.randn_like(p) for name, p in parameters.items()}
    x = torch.randn(5, 3)
    check_native(lambda p, t: jvp(lambda q: functional_call(model, q, (x,)), (p,), (t,)), parameters, tangents)


def test_ensemble_of_stacked_models() -> None:
    models = [classifier() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    parameters = {name: p.detach() for name, p in parameters.items()}
    x = torch.randn(5, 3)

    def fn(p: Any, x: Tensor) -> Tensor:
        return vmap(lambda p, x: functional_call(models[0], (p, buffers), (x,)), in_dims=(0, None))(p, x)

    check_native(fn, parameters, x)


def test_gradient_of_a_compiled_jacobian() -> None:
    """Reverse mode from outside, over a transform inside."""
    grads = []
    for fn in (lambda x: jacrev(curve)(x).diagonal().sum(), compiled(lambda x: jacrev(curve)(x).diagonal().sum())):
        x = X.clone().requires_grad_()
        fn(x).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
    assert [graph.kind for graph in neuron_dynamo.reports()] == ["forward", "backward"]


def test_transforms_of_a_compiled_function() -> None:
    """A transform around a compiled function runs it in eager PyTorch, as with any backend: right, and without a graph of ours."""
    f = compiled(curve, fullgraph=False)
    torch.testing.assert_close(jacrev(f)(X), jacrev(curve)(X))
    torch.testing.assert_close(jvp(f, (X,), (T,)), jvp(curve, (X,), (T,)))
    torch.testing.assert_close(vmap(f)(torch.stack([X, T])), vmap(curve)(torch.stack([X, T])))


# What Dynamo or AOTAutograd refuses


def test_linearize_is_a_graph_break() -> None:
    def fn(x: Tensor, t: Tensor) -> Any:
        out, push = linearize(curve, x)
        return out, push(t)

    with pytest.raises(Unsupported):
        compiled(fn)(X, T)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(fn, fullgraph=False)(X, T), fn(X, T))


def test_double_backward_is_refused_by_aot_autograd() -> None:
    """The first derivative is right; the second is PyTorch's own error, not a wrong number. Inside one function it works."""
    x = X.clone().requires_grad_()
    first = torch.autograd.grad(compiled(energy)(x), x, create_graph=True)[0]
    torch.testing.assert_close(first, grad(energy)(X))
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(first.sum(), x)
    torch._dynamo.reset()
    inside = compiled(lambda v: grad(lambda u: grad(energy)(u).sum())(v))(X)
    torch.testing.assert_close(inside, torch.autograd.functional.hessian(energy, X).sum(0))


def test_autograd_grad_inside() -> None:
    """A graph break by default; part of the graph with Dynamo's own setting."""

    def fn(x: Tensor) -> Tensor:
        return torch.autograd.grad(energy(x), x)[0] * 2

    x = X.clone().requires_grad_()
    torch.testing.assert_close(compiled(fn, fullgraph=False)(x), fn(x))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        torch.testing.assert_close(compiled(fn)(x), fn(x))
