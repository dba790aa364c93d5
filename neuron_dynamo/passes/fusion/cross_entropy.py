"""Cross-entropy: log-softmax and the negative log-likelihood of the target class, forward and backward."""

from __future__ import annotations

import operator
from typing import Any

import torch

from neuron_dynamo.passes.fusion.reading import calls
from neuron_dynamo.passes.fusion.region import Match, Miss

aten = torch.ops.aten
_LOSSES = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
_GRADIENTS = (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)


def cross_entropy(node: Any) -> Match | Miss | None:
    """The loss, or its gradient, whose log-likelihood op `node` is."""
    if calls(node, *_LOSSES):
        scores = node.args[0]
        if not calls(scores, aten._log_softmax.default):
            return Miss("cross_entropy", node, "the loss is not of a log-softmax")
        parts = tuple(user for user in node.users if user.target is operator.getitem)
        logits, target = scores.args[0], node.args[1]
        ignored = node.args[4] if len(node.args) > 4 else -100
        return Match("cross_entropy", (scores, node, *parts), node, {"ignore_index": int(ignored)}, (logits, target))
    if calls(node, *_GRADIENTS):
        user = next((u for u in node.users if calls(u, aten._log_softmax_backward_data.default) and u.args[0] is node), None)
        if user is None:
            return Miss("cross_entropy_backward", node, "its gradient is not that of a log-softmax")
        return Match("cross_entropy_backward", (node, user), node)
    return None
